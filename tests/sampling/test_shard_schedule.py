"""What a rank needs next: held to the epoch itself, batch by batch."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.orders import counts_of_shards, order_settings, ordered
from wdsdist._util.array_types import Int64s
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.mix_order import Deal, MixOrder
from wdsdist.sampling.order import Order, OrderSettings, ShardOrder, epoch_order
from wdsdist.sampling.plan import Position
from wdsdist.sampling.shard_schedule import upcoming


class Counting(ShardOrder):
    """An order that counts the samples that are looked at."""

    looked_at = 0

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        self.looked_at += len(positions)
        return super().locate(positions)


@st.composite
def epochs(draw: st.DrawFn) -> tuple[Order, EpochPlan]:
    counts = draw(counts_of_shards)
    plan = EpochPlan(
        num_samples=int(counts.sum()),
        num_replicas=draw(st.integers(1, 6)),
        batch_size=draw(st.integers(1, 10)),
        drop_last=draw(st.booleans()),
        drop_last_batch=draw(st.booleans()),
        start=Position(0, draw(st.integers(0, int(counts.sum())))),
        mark_padding=draw(st.booleans()),
    )
    return epoch_order(counts, draw(order_settings), 3), plan


def walked(order: Order, plan: EpochPlan, rank: int, batch: int) -> list[set[int]]:
    """Return the shards of each batch of a rank from ``batch`` on, by making the batches."""
    return [set(one.shards.tolist()) for _, one in islice(ordered(plan, order).batches(rank=rank), batch, None)]


def first_uses(batches: list[set[int]], batch: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for number, shards in enumerate(batches, batch):
        for shard in shards:
            found.setdefault(shard, number)
    return found


@given(epochs(), st.data())
def test_it_names_each_shard_at_the_batch_that_first_needs_it(
    epoch: tuple[Order, EpochPlan], data: st.DataObject
) -> None:
    order, plan = epoch
    rank = data.draw(st.integers(0, plan.num_replicas - 1))
    batch = data.draw(st.integers(0, plan.batches_per_rank))
    told: dict[int, int] = {}
    uses = list(upcoming(order, plan, rank=rank, batch=batch))
    for use in uses:
        told.setdefault(use.shard, use.first)
    assert told == first_uses(walked(order, plan, rank, batch), batch)
    assert [use.first for use in uses] == sorted(use.first for use in uses)


def test_it_names_the_shard_of_the_sample_that_ranks_exchange_where_padding_is_marked() -> None:
    order = epoch_order(np.array([100, 100, 99, 99]), OrderSettings(shuffle=False, num_canonical_replicas=4), 0)
    plan = EpochPlan(
        num_samples=398, num_replicas=4, batch_size=5, drop_last=False, drop_last_batch=False, mark_padding=True
    )
    told = [{use.shard for use in upcoming(order, plan, rank=rank)} for rank in range(4)]
    assert told == [{0}, {1}, {2, 3}, {3, 0, 1}]  # the last rank reads the first two samples again, as padding


@given(epochs(), st.data())
def test_each_batch_reads_from_the_windows_that_it_lies_in(epoch: tuple[Order, EpochPlan], data: st.DataObject) -> None:
    order, plan = epoch
    rank = data.draw(st.integers(0, plan.num_replicas - 1))
    uses = list(upcoming(order, plan, rank=rank))
    for number, shards in enumerate(walked(order, plan, rank, 0)):
        assert shards <= {use.shard for use in uses if use.first <= number <= use.last}


def test_what_a_mix_has_left_behind_is_not_needed_any_more() -> None:
    counts = np.full(30, 40)
    deal = Deal((Fraction(1), Fraction(1)), num_samples=2400, lanes=1, seed=0, epoch=0)
    order = MixOrder(deal, (counts, counts), [OrderSettings(window=40)] * 2)
    plan = EpochPlan(num_samples=2400, num_replicas=1, batch_size=8, drop_last=True, drop_last_batch=True)
    uses = list(upcoming(order, plan, rank=0))
    needed = [{use.shard for use in uses if use.first <= batch <= use.last} for batch in range(plan.batches_per_rank)]
    assert all(shards <= named for shards, named in zip(walked(order, plan, 0, 0), needed, strict=True))
    assert (
        max(map(len, needed)) < 25
    )  # of 60, all in one block; at once a batch needs 2 to 4, and 512 samples reach over 13


def test_the_next_shards_of_a_billion_samples_are_told_by_looking_at_few() -> None:
    order = Counting(np.full(100_000, 10_000), OrderSettings(window=160_000, num_canonical_replicas=64), 0)
    plan = EpochPlan(num_samples=10**9, num_replicas=64, batch_size=256, drop_last=True, drop_last_batch=True)
    uses = list(islice(upcoming(order, plan, rank=7, batch=30_000), 32))
    assert len({use.shard for use in uses}) >= 30
    assert uses[0].first == 30_000
    assert order.looked_at < 3000


@pytest.mark.parametrize(("shards", "samples"), [(64, 10**6), (10_000, 1000)])
def test_the_first_shards_of_an_epoch_are_told_by_looking_at_few_samples_however_large_its_first_window(
    shards: int, samples: int
) -> None:
    order = Counting(np.full(shards, samples), OrderSettings(window=10**8), 0)
    plan = EpochPlan(num_samples=shards * samples, num_replicas=1, batch_size=64, drop_last=True, drop_last_batch=True)
    uses = list(islice(upcoming(order, plan, rank=0), 64))
    assert len({use.shard for use in uses}) == 64
    assert order.looked_at < 20_000
    first = set(order.locate(plan.positions(rank=0, batch=0))[0].tolist())
    assert first <= {use.shard for use in uses}


@pytest.mark.parametrize("seed", range(5))
def test_the_shards_of_a_window_that_is_read_in_blocks_are_told_before_they_are_needed(seed: int) -> None:
    counts = np.random.default_rng(seed).integers(0, 2000, 12)
    total = int(counts.sum())
    order = epoch_order(counts, OrderSettings(window=9000, seed=seed, num_canonical_replicas=2), 1)
    plan = EpochPlan(num_samples=total, num_replicas=3, batch_size=7, drop_last=False, drop_last_batch=False)
    plan = replace(plan, start=Position(0, 91))
    for batch in (0, 40):
        uses = list(upcoming(order, plan, rank=2, batch=batch))
        for number, shards in enumerate(walked(order, plan, 2, batch), batch):
            assert shards <= {use.shard for use in uses if use.first <= number <= use.last}
