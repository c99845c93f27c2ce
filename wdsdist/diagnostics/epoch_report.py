"""Report of an epoch before training: batches, shards and bytes per node, and the cache that it needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import check_integer
from wdsdist.errors import ArgumentError
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import Order, OrderSettings, ShardOrder
from wdsdist.sampling.working_set import Readers, bytes_at_once
from wdsdist.storage.policy import policy

_BLOCK = 1 << 20
"""Samples of a rank that are looked at together, where its shards are not known from its lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Input of an epoch report: shards, order, batches, world size and ranks per node."""

    counts: Int64s
    """int64 [shards]: samples in each."""
    sizes: Int64s
    """int64 [shards]: bytes of each."""
    settings: OrderSettings
    plan: EpochPlan
    """The batches of the epoch, with its order."""
    ranks_per_node: int

    def __post_init__(self) -> None:
        check_integer("ranks_per_node", self.ranks_per_node, 1)
        if not self.plan.num_samples or not self.counts.any():
            raise ArgumentError("there are 0 samples: a forecast needs at least one")

    @property
    def requests(self) -> Int64s:
        """int64 [shards]: requests that fetch each shard from a store: one for each part, and one for its index."""
        return 1 - (-self.sizes // policy().part_bytes)

    def order(self) -> Order:
        """Return the order of the epoch."""
        assert self.plan.order is not None
        return self.plan.order()

    def readers(self) -> Readers:
        """Return the readers of one node, whose ranks read all shards through the cache."""
        ranks = min(self.ranks_per_node, self.plan.num_replicas)
        return Readers(counts=self.counts, sizes=self.sizes, num_replicas=self.plan.num_replicas, ranks=ranks)

    def nodes(self) -> list[range]:
        """Return the ranks of each node."""
        ranks = range(self.plan.num_replicas)
        return [ranks[first : first + self.ranks_per_node] for first in range(0, len(ranks), self.ranks_per_node)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The batches of an epoch, and what the nodes read for them."""

    batches_per_rank: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport(Reads):
    """Report of one epoch of batches of a fixed number of samples."""

    samples_per_rank: int
    """Samples in the batches of a rank."""
    cache_bytes_per_rank: int
    """The most bytes that a rank needs in the cache at once, for the current and the next window of its lanes."""
    cache_bytes_per_node: int
    """The same for all ranks of a node."""


def epoch_report(world: World) -> EpochReport:
    """Report an epoch: batches, shards, bytes and cache size.

    Memory and time grow with the shards and ranks, not with the samples; except for ``order="sampler"``, which holds an
    array of all samples, as ``DistributedSampler`` does.
    """
    plan = world.plan
    per_rank = plan.samples_per_rank
    if plan.drop_last_batch:
        per_rank = plan.batches_per_rank * plan.batch_size
    taken = per_rank * plan.num_replicas
    opened = shards_of_nodes(world)
    readers = world.readers()
    return EpochReport(
        batches_per_rank=plan.batches_per_rank,
        samples_per_rank=per_rank,
        samples_dropped=max(0, plan.num_samples - taken),
        samples_repeated=max(0, taken - plan.num_samples),
        shards_per_node=tuple(len(shards) for shards in opened),
        bytes_per_node=tuple(int(world.sizes[shards].sum()) for shards in opened),
        requests_per_node=tuple(int(world.requests[shards].sum()) for shards in opened),
        cache_bytes_per_rank=bytes_at_once(readers, world.settings, ranks=1, epoch=plan.epoch),
        cache_bytes_per_node=bytes_at_once(readers, world.settings, ranks=readers.ranks, epoch=plan.epoch),
    )


def evenly(count: int, most: int) -> Int64s:
    """Return up to ``most`` of the numbers below ``count``, spread evenly, the first and the last among them.

    >>> evenly(3, 4).tolist(), evenly(101, 3).tolist(), evenly(0, 3).tolist()
    ([0, 1, 2], [0, 50, 100], [])
    """
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def shards_of_nodes(world: World) -> list[Int64s]:
    """Return the shards that each node opens in an epoch, in ascending order."""
    plan, order = world.plan, world.order()
    return [np.unique(np.concatenate([_shards_of(order, plan, rank) for rank in ranks])) for ranks in world.nodes()]


def _shards_of(order: Order, plan: EpochPlan, rank: int) -> Int64s:
    """Return the shards that a rank reads."""
    if not isinstance(order, ShardOrder):
        firsts = range(rank, plan.num_samples, _BLOCK * plan.num_replicas)
        ends = [min(first + _BLOCK * plan.num_replicas, plan.num_samples) for first in firsts]
        blocks = [np.arange(first, end, plan.num_replicas) for first, end in zip(firsts, ends, strict=True)]
        # A rank beyond the samples has no block.
        found = [np.zeros(0, np.int64), *(np.unique(order.locate(block)[0]) for block in blocks)]
        return np.unique(np.concatenate(found))
    lanes = order.lanes_of(rank, plan.num_replicas)
    return np.concatenate([order.lane_shards(lane, *order.lane_stretches(lane)[[0, -1]].tolist()) for lane in lanes])
