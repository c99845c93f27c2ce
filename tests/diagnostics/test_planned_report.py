"""The report of planned batches agrees with the batches themselves, counted one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.orders import ordered
from wdsdist._util.array_types import Int64s
from wdsdist.batching.block_plan import Rule
from wdsdist.batching.planned_epoch import PlannedEpoch
from wdsdist.diagnostics.epoch_report import World
from wdsdist.diagnostics.planned_report import planned_report
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import OrderSettings, epoch_order
from wdsdist.sampling.plan import BatchPlan, Position
from wdsdist.sampling.plan import World as Ranks

COUNTS = np.array([40, 0, 90, 7, 63, 50])
FIRSTS = np.cumsum(COUNTS) - COUNTS
LENGTHS = np.random.default_rng(0).lognormal(3, 1, int(COUNTS.sum())).astype(np.int64).clip(1, 120)


def lengths(shards: Int64s, samples: Int64s) -> Int64s:
    found: Int64s = LENGTHS[FIRSTS[shards] + samples]
    return found


def planned(rule: Rule, ranks: int, per_node: int) -> tuple[World, PlannedEpoch]:
    plan = EpochPlan(num_samples=len(LENGTHS), num_replicas=ranks, batch_size=4, drop_last=False, drop_last_batch=False)
    settings = OrderSettings(seed=1, num_canonical_replicas=ranks, window=50)
    sizes = 1000 + np.arange(len(COUNTS))
    plan = ordered(plan, epoch_order(COUNTS, settings, 0))
    world = World(counts=COUNTS, sizes=sizes, settings=settings, plan=plan, ranks_per_node=per_node)
    assert plan.order is not None
    return world, PlannedEpoch(
        rule=rule,
        lengths=lengths,
        buckets=(lambda shards, samples: samples % 3) if rule.kind == "buckets" else None,
        block_samples=70,
        order=plan.order,
        world=Ranks(ranks, per_node),
        start=Position(0),
    )


RULES = [
    Rule(kind="tokens", budget=150, drops=True),
    Rule(kind="tokens", budget=150, most=3),
    Rule(kind="groups", most=4, drops=True),
    Rule(kind="buckets", most=4, drops=True),
    Rule(kind="rows", budget=60, most=2),
]


@given(st.sampled_from(RULES), st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 2), (6, 3)]))
def test_it_counts_what_the_ranks_then_have(rule: Rule, ranks: tuple[int, int]) -> None:
    world, epoch = planned(rule, *ranks)
    report, figures = planned_report(world, epoch)
    made = [[batch for _, batch in epoch.batches(rank=rank)] for rank in range(ranks[0])]
    assert {len(batches) for batches in made} == {report.batches_per_rank}
    samples, tokens = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    opened: list[set[int]] = [set() for _ in world.nodes()]
    balance = []
    for rank, batches in enumerate(made):
        for batch in batches:
            opened[rank // ranks[1]].update(batch.shards.tolist())
            of = list(zip(batch.shards.tolist(), batch.samples.tolist(), strict=True))
            samples.update(of)
            taken = lengths(batch.shards, batch.samples)
            if batch.pieces is not None:
                taken = batch.pieces.stops - batch.pieces.starts
            for one, length in zip(of, taken.tolist(), strict=True):
                tokens[one] += length
    for step in range(report.batches_per_rank):
        costs = [float(_tokens(batches[step])) for batches in made]
        balance.append(max(costs) / (sum(costs) / len(costs)))
    assert report.shards_per_node == tuple(len(shards) for shards in opened)
    assert report.bytes_per_node == tuple(sum(1000 + shard for shard in shards) for shards in opened)
    assert report.samples_dropped == len(LENGTHS) - len(samples)
    assert report.samples_per_step * report.batches_per_rank == pytest.approx(samples.total())
    assert figures.tokens.sum() == tokens.total()
    assert report.balance == pytest.approx(np.mean(balance))
    if rule.kind != "rows":
        assert report.samples_repeated == samples.total() - len(samples)
    if rule.budget:
        room = report.batches_per_rank * ranks[0] * rule.budget * (rule.most if rule.kind == "rows" else 1)
        assert report.fill == pytest.approx(tokens.total() / room)


def _tokens(batch: BatchPlan) -> int:
    pieces = batch.pieces
    return int((lengths(batch.shards, batch.samples) if pieces is None else pieces.stops - pieces.starts).sum())


def test_the_fill_of_groups_is_what_padding_to_the_longest_leaves() -> None:
    world, epoch = planned(Rule(kind="groups", most=4, drops=True), 2, 2)
    room = [
        len(found) * int(found.max())
        for rank in range(2)
        for _, batch in epoch.batches(rank=rank)
        if len(found := lengths(batch.shards, batch.samples))
    ]
    report, figures = planned_report(world, epoch)
    assert figures.room.sum() == sum(room)
    assert report.fill == pytest.approx(figures.tokens.sum() / sum(room))


def test_a_document_of_which_a_part_is_missing_counts_as_dropped_and_one_left_out_too() -> None:
    world, epoch = planned(Rule(kind="tokens", budget=100, drops=True, long="drop"), 2, 2)
    report, _ = planned_report(world, epoch)
    assert report.samples_dropped >= int((LENGTHS > 100).sum()) > 0
