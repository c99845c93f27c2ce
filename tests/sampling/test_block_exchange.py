"""The exchange of samples between nodes: level in each category, over few shards, the same ones in the next block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist._util.array_types import Int64s
from wdsdist.sampling.block_deal import Locality
from wdsdist.sampling.block_exchange import _Ring, _ring_of_each, exchange

RANKS, SHARDS, SAMPLES = 16, 24, 100
"""Shards of each rank's lane, and samples of each shard."""
OWNERS = np.repeat(np.arange(RANKS), SHARDS * SAMPLES)
OF = np.repeat(np.arange(RANKS * SHARDS), SAMPLES)
ALIKE = np.ones(len(OF))


def deviations(nodes: Int64s, categories: Int64s, per_node: int) -> Int64s:
    """Return [nodes, categories]: how many samples more than its share each node has, over those that it has."""
    counts = np.zeros((RANKS // per_node, int(categories.max()) + 1), np.int64)
    np.add.at(counts, (nodes, categories), 1)
    return counts - counts.mean(axis=0)


@pytest.mark.parametrize("per_node", [1, 4])
def test_nodes_have_alike_many_of_each_bucket_and_read_a_tenth_more_shards(per_node: int) -> None:
    buckets = np.random.default_rng(0).integers(0, 8, len(OF))
    locality = Locality.of(OWNERS, OF, RANKS, per_node)
    plain = int(locality.reads.sum())
    ranks = exchange(locality, OWNERS, buckets, np.zeros_like(buckets), ALIKE, locality.shards)
    before, after = (np.abs(deviations(one // per_node, buckets, per_node)).mean() for one in (OWNERS, ranks))
    assert after < before / 4
    assert locality.reads.sum() <= 1.1 * plain
    assert locality.reads[ranks // per_node, locality.shards].all()
    assert (ranks % per_node == 0)[ranks != OWNERS].all()


def test_strata_are_level_and_their_bucket_is_exactly_so() -> None:
    drawn = np.random.default_rng(1).integers(0, 6, len(OF))
    locality = Locality.of(OWNERS, OF, RANKS, 1)
    ranks = exchange(locality, OWNERS, np.zeros_like(drawn), drawn, 1.0 + drawn, locality.shards)
    before, after = (np.abs(deviations(one, drawn, 1)).mean() for one in (OWNERS, ranks))
    assert after < before / 5
    assert (np.bincount(ranks) == SHARDS * SAMPLES).all()


def test_the_next_block_of_a_window_opens_the_same_shards() -> None:
    opened = []
    for block in range(2):
        here = np.random.default_rng(block).random(len(OF)) < 0.4
        here[SHARDS - 1 - block == OF % SHARDS] = False  # a shard that comes later, or is over
        buckets = np.random.default_rng(block).integers(0, 8, int(here.sum()))
        locality = Locality.of(OWNERS[here], OF[here], RANKS, 1)
        reads = locality.reads.copy()
        exchange(locality, OWNERS[here], buckets, np.zeros_like(buckets), ALIKE[here], locality.shards)
        nodes, numbers = np.nonzero(locality.reads & ~reads)
        opened.append(set(zip(nodes.tolist(), locality.names[numbers].tolist(), strict=True)))
    assert len(opened[0] & opened[1]) > 0.8 * len(opened[0]) > 16


def test_samples_that_two_nodes_may_take_are_divided_between_them_also_in_the_order_of_lanes() -> None:
    nodes, shards = np.arange(64) % 4, np.zeros(64, np.int64)
    rings = [_Ring(np.roll(np.arange(4), -turn), np.roll(np.arange(4), turn)) for turn in (1, 2)]
    found = _ring_of_each(np.ones((4, 1), np.bool_), rings, nodes, shards)
    counts = np.zeros((4, 2), np.int64)
    np.add.at(counts, (nodes, found), 1)
    assert counts.min() >= 3


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 90)), min_size=1, max_size=150),
    st.sampled_from([(6, 2), (6, 1), (6, 4)]),
    st.integers(1, 3),
)
def test_what_is_moved_lies_in_shards_that_its_node_reads(
    drawn: list[tuple[int, int, int]], world: tuple[int, int], strata: int
) -> None:
    owners, shards, buckets = np.array(drawn).T
    locality = Locality.of(owners, shards, *world)
    numbers = np.unique(buckets, return_inverse=True)[1]
    ranks = exchange(locality, owners, numbers, shards % strata, np.ones(len(owners)), locality.shards)
    assert locality.reads[locality.nodes[ranks], locality.shards].all()
    firsts = np.searchsorted(locality.nodes, np.arange(int(locality.nodes[-1]) + 1))
    assert np.isin(ranks[ranks != owners], firsts).all()
