"""What an epoch will be like, told before any data is there: batches, shards and bytes on each node, mixing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from wdsdist import mixing
from wdsdist.checks import check_integer
from wdsdist.errors import ArgumentError
from wdsdist.mixing import Mixing
from wdsdist.order import Order, OrderSettings, ShardOrder, epoch_order
from wdsdist.permutation import Int64s
from wdsdist.plan import EpochPlan


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
    cache_bytes_per_node: int
    """The most bytes of shards that a node needs at once, for the current and the next window of its ranks."""
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
    opened, needed = [], []
    for ranks in world.nodes():
        steps = [_windows_of(order, plan, rank) for rank in ranks]
        windows = [np.unique(np.concatenate(parts)) for parts in zip_longest(*steps, fillvalue=np.arange(0))]
        opened.append(np.unique(np.concatenate([*windows, np.arange(0)])))
        needed.append(max((_bytes(world, pair) for pair in zip_longest(windows, windows[1:])), default=0))
    return Forecast(
        batches_per_rank=plan.batches_per_rank,
        samples_per_rank=per_rank,
        samples_dropped=max(0, plan.num_samples - taken),
        samples_repeated=max(0, taken - plan.num_samples),
        shards_per_node=tuple(len(shards) for shards in opened),
        bytes_per_node=tuple(int(world.sizes[shards].sum()) for shards in opened),
        cache_bytes_per_node=max(needed),
        mixing=mixing.measure(order, world.counts, plan),
        uniform=mixing.uniform(world.counts, plan),
    )


def _windows_of(order: Order, plan: EpochPlan, rank: int) -> list[Int64s]:
    """Return the shards that a rank needs, window after window; all of them at once where there are no windows."""
    if not isinstance(order, ShardOrder):
        positions = np.arange(rank, plan.num_samples, plan.num_replicas)
        return [np.unique(order.locate(positions)[0])]
    # Striding over the positions by W, a rank meets the lanes that agree with it modulo the common divisor.
    stride = math.gcd(order.num_lanes, plan.num_replicas)
    lanes = [order.lane_windows(lane) for lane in range(rank % stride, order.num_lanes, stride)]
    return [np.unique(np.concatenate(parts)) for parts in zip_longest(*lanes, fillvalue=np.arange(0))]


def _bytes(world: World, windows: tuple[Int64s | None, ...]) -> int:
    shards = np.unique(np.concatenate([shards for shards in windows if shards is not None]))
    return int(world.sizes[shards].sum())
