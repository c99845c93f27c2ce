"""The deal of a block's samples to ranks: even, and with few shards that another node has to read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist._util.array_types import Int64s
from wdsdist.sampling.block_deal import Locality, even, level

RANKS, PER_NODE, SHARDS, SAMPLES = 8, 2, 64, 100
OWNERS = np.arange(SHARDS * SAMPLES) % RANKS
_LANE = np.arange(SHARDS * SAMPLES) // RANKS
OF = OWNERS * (SHARDS // RANKS) + _LANE % (SHARDS // RANKS)  # each rank's lane has eight shards of its own


def reads(ranks: Int64s, shards: Int64s) -> int:
    """Return the shards that the nodes read, each counted as often as nodes read it."""
    return len(set(zip((ranks // PER_NODE).tolist(), shards.tolist(), strict=True)))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=150),
    st.sampled_from([(6, 6), (6, 2), (6, 1), (6, 4)]),
)
def test_all_ranks_have_equally_many_whatever_the_lanes_held(
    lanes: list[tuple[int, int]], world: tuple[int, int]
) -> None:
    owners, shards = np.array(lanes).T
    locality = Locality.of(owners, shards, *world)
    ranks = np.bincount(locality.nodes)
    counts = np.bincount(even(locality, owners, locality.shards), minlength=len(ranks))
    least = len(lanes) // 6
    assert (counts >= ranks * least).all()
    assert (counts <= ranks * (least + 1)).all()


def test_what_moves_between_nodes_is_of_few_shards_over_all_buckets() -> None:
    buckets = np.random.default_rng(0).integers(0, 10, len(OWNERS))
    locality = Locality.of(OWNERS, OF, RANKS, PER_NODE)
    nodes = OWNERS // PER_NODE
    for bucket in range(10):
        chosen = np.flatnonzero(buckets == bucket)
        nodes[chosen] = even(locality, OWNERS[chosen], locality.shards[chosen])
        assert np.ptp(np.bincount(nodes[chosen])) <= PER_NODE
    assert (nodes != OWNERS // PER_NODE).any()
    assert reads(nodes * PER_NODE, OF) <= 1.25 * reads(OWNERS, OF)


@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_even_over_ranks_and_open_few_more_shards(seed: int) -> None:
    lengths = np.random.default_rng(seed).lognormal(4, 1, len(OWNERS)).astype(np.int64) + 1
    locality = Locality.of(OWNERS, OF, RANKS, PER_NODE)
    mean = int(lengths.sum()) / RANKS
    ranks = level(locality, lengths, OWNERS, locality.shards, 1, int(mean * 1.01))
    loads = np.bincount(ranks, lengths, RANKS)
    assert loads.max() <= mean * 1.01
    assert (ranks // PER_NODE != OWNERS // PER_NODE).any()
    assert reads(ranks, OF) <= 1.1 * reads(OWNERS, OF)


def test_a_shard_that_a_node_reads_anyway_is_taken_from_first() -> None:
    # Rank 0 has too much, of shards 0 and 5; rank 1, on another node, reads shard 5 too.
    owners = np.array([0] * 20 + [1] * 4)
    shards = np.array([0] * 10 + [5] * 10 + [5] * 4)
    locality = Locality.of(owners, shards, 2, 1)
    nodes = even(locality, owners, locality.shards)
    assert set(shards[nodes == 1].tolist()) == {5}
