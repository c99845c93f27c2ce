"""The report of an epoch agrees with the epoch itself, sample by sample."""

from __future__ import annotations

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
from tests.support.orders import ordered
from wdsdist.diagnostics.epoch_report import World, epoch_report
from wdsdist.errors import ArgumentError
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import OrderSettings, ShardOrder, epoch_order
from wdsdist.storage import RequestPolicy, use_policy


@st.composite
def worlds(draw: st.DrawFn, **fixed: Any) -> World:
    counts = np.array(draw(st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any)))
    ranks = draw(st.integers(1, 6))
    settings = OrderSettings(
        name=fixed.get("name") or draw(st.sampled_from(["shard", "sampler"])),
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
        window=draw(st.integers(1, 60)),
        num_canonical_replicas=draw(st.integers(1, 8)),
    )
    plan = EpochPlan(
        num_samples=int(counts.sum()),
        num_replicas=ranks,
        batch_size=draw(st.integers(1, 10)),
        drop_last=False,
        drop_last_batch=draw(st.booleans()),
    )
    sizes = 1000 + np.arange(len(counts))
    ranks_per_node = draw(st.integers(1, 3))
    plan = ordered(replace(plan, epoch=3), epoch_order(counts, settings, 3))
    return World(counts=counts, sizes=sizes, settings=settings, plan=plan, ranks_per_node=ranks_per_node)


def seen(world: World) -> list[list[tuple[int, int]]]:
    """Return what each rank sees in the epoch."""
    found = []
    for rank in range(world.plan.num_replicas):
        batches = world.plan.batches(rank=rank)
        found.append([pair for _, one in batches for pair in zip(*(part.tolist() for part in one[:2]), strict=True)])
    return found


@given(worlds())
def test_it_counts_the_samples_and_batches_that_the_ranks_then_have(world: World) -> None:
    report, ranks = epoch_report(world), seen(world)
    counts = Counter(pair for rank in ranks for pair in rank)
    assert {len(rank) for rank in ranks} == {report.samples_per_rank}
    assert report.batches_per_rank == world.plan.batches_per_rank
    assert world.plan.num_samples - len(counts) == report.samples_dropped
    assert counts.total() - len(counts) == report.samples_repeated or report.samples_dropped
    assert report.samples_dropped == 0 or report.samples_repeated == 0


@given(worlds())
def test_it_names_at_least_the_shards_that_a_node_then_opens_and_no_more_than_a_whole_epoch_would(world: World) -> None:
    report = epoch_report(world)
    order = world.order()
    for node, ranks in enumerate(world.nodes()):
        whole = {
            int(shard)
            for rank in ranks
            for shard in order.locate(np.arange(rank, world.plan.num_samples, world.plan.num_replicas))[0]
        }
        # With C no multiple of W, a rank may miss a short lane's shard by the stride; then the report is high.
        exact = not isinstance(order, ShardOrder) or order.num_lanes % world.plan.num_replicas == 0
        assert report.shards_per_node[node] == len(whole) if exact else report.shards_per_node[node] >= len(whole)
        if exact:
            assert report.bytes_per_node[node] == sum(int(world.sizes[shard]) for shard in whole)
    assert report.cache_bytes_per_rank <= report.cache_bytes_per_node


@given(worlds(name="shard"))
def test_a_lane_reads_the_shards_of_one_stretch_after_another(world: World) -> None:
    order = world.order()
    assert isinstance(order, ShardOrder)
    for lane in range(order.num_lanes):
        read = order.locate(np.arange(lane, world.plan.num_samples, order.num_lanes))[0].tolist()
        stretches = order.lane_stretches(lane).tolist()
        assert stretches[0] == 0
        assert stretches[-1] == len(read)
        for begin, end in pairwise(stretches):
            assert set(read[begin:end]) == set(order.lane_shards(lane, begin, end).tolist())


def test_many_ranks_with_lanes_of_their_own_open_each_shard_little_more_than_once() -> None:
    counts = np.full(1000, 100)
    plan = EpochPlan(num_samples=100_000, num_replicas=64, batch_size=8, drop_last=False, drop_last_batch=True)
    settings = OrderSettings(window=1600, num_canonical_replicas=64)
    plan = ordered(plan, epoch_order(counts, settings, 0))
    report = epoch_report(World(counts=counts, sizes=counts, settings=settings, plan=plan, ranks_per_node=1))
    assert sum(report.shards_per_node) <= 1000 + 64


def test_an_epoch_makes_the_requests_that_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    data = wdsdist.pack(({"bin": bytes(3000)} for _ in range(120)), folder, shard_samples=40)
    plan = EpochPlan(num_samples=120, num_replicas=1, batch_size=8, drop_last=False, drop_last_batch=True)
    with MemoryStore({path.name: path.read_bytes() for path in folder.iterdir()}) as store:
        with use_policy(RequestPolicy(part_bytes=50_000)):
            plan = ordered(plan, epoch_order(data.counts, OrderSettings(), 0))
            world = World(
                counts=data.counts, sizes=data.sizes, settings=OrderSettings(), plan=plan, ranks_per_node=1
            )  # fmt: skip
            report = epoch_report(world)
            dataset = wdsdist.StreamingDataset(store.url, cache_dir=tmp_path / "cache")
            assert len(list(wdsdist.StreamingDataLoader(dataset, batch_size=8, num_workers=0))) == 15
        read = [request for request in store.requests if request.verb == "read" and ".tar" in request.path]
    assert min(data.sizes) > 2 * 50_000
    assert report.requests_per_node[0] == pytest.approx(len(read), rel=0.6)


def test_a_world_without_samples_is_refused() -> None:
    plan = EpochPlan(num_samples=0, num_replicas=1, batch_size=1, drop_last=False, drop_last_batch=True)
    with pytest.raises(ArgumentError, match="there are 0 samples"):
        World(counts=np.array([0]), sizes=np.array([1]), settings=OrderSettings(), plan=plan, ranks_per_node=1)
