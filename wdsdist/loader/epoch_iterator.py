"""One iteration of a loader: batches in order from the workers, its position, its figures, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from wdsdist.errors import StateError
from wdsdist.loader.stats import EpochMeter
from wdsdist.loader.worker_iterator import Message, NotedBatch
from wdsdist.sampling.plan import Plan, Position, Reached

if TYPE_CHECKING:
    from wdsdist.loader.bad_sample_log import BadSampleLog
    from wdsdist.loader.loader import StreamingDataLoader


class Epoch(NamedTuple):
    """The epoch that a loader iterates."""

    messages: Iterator[Message]
    """Its batches in order, as they come from the workers."""
    plan: Plan
    """Their number, and the position after each."""
    meter: EpochMeter
    bad_samples: BadSampleLog | None
    num_workers: int


class EpochIterator(Iterator[Any]):
    """One iteration of a loader. Nothing happens before the first ``next``, so that a late ``set_epoch`` counts."""

    def __init__(self, loader: StreamingDataLoader[Any]) -> None:
        self._loader = loader
        self._number = loader._iterations
        self.epoch: Epoch | None = None
        """Known from the first batch on."""
        self._group: list[Any] = []  # the rest of it, the next batch last
        self.position = Position(0)
        """After the batch that was delivered last."""
        self._failed = False

    def __next__(self) -> Any:
        if self._loader._iterations != self._number:
            raise StateError("this iterator was given up when the loader was iterated again: use the newer one")
        if self._failed:
            raise StateError("this iteration ended with an error: iterate the loader again, or load a state first")
        if self.epoch is None:
            self.epoch = self._loader._begin()
            self._advance(self.epoch.plan.reached(0))
        else:
            self.epoch.meter.ask()
        try:
            return self._deliver(self.epoch)
        except StopIteration:
            raise
        except BaseException as error:
            # A failed worker has lost its place: what the others still hold would be an epoch with holes.
            self._failed = True
            self.epoch.meter.answer()
            self._loader._stop_workers(self.epoch.messages)
            if getattr(error, "is_of_worker", False):  # the frames of this process do not explain it
                raise error.with_traceback(None) from None
            raise

    def _deliver(self, epoch: Epoch) -> Any:
        """Return the next batch; at the end, check that all came."""
        if not self._group:
            message = next(epoch.messages)
            epoch.meter.count(message.counted)
            for _ in range(1, 1 if message.batches else epoch.num_workers):
                # Each worker says that it has no batch left, and what its cache has counted.
                epoch.meter.count(next(epoch.messages).counted)
            self._group = message.batches[::-1]
            if not self._group:
                if not self._loader.persistent_workers:
                    self._loader._stop_workers(epoch.messages)
                if not epoch.plan.is_over(self.position):
                    raise StateError(f"the workers ended after {epoch.meter.batches:,} batches, before the epoch did")
                epoch.meter.answer()
                epoch.meter.finish()
                raise StopIteration
        batch, replaced, reached = self._group.pop(), None, None
        if epoch.num_workers:
            from wdsdist.loader.ipc.failure import WorkerFailure

            if isinstance(batch, WorkerFailure):
                batch.reraise()
        if isinstance(batch, NotedBatch):
            batch, replaced, reached = batch
        if reached is None:
            reached = epoch.plan.reached(epoch.meter.batches + 1)
        if replaced is not None and epoch.bad_samples is not None:
            epoch.bad_samples.add(replaced, epoch.meter.samples + reached.samples)
        self._advance(reached)
        epoch.meter.answer(reached, replaced.substitutes if replaced else 0)
        return batch

    def _advance(self, reached: Reached) -> None:
        """Keep the position in the epoch after the batches that were delivered, for a checkpoint."""
        self.position = reached.position
        self._loader._progress.advance(reached.position)
