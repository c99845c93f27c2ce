"""The order of an epoch: a permutation of all samples, decided by settings and epoch alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wdsdist.errors import ArgumentError
from wdsdist.sampling.mix_order import Deal
from wdsdist.sampling.order import OrderConfig, OrderSettings, default_window, epoch_order
from wdsdist.shards.manifest import Manifest, Shard

Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class World:
    """Shards, settings and an epoch."""

    counts: list[int]
    settings: OrderSettings
    epoch: int

    @property
    def total(self) -> int:
        return sum(self.counts)

    def at(self, positions: Any) -> Pairs:
        order = epoch_order(np.array(self.counts, np.int64), self.settings, self.epoch)
        assert order.num_samples == self.total
        shards, samples, _ = order.locate(np.asarray(positions, np.int64))
        return list(zip(shards.tolist(), samples.tolist(), strict=True))

    def epoch_pairs(self) -> Pairs:
        return self.at(range(self.total))

    def manifest_pairs(self) -> Pairs:
        return [(shard, sample) for shard, count in enumerate(self.counts) for sample in range(count)]


counts_of_shards = st.lists(st.integers(0, 60) | st.just(0), max_size=10)


@st.composite
def worlds(draw: st.DrawFn, **fixed: Any) -> World:
    free = {
        "name": st.sampled_from(["shard", "sampler"]),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 2**64 - 1_000_001),
        "window": st.integers(1, 100) | st.integers(1, 2**63 - 1),
        "num_canonical_replicas": st.integers(1, 12),
    }
    chosen = {name: fixed[name] if name in fixed else draw(strategy) for name, strategy in free.items()}
    return World(draw(counts_of_shards), OrderSettings(**chosen), draw(st.integers(0, 1_000_000)))


def shard_world(counts: list[int], epoch: int = 0, **chosen: Any) -> World:
    return World(counts, OrderSettings(name="shard", **chosen), epoch)


# A permutation


@given(worlds())
@example(shard_world([]))
@example(shard_world([0, 0]))
@example(shard_world([1]))
@example(shard_world([5, 0, 3], num_canonical_replicas=100))
@example(shard_world([700, 1], window=2**63 - 1))
def test_every_sample_stands_once_in_an_epoch(world: World) -> None:
    assert sorted(world.epoch_pairs()) == world.manifest_pairs()


def test_an_epoch_of_a_billion_samples_is_found_at_any_position() -> None:
    world = shard_world([10_000] * 100_000, num_canonical_replicas=64, window=80_000)
    positions = np.unique(np.random.default_rng(0).integers(0, world.total, 1000))
    assert len(set(world.at(positions))) == len(positions)


# What decides it


def test_seed_and_epoch_are_not_added() -> None:
    assert shard_world([40] * 5, epoch=1, seed=5).epoch_pairs() != shard_world([40] * 5, epoch=0, seed=6).epoch_pairs()


@pytest.mark.parametrize("name", ["shard", "sampler"])
def test_each_seed_and_each_epoch_has_an_order_of_its_own(name: str) -> None:
    by_epoch = [World([30] * 4, OrderSettings(name=name, seed=1), epoch).epoch_pairs() for epoch in range(20)]
    by_seed = [World([30] * 4, OrderSettings(name=name, seed=seed + 100), 0).epoch_pairs() for seed in range(20)]
    assert len(set(map(tuple, by_epoch + by_seed))) == 40


@given(worlds(name="shard", shuffle=False))
def test_without_shuffle_each_lane_reads_its_equal_part_of_the_manifest(world: World) -> None:
    lanes = world.settings.num_canonical_replicas
    order = world.epoch_pairs()
    parts = [order[lane::lanes] for lane in range(lanes)]
    assert [pair for part in parts for pair in part] == world.manifest_pairs()
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_order_is_pinned() -> None:
    digest = hashlib.sha256()
    for counts in ([10], [100, 0, 33, 7], [50] * 40, [5000] * 3):
        for lanes in (1, 2, 8, 64):
            for window in (1, 16, 4096):
                for seed, epoch in ((0, 0), (0, 1), (2**64 - 1, 10**6)):
                    settings = OrderSettings(seed=seed, window=window, num_canonical_replicas=lanes)
                    order = epoch_order(np.array(counts), settings, epoch)
                    shards, samples, _ = order.locate(np.arange(order.num_samples))
                    digest.update(shards.astype("<i8").tobytes() + samples.astype("<i8").tobytes())
    # A change here breaks the resumption of every run that was started before it.
    assert digest.hexdigest() == "6c7c9a715e59a343a6091ec720fb62ff0f61f5727b8a67b5bb712914d0a332aa"


# Lanes and windows: what makes the order cheap to stream


@given(worlds(name="shard", shuffle=True), st.integers(1, 12))
def test_ranks_that_divide_the_lanes_share_few_shards(world: World, ranks: int) -> None:
    lanes = world.settings.num_canonical_replicas * ranks
    pairs = shard_world(world.counts, seed=1, num_canonical_replicas=lanes, window=world.settings.window).epoch_pairs()
    touched = {(position % ranks, shard) for position, (shard, _) in enumerate(pairs)}
    assert len(touched) <= len(world.counts) + lanes


@given(worlds(name="shard", shuffle=True))
def test_samples_move_only_within_the_windows_of_their_lane(world: World) -> None:
    chosen = world.settings
    lanes = chosen.num_canonical_replicas
    still = World(world.counts, replace(chosen, window=1), world.epoch)
    order, unmoved = world.epoch_pairs(), still.epoch_pairs()
    for lane in range(lanes):
        mixed, plain = order[lane::lanes], unmoved[lane::lanes]
        windows = max(1, -(-len(plain) // chosen.window))
        size = max(1, -(-len(plain) // windows))
        for start in range(0, len(plain), size):
            assert sorted(mixed[start : start + size]) == sorted(plain[start : start + size])


def lane_sets(counts: list[int], lanes: int, epochs: int, **chosen: Any) -> list[list[frozenset[tuple[int, int]]]]:
    """Return the samples of each lane in each epoch."""
    orders = [
        shard_world(counts, epoch, num_canonical_replicas=lanes, **chosen).epoch_pairs() for epoch in range(epochs)
    ]
    return [[frozenset(order[lane::lanes]) for order in orders] for lane in range(lanes)]


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(lambda counts: sum(counts) > 20),
    st.integers(1, 8),
    st.integers(0, 1000),
)
def test_ranks_that_outnumber_the_shards_get_new_samples_in_later_epochs(
    counts: list[int], more: int, seed: int
) -> None:
    lanes = len(counts) + more
    for sets in lane_sets(counts, lanes, 20, seed=seed):
        assert len(set(sets)) > 8
        assert len(frozenset().union(*sets)) > 1.5 * len(sets[0])


@pytest.mark.parametrize("counts", [[96], [48, 48], [90, 2, 2, 2]])
def test_each_rank_meets_every_sample_of_a_shard_that_is_longer_than_its_lane(counts: list[int]) -> None:
    for sets in lane_sets(counts, 4, 60):
        assert len(frozenset().union(*sets)) == 96


def test_no_sample_of_a_shard_is_preferred_at_any_position() -> None:
    counts, epochs = [3, 5, 4], 1500
    found = np.zeros((12, 12))
    for epoch in range(epochs):
        for position, (shard, sample) in enumerate(shard_world(counts, epoch, seed=1).epoch_pairs()):
            found[position, sum(counts[:shard]) + sample] += 1
    for shard in (slice(0, 3), slice(3, 8), slice(8, 12)):
        columns = found[:, shard]
        expected = columns.mean(axis=1, keepdims=True)
        spread = ((columns - expected) ** 2 / np.maximum(expected, 1)).sum()
        freedom = 12 * (columns.shape[1] - 1)
        assert spread < freedom + 6 * (2 * freedom) ** 0.5


# The default window


def test_the_default_window_holds_16_shards_and_at_least_4096_samples() -> None:
    assert default_window(np.array([10_000] * 5)) == 160_000
    assert default_window(np.array([10_000, 0, 10_001, 0])) == 16 * 10_001  # empty shards hold nothing; halves round up
    assert default_window(np.array([100] * 5)) == 4096
    assert default_window(np.array([], np.int64)) == 4096
    assert default_window(np.array([0, 0])) == 4096


# Arguments


@pytest.mark.parametrize(
    ("argument", "value", "error", "message"),
    [
        ("seed", True, ArgumentError, "seed is True: it must be an integer"),
        ("seed", 1.0, ArgumentError, r"seed is 1\.0: it must be an integer"),
        ("seed", "1", ArgumentError, "seed is '1': it must be an integer"),
        ("seed", None, ArgumentError, "seed is None: it must be an integer"),
        ("window", 2.5, ArgumentError, "shuffle_window is 2.5: it must be an integer"),
        ("num_canonical_replicas", True, ArgumentError, "num_canonical_replicas is True: it must be an integer"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name_and_value(
    argument: str, value: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        OrderSettings(**{argument: value})


ORDERS: dict[str, Callable[[Any], object]] = {
    "shard": lambda epoch: epoch_order(np.array([3]), OrderSettings(), epoch),
    "sampler": lambda epoch: epoch_order(np.array([3]), OrderSettings(name="sampler"), epoch),
    "mix": lambda epoch: Deal([Fraction(1)], num_samples=3, lanes=1, seed=0, epoch=epoch),
}


@pytest.mark.parametrize("name", ORDERS)
def test_an_epoch_that_cannot_be_is_refused_by_value(name: str) -> None:
    for epoch, error, message in [
        (-1, ArgumentError, "epoch is -1: it must be between 0 and 9,223,372,036,854,775,807"),
        (2**63, ArgumentError, "epoch is 9,223,372,036,854,775,808: it must be between 0"),
        (1.5, ArgumentError, r"epoch is 1\.5: it must be an integer"),
        (False, ArgumentError, "epoch is False: it must be an integer"),
    ]:
        with pytest.raises(error, match=message):
            ORDERS[name](epoch)


@given(st.integers(0, 200), st.integers(0, 2**64 - 1))
def test_the_order_sampler_is_the_sequence_of_a_distributed_sampler(n: int, seed: int) -> None:
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(range(n), num_replicas=1, rank=0, shuffle=True, seed=seed)
    order = epoch_order(np.array([n]), OrderSettings(name="sampler", seed=seed), 0)
    assert order.locate(np.arange(n))[1].tolist() == list(sampler)


def test_a_sampler_seed_that_torch_cannot_take_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"seed \+ epoch is 18,446,744,073,709,551,616"):
        epoch_order(np.array([3]), OrderSettings(name="sampler", seed=2**64 - 1), 1)
    assert epoch_order(np.array([3]), OrderSettings(name="sampler", seed=2**64 - 2), 1).num_samples == 3


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any),
    length=st.integers(1, 100),
    name=st.sampled_from(["shard", "sampler"]),
    shuffle=st.booleans(),
)
def test_virtual_epochs_are_the_data_sets_own_in_pieces(
    counts: list[int], length: int, name: Any, shuffle: bool
) -> None:
    settings, sizes = OrderSettings(name=name, shuffle=shuffle, window=8, num_canonical_replicas=2), np.array(counts)
    total = sum(counts)
    whole = [epoch_order(sizes, settings, epoch) for epoch in range(-(-5 * length // total))]
    expected = list(chain.from_iterable(zip(*order.locate(np.arange(total)), strict=True) for order in whole))
    for epoch in range(5):
        order = epoch_order(sizes, settings, epoch, length)
        found = list(zip(*order.locate(np.arange(length)), strict=True))
        assert found == expected[epoch * length : (epoch + 1) * length]
        assert order.num_samples == length


def test_a_state_of_an_earlier_generation_has_the_order_of_its_shards() -> None:
    shards = [Shard(f"{number}.tar", 10 + number, -1, "") for number in range(4)]
    config = OrderConfig(manifest=Manifest.of("/data", shards))
    before = OrderConfig(manifest=Manifest.of("/data", shards[:3]))
    state = {"num_samples": before.num_samples, "fingerprint": before.fingerprint}
    assert config.as_in(state).fingerprint == before.fingerprint
    assert config.as_in(state | {"fingerprint": "another"}) is config
    assert config.as_in({"num_samples": config.num_samples, "fingerprint": config.fingerprint}) is config
    with pytest.raises(ArgumentError, match="0"):
        OrderConfig(manifest=config.manifest, shuffle_window=0)
