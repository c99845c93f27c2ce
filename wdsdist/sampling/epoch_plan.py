"""The epoch plan: which positions of the shuffled order each rank, batch and worker takes, as arithmetic.

Rank ``r`` of ``W`` takes positions ``r, r + W, r + 2W, ...``, padded or cut as ``DistributedSampler`` does; worker
``w`` of ``n`` makes that rank's batches ``w, w + n, ...``. The state of an epoch is one number, the samples that all
ranks have consumed; what is left is dealt anew to whatever ranks there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.sampling.order import Order

# Positions are turned into samples this many at a time: below, the fixed cost of the vector code dominates.
_BLOCK_SAMPLES = 4096


class Places(NamedTuple):
    """The samples of a batch, by shard and number, and the epochs that seed their transforms: int64 [batch] each."""

    shards: Int64s
    samples: Int64s
    epochs: Int64s


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
    def is_over(self) -> bool:
        """Whether nothing is left of the epoch."""
        return not self.batches_per_rank

    def is_complete(self, batches: int) -> bool:
        """Return whether so many batches are all."""
        return batches == self.batches_per_rank

    def samples_in(self, batches: int) -> int:
        """Return the samples of a rank's first batches."""
        return min(batches * self.batch_size, self.samples_per_rank)

    def consumed(self, batches: int) -> int:
        """Return the samples of the epoch that are consumed once every rank has taken ``batches`` batches.

        After the last batch that is all ``N``: samples that were dropped do not come again.
        """
        if batches >= self.batches_per_rank:
            return self.num_samples
        return min(self.start + batches * self.batch_size * self.num_replicas, self.num_samples)

    def positions(self, *, rank: int, batch: int) -> Int64s:
        """Return the positions that make one batch of one rank."""
        first = batch * self.batch_size
        steps = np.arange(first, min(first + self.batch_size, self.samples_per_rank), dtype=np.int64)
        return (self.start + steps * self.num_replicas + rank) % self.num_samples

    def batch_numbers(self, worker: int, num_workers: int, *, group: int = 1) -> Iterator[int]:
        """Yield the numbers of the batches that one worker makes.

        Batches are dealt to workers in groups: worker ``w`` of ``n`` has groups ``w, w + n, ...``, one after another.
        """
        for first in range(worker * group, self.batches_per_rank, num_workers * group):
            yield from range(first, min(first + group, self.batches_per_rank))

    def batches(
        self, order: Order, *, rank: int, worker: int = 0, num_workers: int = 1, group: int = 1
    ) -> Iterator[Places]:
        """Yield the batches that one worker of one rank makes."""
        mine = self.batch_numbers(worker, num_workers, group=group)
        at_once = max(1, _BLOCK_SAMPLES // self.batch_size)
        while block := list(islice(mine, at_once)):
            positions = [self.positions(rank=rank, batch=batch) for batch in block]
            together = np.concatenate(positions)
            cuts = np.cumsum([len(part) for part in positions])[:-1]
            found = (*order.locate(together), order.epochs(together))
            yield from map(Places, *(np.split(part, cuts) for part in found))
