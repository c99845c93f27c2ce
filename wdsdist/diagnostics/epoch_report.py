"""Report of an epoch before training: batches, fill and balance, shards and bytes per node, and the cache it needs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import MOST_PROCESSES, check_integer
from wdsdist.batching.planned_epoch import PlannedEpoch, tokens_and_room
from wdsdist.errors import ArgumentError
from wdsdist.sampling.epoch_plan import EpochPlan, FixedBatches
from wdsdist.sampling.order import OrderConfig, OrderName, OrderSettings, ShardOrder
from wdsdist.sampling.plan import Batcher, Plan, Position, World
from wdsdist.sampling.shard_schedule import bytes_at_once
from wdsdist.storage.waiting import policy

if TYPE_CHECKING:
    from wdsdist.batching.values import Batches
    from wdsdist.shards.manifest import Manifest


class Epoch(NamedTuple):
    """An epoch of training."""

    config: OrderConfig
    settings: OrderSettings
    world: World
    batcher: Batcher
    plan: Plan


def epoch_of(
    manifest: Manifest,
    *,
    ranks: int,
    ranks_per_node: int = 1,
    batch_size: int = 64,
    batches: Batches | None = None,
    epoch: int = 0,
    order: OrderName = "shard",
    seed: int = 0,
    shuffle_window: int | None = None,
    cache_limit: int | None = None,
) -> Epoch:
    """Return the epoch that a loader with these options plans.

    Raises `ArgumentError` for an option out of its range, unknown columns, and samples that are too long.
    """
    check_integer("ranks", ranks, 1, MOST_PROCESSES)
    per_node = min(check_integer("ranks_per_node", ranks_per_node, 1), ranks)
    check_integer("epoch", epoch, 0, 2**40)
    config = OrderConfig(manifest=manifest, name=order, seed=seed, shuffle_window=shuffle_window)
    settings = config.settings(ranks)
    batcher: Batcher
    if batches is None:
        size = check_integer("batch_size", batch_size, 1)
        batcher = FixedBatches(batch_size=size, drop_last=False, drop_last_batch=True)
    else:
        batcher = batches.batcher(manifest)
        batcher.check_lengths()
    window = None if cache_limit is None else settings.window * settings.num_canonical_replicas
    block = batcher.block_samples(ranks, window)
    world = World(ranks, per_node)
    even = world if ranks % per_node == 0 else World(ranks)
    plan = batcher.plan(config.order(settings, epoch), Position(epoch), even, block=block)
    return Epoch(config, settings, world, batcher, plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """Report of one epoch."""

    batches_per_rank: int
    samples_per_rank: float
    """Samples in the batches of a rank; of planned batches on average."""
    samples_dropped: int
    """Samples of the epoch that no rank gets, or not with all tokens."""
    samples_repeated: int
    """Samples that come once more to make the ranks even."""
    shards_per_node: tuple[int, ...]
    """Shards that each node opens."""
    bytes_per_node: tuple[int, ...]
    """Bytes of those shards, which each node fetches if they are remote."""
    requests_per_node: tuple[int, ...]
    """Requests that fetch them from a store, once."""
    cache_bytes_per_rank: int
    """The most bytes that a rank needs in the cache at once, for the current and the next window of its lanes."""
    cache_bytes_per_node: int
    """The same for all ranks of a node."""
    fill: float | None = None
    """Planned batches: useful tokens over the tokens that fit, 0 to 1."""
    balance: float | None = None
    """Planned batches: the cost of the slowest rank of a step over the mean of its ranks, averaged over the steps."""


def epoch_report(plan: Plan, settings: OrderSettings, world: World, counts: Int64s, sizes: Int64s) -> EpochReport:
    """Report an epoch.

    Time and memory grow with the shards and ranks, not with the samples; but for ``order="sampler"``, which holds an
    array of all samples, and for planned batches, which take some microseconds for each sample.

    Args:
        plan: of the epoch: an `EpochPlan` or a `PlannedEpoch`.
        settings: of its order.
        world: the ranks, and how many share a node.
        counts: int64 [shards]: samples of each.
        sizes: int64 [shards]: bytes of each.

    Raises `ArgumentError` if there are no samples.
    """
    if not plan.num_samples:
        raise ArgumentError("there are 0 samples: a plan needs at least one")
    assert isinstance(plan, EpochPlan | PlannedEpoch)
    nodes = [world.node_of(rank) for rank in range(0, world.num_replicas, world.per_node)]
    figures, opened = _fixed(plan, nodes) if isinstance(plan, EpochPlan) else _planned(plan, nodes, len(counts))
    ranks = min(world.per_node, world.num_replicas)
    about = {"num_replicas": world.num_replicas, "epoch": plan.start.epoch}
    needed = functools.partial(bytes_at_once, counts, sizes, settings, **about)
    requests = 1 - (-sizes // policy.part_bytes)  # one for each part, and one for the index
    return EpochReport(
        **figures,
        shards_per_node=tuple(len(shards) for shards in opened),
        bytes_per_node=tuple(int(sizes[shards].sum()) for shards in opened),
        requests_per_node=tuple(int(requests[shards].sum()) for shards in opened),
        cache_bytes_per_rank=needed(ranks=1),
        cache_bytes_per_node=needed(ranks=ranks),
    )


def evenly(count: int, most: int) -> Int64s:
    """Return up to ``most`` of the numbers below ``count``, spread evenly, the first and the last among them.

    >>> evenly(3, 4).tolist(), evenly(101, 3).tolist(), evenly(0, 3).tolist()
    ([0, 1, 2], [0, 50, 100], [])
    """
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def _fixed(plan: EpochPlan, nodes: list[range]) -> tuple[dict[str, Any], list[Int64s]]:
    """Return the figures of batches of a fixed number of samples, and the shards that each node opens."""
    per_rank = plan.batches_per_rank * plan.batch_size if plan.drop_last_batch else plan.samples_per_rank
    taken = per_rank * plan.num_replicas
    figures = {
        "batches_per_rank": plan.batches_per_rank,
        "samples_per_rank": per_rank,
        "samples_dropped": max(0, plan.num_samples - taken),
        "samples_repeated": max(0, taken - plan.num_samples),
    }
    assert plan.order is not None
    order, opened = plan.order.make(), list[Int64s]()
    for ranks in nodes:
        shards = [np.zeros(0, np.int64)]
        if isinstance(order, ShardOrder):  # all shards of its lanes, which takes a thousandth of the time of their uses
            for lane in chain.from_iterable(order.lanes_of(rank, plan.num_replicas) for rank in ranks):
                if size := int(order.lane_stretches(lane)[-1]):
                    shards.append(order.lane_shards(lane, 0, size))
        else:
            shards += [np.array([use.shard for use in plan.uses(rank=rank) if use], np.int64) for rank in ranks]
        opened.append(np.unique(np.concatenate(shards)))
    return figures, opened


def _planned(plan: PlannedEpoch, nodes: list[range], num_shards: int) -> tuple[dict[str, Any], list[Int64s]]:
    """Return the figures of planned batches, by the lengths of their samples, and the shards that each node opens."""
    node_of = np.repeat(np.arange(len(nodes)), [len(ranks) for ranks in nodes])
    opened = np.zeros((len(nodes), num_shards), np.bool_)
    steps = samples = used = repeated = tokens = room = 0
    balance = 0.0
    for number in range(plan.first_block, plan.num_blocks):
        block = plan.block(number)
        counts = np.diff(block.bounds)
        batches = np.repeat(np.arange(len(counts)), counts)
        opened[node_of[batches % len(node_of)], block.shards] = True
        samples += len(block.shards)
        repeated += int(block.repeated.sum())
        used += int((~block.repeated & (block.starts == 0)).sum())  # a sample has all of its pieces, or none
        sizes = block.stops - block.starts
        useful, fitting = tokens_and_room(block.bounds, sizes, plan.rule)
        tokens, room = tokens + int(useful.sum()), room + int(fitting.sum())
        costs = np.bincount(batches, plan.rule.costs(sizes), len(counts)).reshape(block.steps, len(node_of))
        mean, most = costs.mean(axis=1), costs.max(axis=1, initial=0)
        balance += float(np.divide(most, mean, out=np.ones(len(mean)), where=mean > 0).sum())
        steps += block.steps
    figures = {
        "batches_per_rank": steps,
        "samples_per_rank": samples / len(node_of),
        "samples_dropped": plan.num_samples - plan.start.consumed - used,
        "samples_repeated": repeated,
        "fill": tokens / max(1, room),
        "balance": balance / max(1, steps),
    }
    return figures, [np.flatnonzero(row) for row in opened]
