"""The contract of `Plan`, held to every implementation: batches of a fixed number, planned batches, and mixes of both.

Each promise is checked on worlds, workers and resumes that Hypothesis draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import fewer
from tests.support.orders import epoch_order_of
from wdsdist._util.array_types import Int64s
from wdsdist.batching.block_plan import Rule
from wdsdist.batching.planned_epoch import PlannedEpoch
from wdsdist.sampling.epoch_plan import FixedBatches
from wdsdist.sampling.mix_order import Deal, MixOrder
from wdsdist.sampling.order import Order, OrderSettings, epoch_order
from wdsdist.sampling.plan import Plan, Position, WorkerBatches, World

COUNTS = np.array([40, 0, 90, 7, 63])
FIRSTS = np.cumsum(COUNTS) - COUNTS
TOTAL = int(COUNTS.sum())
LENGTHS = np.random.default_rng(0).lognormal(3, 1, TOTAL).astype(np.int64).clip(0, 200)
SETTINGS = OrderSettings(seed=1, num_canonical_replicas=4, window=50)
START = Position(2)


def lengths(shards: Int64s, samples: Int64s) -> Int64s:
    found: Int64s = LENGTHS[FIRSTS[shards] + samples]
    return found


def mixed() -> Order:
    """Return an epoch in which each sample of both halves of the shards comes once: 130 and 70 of them."""
    halves = COUNTS[:3], COUNTS[3:]
    weights = tuple(Fraction(int(half.sum())) for half in halves)
    deal = Deal(weights, num_samples=TOTAL, lanes=4, seed=1, epoch=START.epoch)
    return MixOrder(deal, halves, [SETTINGS, SETTINGS])


ORDERS: dict[str, Callable[[], Order]] = {
    "shard": lambda: epoch_order(COUNTS, SETTINGS, START.epoch),
    "sampler": lambda: epoch_order(COUNTS, OrderSettings(name="sampler", seed=1), START.epoch),
    "mix": mixed,
}


@dataclass(frozen=True)
class Case:
    """An implementation, and the order that it plans."""

    order: str
    rule: Rule | None = None
    """How batches are planned; ``None`` for batches of a fixed number of samples."""
    mark_padding: bool = False

    def plan(self, world: World, position: Position = START) -> Plan:
        order = epoch_order_of(ORDERS[self.order]())
        if self.rule is None:
            fixed = FixedBatches(batch_size=6, drop_last=False, drop_last_batch=False, mark_padding=self.mark_padding)
            return fixed.plan(order, position, world)
        buckets = (lambda shards, samples: samples % 3) if self.rule.buckets else None
        rule = replace(self.rule, long="truncate", mark_padding=self.mark_padding)
        return PlannedEpoch(
            rule=rule, lengths=lengths, buckets=buckets, block_samples=70, order=order, world=world, start=position
        )


TOKENS = Rule(budget=400)
CASES = {
    "fixed": Case("shard"),
    "fixed, sampler": Case("sampler"),
    "fixed, mix": Case("mix"),
    "fixed, marked": Case("shard", mark_padding=True),
    "tokens": Case("shard", TOKENS),
    "tokens, mix": Case("mix", TOKENS),
    "tokens, marked": Case("sampler", TOKENS, mark_padding=True),
    "groups": Case("shard", Rule(most=5)),
    "buckets": Case("mix", Rule(most=5, buckets="thirds")),
    "rows": Case("shard", Rule(has_rows=True, budget=200, most=2)),
}
case_of = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
worlds = st.sampled_from([World(1), World(2, 2), World(3), World(6, 2), World(8, 4)])


def numbers(batch: Any) -> list[int]:
    """Return the numbers of the samples of a batch."""
    return (FIRSTS[batch.shards] + batch.samples).tolist()


def content(batch: Any) -> list[Any]:
    """Return all that a batch is made of."""
    arrays = [*batch[:4], *(batch.pieces or ())]
    return [None if array is None else array.tolist() for array in arrays]


def positions(plan: Plan, rank: int) -> list[Position]:
    """Return the position after each batch."""
    return [
        (plan.reached(number + 1) if batch.reached is None else batch.reached).position
        for number, batch in plan.batches(rank=rank)
    ]


@case_of
@fewer(10)
@given(world=worlds)
def test_ranks_have_equally_many_batches_and_all_together_each_sample_once(case: Case, world: World) -> None:
    plan = case.plan(world)
    ranks = [[batch for _, batch in plan.batches(rank=rank)] for rank in range(world.num_replicas)]
    count = sum(plan.steps()) if isinstance(plan, PlannedEpoch) else plan.count_batches()
    assert {len(batches) for batches in ranks} == {count}
    assert plan.batches_per_rank in (None, count)
    assert all(len(batch.shards) for batches in ranks for batch in batches)
    played = Counter(number for batches in ranks for batch in batches for number in numbers(batch))
    assert sorted(played) == list(range(TOTAL))
    if case.mark_padding:
        kept = [number for batches in ranks for batch in batches for number, is_padding in
                zip(numbers(batch), batch.padding.tolist(), strict=True) if not is_padding]  # fmt: skip
        assert sorted(kept) == list(range(TOTAL))


@case_of
@fewer(10)
@given(world=worlds, workers=st.integers(1, 4), group=st.integers(1, 3))
def test_workers_together_make_the_batches_of_one(case: Case, world: World, workers: int, group: int) -> None:
    rank = world.num_replicas - 1
    alone = [content(batch) for _, batch in case.plan(world).batches(rank=rank)]
    made = [
        list(case.plan(world).batches(rank=rank, part=WorkerBatches(worker, workers, group)))
        for worker in range(workers)
    ]
    received: list[tuple[int, Any]] = []
    size = 1  # a loader takes a group of each worker in turn, at first of one batch
    while any(made):
        for batches in made:
            received += batches[:size]
            del batches[:size]
        size = group
    assert [number for number, _ in received] == list(range(len(alone)))
    assert [content(batch) for _, batch in received] == alone


@case_of
@fewer(10)
@given(world=worlds, share=st.floats(0, 1))
def test_a_resume_on_the_same_world_has_the_batches_that_were_left(case: Case, world: World, share: float) -> None:
    rank = world.num_replicas // 2
    whole = [content(batch) for _, batch in case.plan(world).batches(rank=rank)]
    after = positions(case.plan(world), rank)
    done = int(share * len(whole))
    resumed = case.plan(world, after[done - 1] if done else START)
    assert [content(batch) for _, batch in resumed.batches(rank=rank)] == whole[done:]


@case_of
@fewer(3)
@given(hops=st.lists(st.tuples(worlds, st.integers(0, 12)), min_size=2, max_size=5), last=worlds)
def test_a_chain_of_resumes_on_other_worlds_has_each_sample_once(
    case: Case, hops: list[tuple[World, int]], last: World
) -> None:
    played: Counter[int] = Counter()
    position = START
    for world, steps in [*hops, (last, 10_000)]:
        plan = case.plan(world, position)
        after = {tuple(positions(plan, rank)) for rank in range(world.num_replicas)}
        assert len(after) == 1, "ranks have states of their own"
        reached = [position, *after.pop()]
        assert not any(plan.is_over(one) for one in reached[1:-1])
        done = min(steps, len(reached) - 1)
        for rank in range(world.num_replicas):
            for number, batch in case.plan(world, position).batches(rank=rank):
                if number < done:
                    played.update(numbers(batch))
        position = Position(*reached[done])
    assert case.plan(last).is_over(position)
    assert sorted(played) == list(range(TOTAL))
    assert played.total() - TOTAL <= 8 * 9 * (len(hops) + 1)  # repeated to make ranks even


@case_of
@fewer(5)
@given(world=worlds, skipped=st.integers(0, 5))
def test_the_shards_of_each_batch_are_named_no_later_than_it_needs_them(case: Case, world: World, skipped: int) -> None:
    rank = world.num_replicas - 1
    plan = case.plan(world)
    uses = [use for use in plan.uses(rank=rank, batch=skipped, waits=True) if use is not None]
    for number, batch in plan.batches(rank=rank):
        if number >= skipped:
            assert set(batch.shards.tolist()) <= {use.shard for use in uses if use.first <= number <= use.last}
    firsts = [use.first for use in uses]
    assert firsts == sorted(firsts) or isinstance(plan, PlannedEpoch)  # block by block
