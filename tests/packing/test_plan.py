"""Which samples go into which shard."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wdsdist.packing.plan import make_plan
from wdsdist.shards.tar.fields import END

SIZES = st.lists(st.integers(1, 40).map(lambda blocks: 512 * blocks), min_size=1, max_size=200).map(np.array)
SEEDS = st.none() | st.integers(0, 2**64 - 1)
ROOMS = st.integers(1, 60_000) | st.integers(1, 120).map(lambda blocks: 512 * blocks)
LIMITS = st.none() | st.integers(1, 50)


@given(sizes=SIZES, seed=SEEDS, limit=LIMITS, room=ROOMS)
def test_every_sample_is_in_one_shard_and_every_shard_keeps_the_limits(
    sizes: np.ndarray, seed: int | None, limit: int | None, room: int
) -> None:
    plan = make_plan(sizes, shuffle_seed=seed, shard_bytes=room, shard_samples=limit)
    shards = [plan.samples(shard) for shard in range(len(plan))]
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(sizes)))
    assert plan.counts.tolist() == [len(shard) for shard in shards]
    for shard, size in zip(shards, plan.sizes.tolist(), strict=True):
        assert size == sizes[shard].sum() + len(END)
        assert 1 <= len(shard) <= (limit or len(sizes))
        assert size <= room or len(shard) == 1
    for shard, size, following in zip(shards, plan.sizes.tolist(), shards[1:], strict=False):
        assert size + sizes[following[0]] > room or len(shard) == limit


def test_a_seed_decides_the_order_and_none_keeps_it() -> None:
    def order(seed: int | None) -> list[int]:
        return make_plan(np.full(100, 512), shuffle_seed=seed, shard_bytes=4096, shard_samples=None).order.tolist()

    assert order(None) == list(range(100))
    assert order(0) == order(0) != order(1)
    assert order(0) != order(None)


def test_the_order_of_a_seed_never_changes() -> None:
    # Data sets packed by one version must be continued by the next one: a new order needs a new record version.
    plan = make_plan(np.full(10, 512), shuffle_seed=0, shard_bytes=10**6, shard_samples=None)
    assert plan.order.tolist() == [3, 5, 6, 0, 2, 8, 9, 7, 4, 1]
