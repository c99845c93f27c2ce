"""One iteration of a loader: batches in order from the workers, its position, its figures, and its errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from wdsdist.errors import StateError
from wdsdist.loader.checkpoint import Left
from wdsdist.loader.ipc.channel import NotedBatch
from wdsdist.loader.ipc.failure import WorkerFailure, is_of_worker
from wdsdist.loader.stats import EpochMeter
from wdsdist.loader.worker_iterator import Message
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.planned_epoch import PlannedProgress
from wdsdist.shards.source import Counters

if TYPE_CHECKING:
    from wdsdist.loader.bad_sample_log import EpochBadSamples
    from wdsdist.loader.loader import StreamingDataLoader


class WorkerCounts:
    """What the caches of a loader's workers have counted. Apart from the loader, which a meter must not keep alive."""

    def __init__(self) -> None:
        self._total = Counters()

    def add(self, message: Message) -> None:
        """Add what a worker has counted."""
        if message.counted is not None:
            self._total = self._total.plus(message.counted)

    def read(self) -> Counters:
        """Return the sum over all workers."""
        return self._total


@dataclasses.dataclass(frozen=True, slots=True)
class Epoch:
    """The epoch that a loader iterates: batches from its workers, the epoch plan, and the meter of throughput."""

    messages: Iterator[Message]
    """Its batches in order, as they come from the workers."""
    plan: Left
    """Their number, and the position after each."""
    meter: EpochMeter
    bad_samples: EpochBadSamples | None
    num_workers: int
    counts: WorkerCounts

    def receive(self) -> list[Any]:
        """Return the next group of batches in reverse, the first one last; empty at the end of the epoch."""
        message = next(self.messages)
        for _ in range(1, 1 if message.batches else self.num_workers):
            self.counts.add(message)
            message = next(self.messages)  # each worker says that it has none left, and what it has counted
        self.counts.add(message)
        group: list[Any] = message.batches
        return group[::-1]


class EpochIterator(Iterator[Any]):
    """One iteration of a loader. Nothing happens before the first ``next``, so that a late ``set_epoch`` counts."""

    def __init__(self, loader: StreamingDataLoader[Any]) -> None:
        self._loader = loader
        self._number = loader._iterations
        self._epoch: Epoch | None = None
        self._group: list[Any] = []  # what is left of it, the next batch last
        self._delivered = 0
        self._failed = False

    @property
    def plan(self) -> EpochPlan | None:
        """The plan of the epoch, once that has begun; ``None`` for planned batches."""
        plan = None if self._epoch is None else self._epoch.plan
        return plan if isinstance(plan, EpochPlan) else None

    def __next__(self) -> Any:
        if self._loader._iterations != self._number:
            raise StateError("this iterator was given up when the loader was iterated again: use the newer one")
        if self._failed:
            raise StateError("this iteration ended with an error: iterate the loader anew, or load a state first")
        if self._epoch is None:
            self._epoch = self._loader._begin()
            self._advance(self._epoch)
        else:
            self._epoch.meter.ask()
        try:
            return self._deliver(self._epoch)
        except StopIteration:
            raise
        except BaseException as error:
            # A failed worker has lost its place: what the others still hold would be an epoch with holes.
            self._failed = True
            self._epoch.meter.answer(self._delivered)
            self._loader._stop_workers(self._epoch.messages)
            if is_of_worker(error):
                raise error.with_traceback(None) from None
            raise

    def _deliver(self, epoch: Epoch) -> Any:
        """Return the next batch; at the end, check that none was missing."""
        if not self._group:
            self._group = epoch.receive()
            if not self._group:
                self._loader._end_epoch(epoch)
                if not epoch.plan.is_complete(self._delivered):
                    raise StateError(
                        f"the workers ended after {self._delivered:,} of {epoch.plan.batches_per_rank:,} batches"
                    )
                epoch.meter.answer(self._delivered)
                epoch.meter.finish()
                raise StopIteration
        batch, replaced = self._group.pop(), None
        if isinstance(batch, WorkerFailure):
            batch.reraise()
        if isinstance(batch, NotedBatch):
            batch, replaced, reached = batch.batch, batch.replaced, batch.reached
            if isinstance(epoch.plan, PlannedProgress) and reached is not None:
                epoch.plan.add(reached)
            if replaced is not None and epoch.bad_samples is not None:
                epoch.bad_samples.add(replaced, epoch.plan.samples_in(self._delivered + 1))
        self._delivered += 1
        self._advance(epoch)
        epoch.meter.answer(self._delivered, replaced.places if replaced else 0)
        return batch

    def _advance(self, epoch: Epoch) -> None:
        """Keep the position in the epoch after the batches that were delivered, for a checkpoint."""
        self._loader._progress.advance(epoch.plan.consumed(self._delivered), epoch.plan.place)
