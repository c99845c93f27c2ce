"""The epoch plan: which positions of the shuffled order each rank, batch and worker takes, as arithmetic.

Rank ``r`` of ``W`` takes positions ``r, r + W, r + 2W, ...``, padded or cut as ``DistributedSampler`` does; worker
``w`` of ``n`` makes that rank's batches ``w, w + n, ...``. The state of an epoch is one number, the samples that all
ranks have consumed; what is left is dealt again, to the ranks that there are then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import counted
from wdsdist.errors import ArgumentError
from wdsdist.sampling.order import EpochOrder
from wdsdist.sampling.plan import ALL_BATCHES, Batcher, BatchPlan, Position, Reached, WorkerBatches, World

if TYPE_CHECKING:
    from wdsdist.sampling.shard_schedule import Use

_LEAST_AT_ONCE, _MOST_AT_ONCE = 4096, 32_768
"""Positions that are turned into samples at once: twice as many each time, as the first batch waits for the first ones,
and of 4,096 the fixed cost of the vector code is a third."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """The batches of one epoch, or of its rest after a resume, on every rank: a `Plan`.

    >>> plan = EpochPlan(num_samples=10, num_replicas=4, batch_size=2, drop_last=False, drop_last_batch=False)
    >>> plan.samples_per_rank, plan.batches_per_rank
    (3, 2)
    >>> [plan.positions(rank=3, batch=k).tolist() for k in range(2)]  # position 11 is padding: 11 % 10
    [[3, 7], [1]]
    """

    num_samples: int
    """``N``: all samples of the epoch."""
    num_replicas: int
    """``W``: how many ranks share the samples."""
    batch_size: int
    """``B``: samples a batch on one rank."""
    drop_last: bool
    """Whether ranks are made even by dropping samples (true) or by repeating some (false)."""
    drop_last_batch: bool
    """Whether a rank's last batch is dropped if it is not full."""
    start: Position = field(default=Position(0))
    """The epoch, and ``c``, the samples of it that all ranks together have consumed already."""
    mark_padding: bool = False
    """Whether padding is marked. It then comes last in what the ranks gather, see `line`."""
    order: EpochOrder | None = field(default=None, repr=False, compare=False)
    """The order of the epoch; a plan without one counts batches, and has none."""

    @property
    def samples_per_rank(self) -> int:
        left = max(self.num_samples - self.start.consumed, 0)
        return left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)

    @property
    def batches_per_rank(self) -> int:
        samples = self.samples_per_rank
        return samples // self.batch_size if self.drop_last_batch else -(-samples // self.batch_size)

    def count_batches(self) -> int:
        return self.batches_per_rank

    @property
    def last_global_batch(self) -> int:
        """Samples, without padding, that the ranks gather of the last batch; -1 if padding is not marked."""
        if not self.mark_padding:
            return -1
        size = self.batch_size * self.num_replicas
        return min(size, self.num_samples - self.start.consumed - (self.batches_per_rank - 1) * size)

    def reached(self, batches: int) -> Reached:
        """Return how far the epoch has come after so many batches of each rank, at least one."""
        consumed = self.start.consumed + batches * self.batch_size * self.num_replicas
        if batches >= self.batches_per_rank:  # dropped samples do not come again
            consumed = self.num_samples
        left = self.samples_per_rank - (batches - 1) * self.batch_size
        return Reached(Position(self.start.epoch, min(consumed, self.num_samples)), min(self.batch_size, left))

    def is_over(self, position: Position) -> bool:
        return not replace(self, start=position).batches_per_rank

    def positions(self, *, rank: int, batch: int) -> Int64s:
        """Return the positions that make one batch of one rank."""
        return self.line(self._steps([batch]), rank=rank) % self.num_samples

    def line(self, steps: Int64s, *, rank: int) -> Int64s:
        """Return what a rank takes at some of its steps: position ``i % N`` for each ``i``, padding from ``N`` on.

        With ``mark_padding``, padding ends what the ranks gather of the last batch, in the order of ranks, so that
        frameworks can cut it off. A rank before the last ones therefore takes one of their samples in place of padding.
        """
        line = self.start.consumed + steps * self.num_replicas + rank
        first = (self.batches_per_rank - 1) * self.batch_size
        size = self.samples_per_rank - first  # of the last batch, on each rank
        padding = self.start.consumed + self.samples_per_rank * self.num_replicas - self.num_samples
        is_last = self.mark_padding and padding > 0 and len(steps) and steps[-1] >= first
        if not is_last or size > self.batch_size:  # then padding lies in a batch that is dropped
            return line
        # Gathered samples have numbers. Padding is the last sample of some ranks, and belongs at the tail.
        tail = np.arange(self.num_replicas * size - padding, self.num_replicas * size)
        given = tail[tail % size != size - 1]
        taken = np.arange(self.num_replicas - padding, self.num_replicas - padding + len(given)) * size + size - 1
        for own, other in ((given, taken), (taken, given)):
            mine = own // size == rank
            for offset, source in zip(own[mine] % size, other[mine], strict=True):
                line[steps == first + offset] = (
                    self.start.consumed + (first + source % size) * self.num_replicas + source // size
                )
        return line

    def _steps(self, batches: Sequence[int]) -> Int64s:
        """Return the steps of a rank that some of its batches take; only the last batch of all may have fewer."""
        most = min(self.batch_size, self.samples_per_rank)  # a batch that takes all has any size
        steps = (np.array(batches)[:, None] * self.batch_size + np.arange(most)).ravel()
        return steps[steps < self.samples_per_rank]

    def batches(self, *, rank: int, part: WorkerBatches = ALL_BATCHES) -> Iterator[tuple[int, BatchPlan]]:
        assert self.order is not None
        order, total = self.order.make(), self.batches_per_rank
        mine = takewhile(lambda number: number < total, part.numbers())
        at_once = _LEAST_AT_ONCE
        while block := list(islice(mine, max(1, at_once // self.batch_size))):
            at_once = min(2 * at_once, _MOST_AT_ONCE)
            line = self.line(self._steps(block), rank=rank)
            positions = line % self.num_samples
            columns = order.locate(positions)
            padding = line >= self.num_samples
            for index, number in enumerate(block):
                rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
                shards, samples, epochs = (column[rows] for column in columns)
                yield number, BatchPlan(shards, samples, epochs, padding[rows] if self.mark_padding else None)

    def uses(self, *, rank: int, batch: int = 0, waits: bool = False) -> Iterator[Use | None]:
        from wdsdist.sampling.shard_schedule import upcoming  # for shards that are fetched

        assert self.order is not None
        return upcoming(self.order.make(), self, rank=rank, batch=batch)


@dataclass(frozen=True, kw_only=True)
class FixedBatches(Batcher):
    """The rule of batches of a fixed number of samples, whose plans are `EpochPlan`."""

    batch_size: int
    drop_last: bool
    """As of `EpochPlan`, for the data set."""
    drop_last_batch: bool
    mark_padding: bool = False

    label = "a number of samples"
    is_plain = True

    def plan(self, order: EpochOrder, position: Position, world: World, *, block: int = 0) -> EpochPlan:
        return EpochPlan(
            num_samples=order.num_samples,
            num_replicas=world.num_replicas,
            start=position,
            order=order,
            **asdict(self),
        )

    def options(self, world: World) -> dict[str, Any]:
        return asdict(self)

    def check(self, num_samples: int, num_replicas: int) -> None:
        super().check(num_samples, num_replicas)
        if EpochPlan(num_samples=num_samples, num_replicas=num_replicas, **asdict(self)).batches_per_rank:
            return
        if self.drop_last and num_samples < num_replicas:
            raise ArgumentError(
                f"the data set has {num_samples:,} samples, fewer than there are ranks ({num_replicas:,}), and its "
                f"drop_last=True drops them all: pass drop_last=False to StreamingDataset, which repeats some",
                argument="drop_last",
            )
        raise ArgumentError(
            f"the data set has {counted(num_samples, 'sample')}, fewer than one global batch of "
            f"{self.batch_size * num_replicas:,} ({counted(num_replicas, 'rank')} x batch_size {self.batch_size}), and "
            f"drop_last=True drops them all: lower batch_size or pass drop_last=False",
            argument="batch_size",
        )
