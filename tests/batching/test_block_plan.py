"""The plan of a block against its promises: budgets, equal steps, like costs, each sample once, and how full it is."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsdist._util.array_types import Int64s
from wdsdist.batching.block_plan import BlockPlan, BlockSamples, Rule, _spread, plan_block
from wdsdist.sampling.permutation import mix_keys
from wdsdist.sampling.plan import World

lengths_of = st.lists(st.integers(0, 100), max_size=120)
worlds = st.sampled_from([World(1), World(2, 2), World(3), World(4, 2), World(8, 4)])


def samples_of(lengths: list[int], world: World, buckets: Any = None) -> BlockSamples:
    categories = None if buckets is None else np.array(buckets, np.int64)
    return BlockSamples(np.array(lengths, np.int64), np.arange(len(lengths)) % world.num_replicas, categories)


def batch_of(plan: BlockPlan, step: int, rank: int) -> tuple[Int64s, Int64s]:
    """Return the samples of a batch, and the row of each."""
    start, stop = plan.bounds[step * (len(plan.bounds) // plan.steps) + rank :][:2]
    return plan.samples[start:stop], plan.rows[start:stop]


def batches(plan: BlockPlan, world: World) -> list[list[tuple[list[int], list[int]]]]:
    """Return the samples and rows of each rank's batch, step by step."""
    return [
        [tuple(part.tolist() for part in batch_of(plan, step, rank)) for rank in range(world.num_replicas)]  # type: ignore[misc]
        for step in range(plan.steps)
    ]


def check_once(plan: BlockPlan, total: int, world: World, *, drops: bool, most_unused: int) -> None:
    """Check that no batch is empty, and that samples are repeated or dropped only where ranks cannot be even."""
    times = Counter(plan.samples.tolist())
    if drops:
        assert not times or max(times.values()) == 1
        assert total - len(times) <= most_unused
    elif total:
        assert len(times) == total
        assert sum(times.values()) - total < max(world.num_replicas * plan.steps, 1)


@given(lengths_of, worlds, st.integers(100, 400), st.integers(0, 6), st.booleans(), st.integers(0, 2**64 - 1))
def test_batches_keep_to_their_budget_and_have_each_sample_once(
    lengths: list[int], world: World, budget: int, most: int, drops: bool, key: int
) -> None:
    plan = plan_block(samples_of(lengths, world), Rule(budget=budget, most=most, drops=drops), world, key)
    for step in batches(plan, world):
        for chosen, _ in step:
            assert chosen
            assert sum(lengths[number] for number in chosen) <= budget
            assert not most or len(chosen) <= most
    # To drop is right where a step has no sample left for some rank, and nowhere else.
    check_once(plan, len(lengths), world, drops=drops, most_unused=len(lengths) - world.num_replicas * plan.steps)


@given(lengths_of, worlds, st.integers(1, 5), st.integers(0, 2**64 - 1))
def test_rows_hold_no_more_than_their_length(lengths: list[int], world: World, rows: int, key: int) -> None:
    plan = plan_block(samples_of(lengths, world), Rule(has_rows=True, budget=100, most=rows, drops=True), world, key)
    for step in batches(plan, world):
        for chosen, placed in step:
            assert chosen
            assert placed == sorted(placed)
            assert set(placed) <= set(range(rows))
            filled = Counter[int]()
            for number, row in zip(chosen, placed, strict=True):
                filled[row] += lengths[number]
            assert max(filled.values()) <= 100


@given(lengths_of, worlds, st.integers(1, 7), st.booleans(), st.integers(1, 4), st.integers(0, 2**64 - 1))
def test_batches_of_a_bucket_hold_one_bucket_and_so_do_all_ranks_of_a_step(
    lengths: list[int], world: World, size: int, drops: bool, kinds: int, key: int
) -> None:
    buckets = [number * 7 % kinds for number in range(len(lengths))]
    rule = Rule(most=size, drops=drops)
    plan = plan_block(samples_of(lengths, world, buckets=buckets), rule, world, key)
    for step in batches(plan, world):
        assert len({buckets[number] for chosen, _ in step for number in chosen}) == 1
        assert all(1 <= len(chosen) <= size for chosen, _ in step)
    times = Counter(plan.samples.tolist())
    if drops:
        assert len(lengths) - len(times) < kinds * world.num_replicas * size
    else:
        assert set(times) == set(range(len(lengths)))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200), worlds, st.integers(1, 9))
def test_groups_of_like_lengths_are_those_of_a_sorted_list(lengths: list[int], world: World, size: int) -> None:
    plan = plan_block(samples_of(lengths, world), Rule(most=size), world, 5)
    for rank in range(world.num_replicas):
        spans = sorted(
            (min(found), max(found))
            for step in range(plan.steps)
            if (found := [lengths[number] for number in batch_of(plan, step, rank)[0].tolist()])
        )
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))


@given(st.lists(st.integers(1, 60), max_size=80), st.integers(1, 9), st.integers(30, 90), st.integers(1, 12))
def test_each_length_goes_into_the_emptiest_bin_as_if_put_there_one_by_one(
    lengths: list[int], bins: int, budget: int, most: int
) -> None:
    lengths.sort(reverse=True)
    for drops in (False, True):
        loads, counts, expected = [0] * bins, [0] * bins, []
        for length in lengths:
            open_bins = (number for number in range(bins) if counts[number] < most)
            least = min(open_bins, key=lambda number: (loads[number], number), default=-1)
            if least < 0 or loads[least] + length > budget:
                if not drops:
                    break
                expected.append(-1)
                continue
            loads[least] += length
            counts[least] += 1
            expected.append(least)
        expected += [-1] * (len(lengths) - len(expected))
        assert _spread(np.array(lengths, np.int64), bins, budget, most, drops=drops).tolist() == expected


def test_groups_are_even_over_the_ranks_of_a_node_and_nearly_so_over_nodes() -> None:
    lengths = np.random.default_rng(0).lognormal(6, 1, 32 * 16 * 64).astype(np.int64) + 1
    for per_node, most in ((16, 1.001), (8, 1.02)):
        world = World(16, per_node)
        lanes, places = np.arange(len(lengths)) % 16, np.arange(len(lengths)) // 16
        shards = lanes * 16 + places % 16
        known = BlockSamples(lengths, lanes, shards=shards)
        plan = plan_block(known, Rule(most=32), world, 3)
        ends = np.concatenate(([0], np.cumsum(lengths[plan.samples])))
        loads = (ends[plan.bounds[1:]] - ends[plan.bounds[:-1]]).reshape(plan.steps, 16)
        assert (np.diff(plan.bounds) == 32).all()
        assert (loads.max(axis=1) / loads.mean(axis=1)).mean() < most


def test_batches_of_a_bucket_that_is_not_full_have_one_sample_more_in_the_same_steps_on_all_ranks() -> None:
    owners = np.repeat(np.arange(4), [312, 315, 318, 319])  # so few samples more stay with their node
    samples = BlockSamples(np.ones(len(owners), np.int64), owners, shards=owners)
    plan = plan_block(samples, Rule(most=10), World(4), key=1)
    sizes = np.diff(plan.bounds).reshape(plan.steps, 4)
    assert sizes.sum(axis=0).tolist() == [312, 315, 318, 319]
    assert (sizes.max(axis=1) > sizes.min(axis=1)).sum() == 319 - 312


@pytest.mark.parametrize(("ranks", "per_node"), [(1, 1), (8, 8), (64, 8)])
def test_plans_of_lognormal_lengths_are_full_and_their_steps_are_even(ranks: int, per_node: int) -> None:
    rng = np.random.default_rng(ranks)
    world, budget = World(ranks, per_node), 16_384
    for steps, least in ((64, 0.984), (256, 0.994)):  # at 64 steps, one more takes 1.5 %
        count = steps * ranks * budget // 500
        lengths = np.clip(rng.lognormal(np.log(500) - 0.5, 1.0, count), 1, budget).astype(np.int64)
        if ranks == 64 and steps == 256:
            continue  # as the others, and it takes seconds
        known = BlockSamples(lengths, np.arange(count) % ranks)
        plan = plan_block(known, Rule(budget=budget), world, 3)
        ends = np.concatenate(([0], np.cumsum(lengths[plan.samples])))
        loads = (ends[plan.bounds[1:]] - ends[plan.bounds[:-1]]).reshape(plan.steps, ranks)
        assert loads.sum() / (plan.steps * ranks * budget) >= least
        assert (loads.max(axis=1) / loads.mean(axis=1)).mean() <= 1.01
        # No drift: the steps are in random order, not in that of costs or lengths.
        longest = [lengths[batch_of(plan, step, 0)[0]].max() for step in range(plan.steps)]
        assert abs(np.corrcoef(np.arange(plan.steps), longest)[0, 1]) < 0.4


@pytest.mark.parametrize("rule", [Rule(has_rows=True, budget=4096, most=4), Rule(budget=16_384)])
def test_a_block_that_is_full_but_for_a_few_tokens_needs_no_step_more(rule: Rule) -> None:
    for seed in (0, 2):
        drawn = np.random.default_rng(seed).lognormal(np.log(512) - 0.5, 1.0, 4000).clip(1, 4096).astype(np.int64)
        ends = np.cumsum(drawn)
        lengths = drawn[: np.searchsorted(ends, 64 * 16_384 * 0.9998)]
        known = BlockSamples(lengths, np.zeros(len(lengths), np.int64))
        plan = plan_block(known, rule, World(1), 3)
        assert plan.steps == 64
        cells = np.repeat(np.arange(64), np.diff(plan.bounds)) * 4 + plan.rows
        assert np.bincount(cells, lengths[plan.samples]).max() <= rule.budget
        assert sorted(plan.samples.tolist()) == list(range(len(lengths)))


def test_samples_move_within_a_node_before_they_move_between_nodes() -> None:
    # Rank 0 has far too much, and its neighbour on the node, rank 1, nearly nothing.
    lengths = np.array([100] * 40 + [1] * 40 + [50] * 40 + [50] * 40)
    owners = np.repeat([0, 1, 2, 3], 40)
    known = BlockSamples(lengths, owners)
    plan = plan_block(known, Rule(budget=500), World(4, 2), 3)
    for step in range(plan.steps):
        for rank in range(4):
            chosen = batch_of(plan, step, rank)[0]
            assert set((owners[chosen] // 2).tolist()) == {rank // 2}


@pytest.mark.parametrize(("budget", "digest"), [(0, "238baf44c8715c8e"), (16_000, "ad308380cd665f2a")])
def test_a_plan_stays_what_it_is(budget: int, digest: str) -> None:
    world, numbers = World(16, 4), np.arange(16 * 600)
    drawn = mix_keys(1, numbers)
    lengths = 1 + (drawn % 90).astype(np.int64) * (drawn // 90 % 90).astype(np.int64)
    owners = numbers % 16
    shards = owners * 12 + numbers // 16 % 12
    samples = BlockSamples(lengths, owners, shards=shards)
    plan = plan_block(samples, Rule(budget=budget, most=16), world, key=1)
    found = np.concatenate((plan.samples, plan.bounds)).astype("<i8")
    assert hashlib.sha256(found.tobytes()).hexdigest()[:16] == digest
