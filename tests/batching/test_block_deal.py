"""The deal of a block's samples to ranks: even, and with few shards that another node has to read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist._util.array_types import Int64s
from wdsdist.batching.block_deal import Locality, even, level
from wdsdist.sampling.plan import World

RANKS, PER_NODE, SHARDS, SAMPLES = 8, 2, 64, 100
OWNERS = np.arange(SHARDS * SAMPLES) % RANKS
_LANE = np.arange(SHARDS * SAMPLES) // RANKS
OF = OWNERS * (SHARDS // RANKS) + _LANE % (SHARDS // RANKS)  # each rank's lane has eight shards of its own


def reads(ranks: Int64s, shards: Int64s) -> int:
    """Return the shards that the nodes read, each counted as often as nodes read it."""
    return len(set(zip((ranks // PER_NODE).tolist(), shards.tolist(), strict=True)))


@given(st.integers(0, 999), st.integers(300, 600), st.sampled_from([(6, 6), (6, 2), (6, 1)]), st.integers(2, 9))
def test_nodes_that_keep_what_they_have_by_chance_have_a_sample_for_each_batch_and_no_batch_too_many(
    seed: int, count: int, world: tuple[int, int], batch: int
) -> None:
    owners, shards = np.random.default_rng(seed).integers(0, [[6], [10]], (2, count))
    categories = np.arange(count) * 2 // count
    steps = -(-np.bincount(categories) // (6 * batch))
    locality = Locality.of(owners, shards, World(*world))
    nodes = even(locality, owners, categories, locality.shards, steps, batch)
    sizes = np.bincount(locality.nodes)
    for category in (0, 1):
        counts = np.bincount(nodes[categories == category], minlength=len(sizes))
        assert (counts >= sizes * steps[category]).all()
        assert (counts <= sizes * steps[category] * batch).all()


def test_samples_that_move_between_nodes_are_of_few_shards_over_all_buckets() -> None:
    buckets = np.random.default_rng(0).integers(0, 10, len(OWNERS))
    locality = Locality.of(OWNERS, OF, World(RANKS, PER_NODE))
    nodes = even(locality, OWNERS, buckets, locality.shards, np.full(10, 2), 64)
    share = np.bincount(buckets) * PER_NODE / RANKS
    for bucket in range(10):
        assert np.bincount(nodes[buckets == bucket]).max() <= np.ceil(1.016 * share[bucket])
    assert (nodes != OWNERS // PER_NODE).any()
    assert reads(nodes * PER_NODE, OF) <= 1.15 * reads(OWNERS, OF)


@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_even_over_ranks_and_open_few_more_shards(seed: int) -> None:
    lengths = np.random.default_rng(seed).lognormal(4, 1, len(OWNERS)).astype(np.int64) + 1
    locality = Locality.of(OWNERS, OF, World(RANKS, PER_NODE))
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
    locality = Locality.of(owners, shards, World(2))
    nodes = even(locality, owners, np.zeros_like(owners), locality.shards, np.array([2]), 10)
    assert set(shards[nodes == 1].tolist()) == {5}


def test_a_node_without_a_sample_for_a_batch_gets_some_though_the_others_have_few_too_many() -> None:
    owners = np.append(np.repeat(np.arange(62), 33), [62, 62])
    locality = Locality.of(owners, owners, World(64))
    nodes = even(locality, owners, np.zeros_like(owners), locality.shards, np.array([1]), 64)
    assert np.bincount(nodes, minlength=64).min() >= 1
