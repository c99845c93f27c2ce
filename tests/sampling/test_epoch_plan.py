"""Who takes which positions: equal shares, the padding of DistributedSampler, and resumption without loss or repeat."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.orders import ordered
from wdsdist._util.array_types import Int64s
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import OrderSettings, epoch_order
from wdsdist.sampling.plan import Position, WorkerBatches

Batches = list[list[int]]


def plan_of(total: int, ranks: int, batch: int, drop_last: bool = False, drop_last_batch: bool = False) -> EpochPlan:
    return EpochPlan(
        num_samples=total, num_replicas=ranks, batch_size=batch, drop_last=drop_last, drop_last_batch=drop_last_batch
    )


plans = st.builds(plan_of, st.integers(0, 200), st.integers(1, 40), st.integers(1, 20), st.booleans(), st.booleans())


def positions(plan: EpochPlan, rank: int) -> Batches:
    """Return the positions of every batch of one rank."""
    return [plan.positions(rank=rank, batch=batch).tolist() for batch in range(plan.batches_per_rank)]


# Padding


def gathered(plan: EpochPlan, batch: int) -> Int64s:
    """Return what the ranks take of a batch, in the order of ranks; numbers from ``N`` on are padding."""
    first = batch * plan.batch_size
    steps = np.arange(first, min(first + plan.batch_size, plan.samples_per_rank))
    return np.concatenate([plan.line(steps, rank=rank) for rank in range(plan.num_replicas)])


@given(plans, st.floats(0, 1))
@example(plan_of(101, 2, 4), 0.0)
@example(plan_of(3, 8, 2), 0.0)  # ranks that have nothing but padding
@example(plan_of(41, 8, 5), 0.0)  # padding fills one rank's last batch, and reaches into the next
def test_marked_padding_ends_what_ranks_gather_and_all_else_comes_once(plan: EpochPlan, share: float) -> None:
    plan = replace(plan, drop_last=False, mark_padding=True, start=Position(0, int(share * plan.num_samples)))
    plain = replace(plan, mark_padding=False)
    for batch in range(plan.batches_per_rank):
        found, usual = gathered(plan, batch), gathered(plain, batch)
        assert sorted(found) == sorted(usual)  # each step consumes the same samples, so a state means the same
        kept = np.count_nonzero(found < plan.num_samples)
        assert (found[:kept] < plan.num_samples).all()
        if batch == plan.batches_per_rank - 1:
            assert kept == plan.last_global_batch
        else:
            assert found.tolist() == usual.tolist()
    if not plan.drop_last_batch:
        everything = np.concatenate([np.empty(0, int), *map(partial(gathered, plan), range(plan.batches_per_rank))])
        assert sorted(everything[everything < plan.num_samples]) == list(range(plan.start.consumed, plan.num_samples))


@given(plans)
def test_a_rank_without_padding_reads_at_most_one_sample_of_another_for_it(plan: EpochPlan) -> None:
    plan = replace(plan, drop_last=False, mark_padding=True)
    for rank in range(plan.num_replicas):
        steps = np.arange(min(plan.samples_per_rank, plan.batches_per_rank * plan.batch_size))
        line, usual = plan.line(steps, rank=rank), replace(plan, mark_padding=False).line(steps, rank=rank)
        assert np.count_nonzero(line != usual) <= 1 or (line >= plan.num_samples).any()


class _Counting:
    """An order that counts the positions it is asked for."""

    def __init__(self, total: int) -> None:
        self.num_samples = total
        self.asked = 0

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        self.asked += len(positions)
        return positions, positions, np.zeros_like(positions)


@pytest.mark.parametrize("batch", [1, 64, 5000])
def test_the_first_batch_of_a_large_epoch_costs_no_more_than_that_of_a_small_one(batch: int) -> None:
    order = _Counting(10**12)
    plan = plan_of(10**12, 8, batch)
    number, first = next(ordered(plan, order).batches(rank=3, part=WorkerBatches(1, 4)))
    assert number == 1
    assert first.shards.tolist() == [3 + 8 * (batch + i) for i in range(batch)]
    assert order.asked <= max(4096, batch)


# Another number of ranks


@pytest.mark.parametrize("total", [240, 250, 1000, 23])
@pytest.mark.parametrize("share", [24, 48])
def test_equal_global_batches_hold_the_same_samples_on_any_number_of_ranks(total: int, share: int) -> None:
    order = epoch_order(np.array([total]), OrderSettings(seed=1, num_canonical_replicas=24), 0)
    contents = []
    for ranks in (1, 2, 3, 4, 6, 8, 12, 24):
        plan = plan_of(total, ranks, share // ranks, drop_last=True, drop_last_batch=True)
        steps = zip(*(ordered(plan, order).batches(rank=rank) for rank in range(ranks)), strict=True)
        contents.append([sorted(int(n) for _, one in step for n in one.samples) for step in steps])
    assert len(contents[0]) == total // share
    assert all(content == contents[0] for content in contents)


# Resumption


@given(plans, st.data())
def test_a_resumed_epoch_makes_exactly_the_batches_that_were_left(plan: EpochPlan, data: st.DataObject) -> None:
    whole = {rank: positions(plan, rank) for rank in (0, plan.num_replicas - 1)}
    batches = plan.batches_per_rank
    for done in {0, min(1, batches), data.draw(st.integers(0, batches)), max(batches - 1, 0), batches}:
        rest = replace(plan, start=plan.reached(done).position if done else plan.start)
        assert rest.batches_per_rank == batches - done
        for rank, of_rank in whole.items():
            assert positions(rest, rank) == of_rank[done:]
