"""Report of an epoch before training: batches, shards and bytes per node, cache size, and how well its order mixes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import check_integer
from wdsdist.errors import ArgumentError
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import Order, OrderSettings, ShardOrder
from wdsdist.sampling.working_set import Readers, bytes_at_once
from wdsdist.storage.failures import policy

_MOST_BATCHES = 200
"""Batches of each rank that are measured for mixing, spread evenly over the epoch."""

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
    read: Int64s | None = None
    """int64 [shards]: bytes that an epoch reads of each; ``None`` where that is all."""
    ranges: Int64s | None = None
    """int64 [shards]: requests for these; 0 where all of a shard is fetched."""

    def __post_init__(self) -> None:
        check_integer("ranks_per_node", self.ranks_per_node, 1)
        if not self.plan.num_samples or not self.counts.any():
            raise ArgumentError("there are 0 samples: a forecast needs at least one")

    @property
    def read_sizes(self) -> Int64s:
        """int64 [shards]: bytes of each that an epoch fetches from a store."""
        return self.sizes if self.read is None else self.read

    @property
    def requests(self) -> Int64s:
        """int64 [shards]: requests that fetch each from a store: one for each part or range, and one for its index."""
        whole = -(-self.sizes // policy().part_bytes)
        return 1 + (whole if self.ranges is None else np.where(self.ranges > 0, self.ranges, whole))

    def order(self) -> Order:
        """Return the order of the epoch."""
        assert self.plan.order is not None
        return self.plan.order()

    def readers(self) -> Readers:
        """Return the readers of one node, whose ranks read all shards through the cache."""
        ranks = min(self.ranks_per_node, self.plan.num_replicas)
        return Readers(counts=self.counts, sizes=self.read_sizes, num_replicas=self.plan.num_replicas, ranks=ranks)

    def nodes(self) -> list[range]:
        """Return the ranks of each node."""
        ranks = range(self.plan.num_replicas)
        return [ranks[first : first + self.ranks_per_node] for first in range(0, len(ranks), self.ranks_per_node)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """How well the samples of a rank are mixed."""

    same_shard: float
    """Share of neighbours in a batch that come from the same shard, 0 to 1."""
    moved: float
    """Mean distance between a sample's place in the data set and its place in the epoch, as a share of all samples."""
    batch_entropy: float
    """Mean entropy of the classes in a batch, in bits, if the data set were sorted by class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What an epoch reads, whatever its batches."""

    samples_dropped: int
    """Samples of the epoch that no rank has, or not all tokens of."""
    samples_repeated: int
    """Samples that come once more so that all ranks are even."""
    shards_per_node: tuple[int, ...]
    """Shards that each node opens."""
    bytes_per_node: tuple[int, ...]
    """Bytes of those shards, which each node fetches where they are remote."""
    requests_per_node: tuple[int, ...]
    """Requests that fetch them from a store, once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport(Reads):
    """Report of one epoch of batches of a fixed number of samples."""

    batches_per_rank: int
    samples_per_rank: int
    """Samples in the batches of a rank."""
    cache_bytes_per_rank: int
    """The most bytes of copies that a rank needs at once, for the current and the next window of its lanes."""
    cache_bytes_per_node: int
    """The same for all ranks of a node."""
    mixing: Mixing
    uniform: Mixing
    """Mixing of a uniform shuffle, for comparison."""


def epoch_report(world: World) -> EpochReport:
    """Report an epoch: batches, shards, bytes, cache size and mixing.

    Memory and time grow with the shards and ranks, not with the samples; except for ``order="sampler"``, which holds an
    array of all samples, as ``DistributedSampler`` does.
    """
    plan, order = world.plan, world.order()
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
        bytes_per_node=tuple(int(world.read_sizes[shards].sum()) for shards in opened),
        requests_per_node=tuple(int(world.requests[shards].sum()) for shards in opened),
        cache_bytes_per_rank=bytes_at_once(readers, world.settings, ranks=1, epoch=plan.epoch),
        cache_bytes_per_node=bytes_at_once(readers, world.settings, ranks=readers.ranks, epoch=plan.epoch),
        mixing=measure_mixing(order, world.counts, plan),
        uniform=uniform_mixing(world.counts, plan),
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


def measure_mixing(order: Order, counts: Int64s, plan: EpochPlan, *, ranks: int = 8, classes: int = 100) -> Mixing:
    """Measure how well the order of an epoch mixes, on some ranks and some of their batches.

    Args:
        order: the epoch's order, over shards of ``counts`` samples.
        counts: int64 [shards].
        plan: the epoch's batches.
        ranks: how many ranks to measure, spread evenly over the world.
        classes: classes of equal size by which the data set is assumed to be sorted, for the entropy.

    Figures that need a batch of two samples are NaN without one.
    """
    starts, total = np.cumsum(counts) - counts, int(counts.sum())
    same, moved, entropy = [], [], []
    chosen = np.unique(np.linspace(0, plan.batches_per_rank, _MOST_BATCHES, endpoint=False).astype(int))
    for rank in evenly(plan.num_replicas, ranks):
        for batch in chosen if plan.batches_per_rank else ():
            positions = plan.positions(rank=int(rank), batch=int(batch))
            shards, samples = order.locate(positions)
            numbers = starts[shards] + samples
            same.append(np.mean(shards[1:] == shards[:-1]) if len(shards) > 1 else np.nan)
            moved.append(float(np.mean(np.abs(numbers / total - positions / plan.num_samples))))
            entropy.append(_entropy(numbers * classes // total))
    return Mixing(
        same_shard=_mean(same),
        moved=_mean(moved),
        batch_entropy=_mean(entropy),
    )


def uniform_mixing(counts: Int64s, plan: EpochPlan, *, classes: int = 100, draws: int = 400) -> Mixing:
    """Return the mixing of a uniform shuffle: by formula, but the entropy by sampling (seeded).

    Sources: two random samples share shard s with probability (n_s / N)^2; two random places are N / 3 apart on
    average.
    """
    total = int(counts.sum())
    random = np.random.default_rng(0)
    size = min(plan.batch_size, total)
    batches = random.integers(0, classes, (draws, size))
    return Mixing(
        same_shard=float(np.sum((counts / total) ** 2)),
        moved=1 / 3,
        batch_entropy=_mean([_entropy(batch) for batch in batches]),
    )


def _entropy(labels: Int64s) -> float:
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(-np.sum(shares * np.log2(shares)))


def _mean(values: list[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")
