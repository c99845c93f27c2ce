"""The report of an epoch agrees with the epoch itself, sample by sample, of fixed and of planned batches."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support.memory_store import MemoryStore
from tests.support.orders import counts_of_shards, order_settings, ordered
from tests.support.policies import use_policy
from wdsdist._util.array_types import Int64s
from wdsdist.batching.block_plan import Rule
from wdsdist.batching.planned_epoch import PlannedEpoch, tokens_and_room
from wdsdist.diagnostics.epoch_report import EpochReport, epoch_report
from wdsdist.errors import ArgumentError
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import OrderSettings, ShardOrder, epoch_order
from wdsdist.sampling.plan import BatchPlan, Position, World


class Epoch:
    """An epoch over shards of some counts, with the report of it."""

    def __init__(self, counts: Any, ranks: int, per_node: int, settings: OrderSettings, plan: EpochPlan) -> None:
        self.counts, self.sizes = np.array(counts), 1000 + np.arange(len(counts))
        self.world, self.settings = World(ranks, per_node), settings
        self.plan = ordered(plan, epoch_order(self.counts, settings, plan.start.epoch))
        assert self.plan.order is not None
        self.order = self.plan.order.make()

    @property
    def report(self) -> EpochReport:
        return epoch_report(self.plan, self.settings, self.world, self.counts, self.sizes)


@st.composite
def epochs(draw: st.DrawFn, name: Any = None) -> Epoch:
    counts, ranks, settings = draw(counts_of_shards), draw(st.integers(1, 6)), draw(order_settings)
    if name is not None:
        settings = replace(settings, name=name)
    plan = EpochPlan(
        num_samples=int(counts.sum()), num_replicas=ranks, batch_size=draw(st.integers(1, 10)), drop_last=False,
        drop_last_batch=draw(st.booleans()), start=Position(3),
    )  # fmt: skip
    return Epoch(counts, ranks, draw(st.integers(1, 3)), settings, plan)


@given(epochs())
def test_it_counts_the_samples_batches_and_shards_that_the_ranks_then_have(epoch: Epoch) -> None:
    report, plan = epoch.report, epoch.plan
    ranks = [
        [pair for _, batch in plan.batches(rank=rank) for pair in zip(*map(np.ndarray.tolist, batch[:2]), strict=True)]
        for rank in range(plan.num_replicas)
    ]
    counts = Counter(pair for rank in ranks for pair in rank)
    assert {len(rank) for rank in ranks} == {report.samples_per_rank}
    assert report.batches_per_rank == plan.batches_per_rank
    assert plan.num_samples - len(counts) == report.samples_dropped
    assert counts.total() - len(counts) == report.samples_repeated or report.samples_dropped
    assert report.samples_dropped == 0 or report.samples_repeated == 0
    for node, first in enumerate(range(0, plan.num_replicas, epoch.world.per_node)):
        members = epoch.world.node_of(first)
        positions = [np.arange(rank, plan.num_samples, plan.num_replicas) for rank in members]
        whole = set(epoch.order.locate(np.concatenate(positions))[0].tolist())
        # With C no multiple of W, a rank may miss a short lane's shard by the stride; then the report is high.
        exact = not isinstance(epoch.order, ShardOrder) or epoch.order.num_lanes % plan.num_replicas == 0
        if not isinstance(epoch.order, ShardOrder):
            whole = {shard for rank in members for shard, _ in ranks[rank]}
        assert report.shards_per_node[node] == len(whole) if exact else report.shards_per_node[node] >= len(whole)
        if exact:
            assert report.bytes_per_node[node] == sum(int(epoch.sizes[shard]) for shard in whole)
    assert report.cache_bytes_per_rank <= report.cache_bytes_per_node


@given(epochs(name="shard"))
def test_a_lane_reads_the_shards_of_one_stretch_after_another(epoch: Epoch) -> None:
    order = epoch.order
    assert isinstance(order, ShardOrder)
    for lane in range(order.num_lanes):
        read = order.locate(np.arange(lane, epoch.plan.num_samples, order.num_lanes))[0].tolist()
        stretches = order.lane_stretches(lane).tolist()
        assert (stretches[0], stretches[-1]) == (0, len(read))
        for begin, end in pairwise(stretches):
            assert set(read[begin:end]) == set(order.lane_shards(lane, begin, end).tolist())


def plan_of(num_samples: int, ranks: int = 1) -> EpochPlan:
    return EpochPlan(num_samples=num_samples, num_replicas=ranks, batch_size=8, drop_last=False, drop_last_batch=True)


def test_many_ranks_with_lanes_of_their_own_open_each_shard_little_more_than_once() -> None:
    settings = OrderSettings(window=1600, num_canonical_replicas=64)
    epoch = Epoch([100] * 1000, 64, 1, settings, plan_of(100_000, 64))
    assert sum(epoch.report.shards_per_node) <= 1000 + 64


def test_an_epoch_makes_the_requests_that_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    data = wdsdist.pack(({"bin": bytes(3000)} for _ in range(120)), folder, shard_samples=40)
    with MemoryStore({path.name: path.read_bytes() for path in folder.iterdir()}) as store:
        with use_policy(part_bytes=50_000):
            epoch = Epoch(data.counts, 1, 1, OrderSettings(), plan_of(120))
            epoch.sizes = data.sizes
            report = epoch.report
            dataset = wdsdist.StreamingDataset(store.url, cache_dir=tmp_path / "cache")
            assert len(list(wdsdist.StreamingDataLoader(dataset, batch_size=8, num_workers=0))) == 15
        read = [request for request in store.requests if request.verb == "read" and ".tar" in request.path]
    assert min(data.sizes) > 2 * 50_000
    assert report.requests_per_node[0] == pytest.approx(len(read), rel=0.6)


MEASURED = """
import sys
import numpy as np
from wdsdist.diagnostics.epoch_report import epoch_of, epoch_report
from wdsdist.shards.manifest import Manifest, Source
count = int(sys.argv[1])
unknown = np.full(count, -1)
manifest = Manifest(
    names=np.full(count, b".tar"), counts=np.full(count, 10_000), sizes=unknown, digests=np.zeros(count, "S1"),
    tar_sizes=unknown, sources=(Source(""),), source=np.zeros(count, np.int32),
)
epoch = epoch_of(manifest, ranks=512, ranks_per_node=8)
print(epoch_report(epoch.plan, epoch.settings, epoch.world, manifest.counts, np.full(count, 2**26)).batches_per_rank)
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


@pytest.mark.parametrize("shards", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_billion_samples_take_little_memory(shards: int) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURED, f"{shards}"], capture_output=True, text=True, check=True)
    batches, memory = map(int, done.stdout.split())
    assert batches == shards * 10_000 // 512 // 64
    assert memory < 200_000, "KiB: an array of all samples would take 800,000 and more"


def test_an_epoch_without_samples_is_refused() -> None:
    with pytest.raises(ArgumentError, match="there are 0 samples"):
        _ = Epoch([0], 1, 1, OrderSettings(), plan_of(0)).report


# Planned batches

COUNTS = np.array([40, 0, 90, 7, 63, 50])
FIRSTS = np.cumsum(COUNTS) - COUNTS
LENGTHS = np.random.default_rng(0).lognormal(3, 1, int(COUNTS.sum())).astype(np.int64).clip(1, 120)
RULES = [
    Rule(budget=150, drops=True),
    Rule(budget=150, most=3),
    Rule(most=4, drops=True),
    Rule(most=4, drops=True, buckets="cls"),
    Rule(has_rows=True, budget=60, most=2),
]


def lengths(shards: Int64s, samples: Int64s) -> Int64s:
    found: Int64s = LENGTHS[FIRSTS[shards] + samples]
    return found


def tokens(batch: BatchPlan) -> Int64s:
    pieces = batch.pieces
    return lengths(batch.shards, batch.samples) if pieces is None else pieces.stops - pieces.starts


def planned(rule: Rule, ranks: int, per_node: int) -> tuple[PlannedEpoch, EpochReport]:
    plan = EpochPlan(num_samples=len(LENGTHS), num_replicas=ranks, batch_size=4, drop_last=False, drop_last_batch=False)
    epoch = Epoch(COUNTS, ranks, per_node, OrderSettings(seed=1, num_canonical_replicas=ranks, window=50), plan)
    assert epoch.plan.order is not None
    made = PlannedEpoch(
        rule=rule,
        lengths=lengths,
        buckets=(lambda shards, samples: samples % 3) if rule.buckets else None,
        block_samples=70,
        order=epoch.plan.order,
        world=epoch.world,
        start=Position(0),
    )
    return made, epoch_report(made, epoch.settings, epoch.world, epoch.counts, epoch.sizes)


@given(st.sampled_from(RULES), st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 2), (6, 3)]))
def test_it_counts_what_the_ranks_then_have_of_planned_batches(rule: Rule, ranks: tuple[int, int]) -> None:
    plan, report = planned(rule, *ranks)
    made = [[batch for _, batch in plan.batches(rank=rank)] for rank in range(ranks[0])]
    assert {len(batches) for batches in made} == {report.batches_per_rank}
    samples = Counter[tuple[int, int]]()
    opened: list[set[int]] = [set() for _ in range(0, plan.world.num_replicas, plan.world.per_node)]
    useful = room = 0
    for rank, batches in enumerate(made):
        for batch in batches:
            opened[rank // ranks[1]].update(batch.shards.tolist())
            samples.update(zip(batch.shards.tolist(), batch.samples.tolist(), strict=True))
            part, fits = tokens_and_room(np.array([0, len(batch.shards)]), tokens(batch), rule)
            useful, room = useful + int(part.sum()), room + int(fits.sum())
    balance = []
    for step in range(report.batches_per_rank):
        costs = [float(tokens(batches[step]).sum()) for batches in made]
        balance.append(max(costs) / (sum(costs) / len(costs)))
    assert report.shards_per_node == tuple(len(shards) for shards in opened)
    assert report.bytes_per_node == tuple(sum(1000 + shard for shard in shards) for shards in opened)
    assert report.samples_dropped == len(LENGTHS) - len(samples)
    assert report.samples_per_rank * ranks[0] == pytest.approx(samples.total())
    assert report.balance == pytest.approx(np.mean(balance))
    assert report.fill == pytest.approx(useful / room)
    if rule.budget:
        assert room == report.batches_per_rank * ranks[0] * rule.room
    if not rule.has_rows:
        assert report.samples_repeated == samples.total() - len(samples)


def test_a_document_that_is_left_out_counts_as_dropped() -> None:
    _, report = planned(replace(RULES[0], budget=100, long="drop"), 2, 2)
    assert report.samples_dropped >= int((LENGTHS > 100).sum()) > 0
