"""The epoch plan: which positions of the shuffled order each rank, batch and worker takes, as arithmetic.

Rank ``r`` of ``W`` takes positions ``r, r + W, r + 2W, ...``, padded or cut as ``DistributedSampler`` does; worker
``w`` of ``n`` makes that rank's batches ``w, w + n, ...``. The state of an epoch is one number, the samples that all
ranks have consumed; what is left is dealt anew to whatever ranks there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.sampling.order import Order

if TYPE_CHECKING:
    from wdsdist.sampling.planned_epoch import Pieces, Reached

# Positions are turned into samples this many at a time: below, the fixed cost of the vector code dominates.
_BLOCK_SAMPLES = 4096


class BatchPlan(NamedTuple):
    """The samples of one batch of one rank, by shard and number there."""

    shards: Int64s
    samples: Int64s
    epochs: Int64s
    """int64 [batch] each; the epochs seed the transforms."""
    padding: npt.NDArray[np.bool_] | None = None
    """bool [batch]: which samples are repeated so that ranks are even; ``None`` where that is not to be told."""
    pieces: Pieces | None = None
    """Which tokens of each sample go into which row, where batches are rows of a fixed length."""
    reached: Reached | None = None
    """How far the epoch has come with it, where batches are planned by lengths or categories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """The batches of one epoch, or of its rest after a resume, on every rank.

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
    """Whether a rank's last batch is dropped when it is not full."""
    start: int = 0
    """``c``: samples of the epoch that are already consumed, by all ranks together."""
    mark_padding: bool = False
    """Whether the samples that are repeated are told from the others; they then end what ranks gather, see `line`."""

    @property
    def samples_per_rank(self) -> int:
        """Samples that each rank has to take, before whole batches are made of them."""
        left = max(self.num_samples - self.start, 0)
        return left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)

    @property
    def batches_per_rank(self) -> int:
        """Batches that each rank makes."""
        samples = self.samples_per_rank
        return samples // self.batch_size if self.drop_last_batch else -(-samples // self.batch_size)

    @property
    def last_global_batch(self) -> int:
        """Samples that ranks gather of the last batch, without the padding, which ends them with ``mark_padding``."""
        size = self.batch_size * self.num_replicas
        return min(size, self.num_samples - self.start - (self.batches_per_rank - 1) * size)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of the epoch."""
        return not self.batches_per_rank

    def is_complete(self, batches: int) -> bool:
        """Return whether so many batches are all."""
        return batches == self.batches_per_rank

    def samples_in(self, batches: int) -> int:
        """Return the samples of a rank's first batches."""
        return min(batches * self.batch_size, self.samples_per_rank)

    def share(self, batches: int) -> float:
        """Return the part of the whole epoch that is consumed with these batches, between 0 and 1."""
        return self.consumed(batches) / self.num_samples if self.num_samples else 1.0

    @property
    def fill(self) -> None:
        """Of planned batches only: how full they are."""
        return None

    @property
    def place(self) -> None:
        """Of planned batches only: the block that was reached."""
        return None

    def consumed(self, batches: int) -> int:
        """Return the samples of the epoch that are consumed once every rank has taken ``batches`` batches.

        After the last batch that is all ``N``: samples that were dropped do not come again.
        """
        if batches >= self.batches_per_rank:
            return self.num_samples
        return min(self.start + batches * self.batch_size * self.num_replicas, self.num_samples)

    def positions(self, *, rank: int, batch: int) -> Int64s:
        """Return the positions that make one batch of one rank."""
        return self.line(self._steps([batch]), rank=rank) % self.num_samples

    def line(self, steps: Int64s, *, rank: int) -> Int64s:
        """Return what a rank takes at some of its steps: position ``i % N`` for each ``i``, padding from ``N`` on.

        With ``mark_padding``, padding ends what the ranks gather of the last batch, in the order of ranks: frameworks
        cut it off there. So a rank before the last ones takes one of their samples in place of its padding.
        """
        found = self.start + steps * self.num_replicas + rank
        first = (self.batches_per_rank - 1) * self.batch_size
        size = self.samples_per_rank - first  # of the last batch, on each rank
        padding = self.start + self.samples_per_rank * self.num_replicas - self.num_samples
        is_last = self.mark_padding and padding > 0 and len(steps) and steps[-1] >= first
        if not is_last or size > self.batch_size:  # where padding lies in a batch that is dropped
            return found
        # By place among what is gathered. Padding is each rank's last sample, from a rank on; it is to be the tail.
        tail = np.arange(self.num_replicas * size - padding, self.num_replicas * size)
        given = tail[tail % size != size - 1]
        taken = np.arange(self.num_replicas - padding, self.num_replicas - padding + len(given)) * size + size - 1
        for here, there in ((given, taken), (taken, given)):
            mine = here // size == rank
            for place, other in zip(here[mine] % size, there[mine], strict=True):
                found[steps == first + place] = self.start + (first + other % size) * self.num_replicas + other // size
        return found

    def _steps(self, batches: Sequence[int]) -> Int64s:
        """Return the steps of a rank that some of its batches take; only the last batch of all may have fewer."""
        most = min(self.batch_size, self.samples_per_rank)  # of a batch that takes all, whatever its size
        steps = (np.array(batches)[:, None] * self.batch_size + np.arange(most)).ravel()
        return steps[steps < self.samples_per_rank]

    def batches(
        self, order: Order, *, rank: int, worker: int = 0, num_workers: int = 1, group: int = 1
    ) -> Iterator[tuple[int, BatchPlan]]:
        """Yield the batches that one worker of one rank makes, with their numbers.

        Batches are dealt to workers in groups: worker ``w`` of ``n`` has groups ``w, w + n, ...``, one after another.
        """
        total = self.batches_per_rank
        groups = range(worker * group, total, num_workers * group)
        mine = chain.from_iterable(range(first, min(first + group, total)) for first in groups)
        at_once = max(1, _BLOCK_SAMPLES // self.batch_size)
        while block := list(islice(mine, at_once)):
            line = self.line(self._steps(block), rank=rank)
            cuts = range(self.batch_size, len(line), self.batch_size)
            positions = line % self.num_samples
            found = (*order.locate(positions), order.epochs(positions))
            padding = np.split(line >= self.num_samples, cuts) if self.mark_padding else repeat(None)
            batches = map(BatchPlan, *(np.split(part, cuts) for part in found), padding)
            yield from zip(block, batches, strict=True)
