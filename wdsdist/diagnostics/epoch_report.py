"""What an epoch will be like, told before any data is there: batches, shards and bytes on each node, mixing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import check_integer
from wdsdist.diagnostics import mixing
from wdsdist.diagnostics.mixing import Mixing
from wdsdist.errors import ArgumentError
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import Order, OrderSettings, ShardOrder, epoch_order
from wdsdist.sampling.working_set import Readers, bytes_at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Who trains, and on what: all that a forecast needs."""

    counts: Int64s
    """int64 [shards]: samples in each."""
    sizes: Int64s
    """int64 [shards]: bytes of each."""
    settings: OrderSettings
    plan: EpochPlan
    ranks_per_node: int
    epoch: int = 0

    def __post_init__(self) -> None:
        check_integer("ranks_per_node", self.ranks_per_node, 1)
        if not self.plan.num_samples:
            raise ArgumentError("there are 0 samples: a forecast needs at least one")

    def order(self) -> Order:
        """Return the order of the epoch."""
        return epoch_order(self.counts, self.settings, self.epoch)

    def readers(self) -> Readers:
        """Return what the ranks of one node read, all of it through a cache."""
        ranks = min(self.ranks_per_node, self.plan.num_replicas)
        return Readers(counts=self.counts, sizes=self.sizes, num_replicas=self.plan.num_replicas, ranks=ranks)

    def nodes(self) -> list[range]:
        """Return the ranks of each node."""
        ranks = range(self.plan.num_replicas)
        return [ranks[first : first + self.ranks_per_node] for first in range(0, len(ranks), self.ranks_per_node)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The figures of one epoch."""

    batches_per_rank: int
    samples_per_rank: int
    """Samples in those batches."""
    samples_dropped: int
    """Samples of the data set that no rank sees."""
    samples_repeated: int
    """Samples that are seen twice so that ranks are even."""
    shards_per_node: tuple[int, ...]
    """Shards that each node opens."""
    bytes_per_node: tuple[int, ...]
    """Bytes of those shards: what a node fetches when they are remote."""
    cache_bytes_per_rank: int
    """The most bytes of copies that a rank needs at once, for the current and the next window of its lanes."""
    cache_bytes_per_node: int
    """The same for all ranks of a node."""
    mixing: Mixing
    uniform: Mixing
    """The same figures for a uniform shuffle."""


def forecast(world: World) -> Forecast:
    """Tell what an epoch will be like. Memory and time grow with the shards and ranks, not with the samples.

    That does not hold for ``order="sampler"``, which holds an array of all samples, as ``DistributedSampler`` does.
    """
    plan, order = world.plan, world.order()
    per_rank = plan.samples_per_rank
    if plan.drop_last_batch:
        per_rank = plan.batches_per_rank * plan.batch_size
    taken = per_rank * plan.num_replicas
    opened = [np.unique(np.concatenate([_shards_of(order, plan, rank) for rank in ranks])) for ranks in world.nodes()]
    readers = world.readers()
    return Forecast(
        batches_per_rank=plan.batches_per_rank,
        samples_per_rank=per_rank,
        samples_dropped=max(0, plan.num_samples - taken),
        samples_repeated=max(0, taken - plan.num_samples),
        shards_per_node=tuple(len(shards) for shards in opened),
        bytes_per_node=tuple(int(world.sizes[shards].sum()) for shards in opened),
        cache_bytes_per_rank=bytes_at_once(readers, world.settings, ranks=1, epoch=world.epoch),
        cache_bytes_per_node=bytes_at_once(readers, world.settings, ranks=readers.ranks, epoch=world.epoch),
        mixing=mixing.measure(order, world.counts, plan),
        uniform=mixing.uniform(world.counts, plan),
    )


def _shards_of(order: Order, plan: EpochPlan, rank: int) -> Int64s:
    """Return the shards that a rank reads."""
    if not isinstance(order, ShardOrder):
        return np.unique(order.locate(np.arange(rank, plan.num_samples, plan.num_replicas))[0])
    lanes = order.lanes_of(rank, plan.num_replicas)
    return np.concatenate([order.lane_shards(lane, *order.lane_stretches(lane)[[0, -1]].tolist()) for lane in lanes])
