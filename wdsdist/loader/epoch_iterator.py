"""One iteration of a loader: batches in order from the workers, its position, its figures, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from wdsdist.errors import StateError
from wdsdist.loader.stats import EpochMeter
from wdsdist.loader.worker_iterator import Message, NotedBatch
from wdsdist.sampling.plan import Position, Reached

if TYPE_CHECKING:
    from wdsdist.loader.loader import StreamingDataLoader


class EpochIterator(Iterator[Any]):
    """One iteration of a loader. Nothing happens before the first ``next``, so that a late ``set_epoch`` counts."""

    _messages: Iterator[Message]
    """The batches in order, as they come from the workers."""
    meter: EpochMeter | None = None
    """Known, with the plan of the epoch, from the first batch on."""

    def __init__(self, loader: StreamingDataLoader[Any]) -> None:
        self._loader = loader
        self._number = loader._iterations
        self._group: list[Any] = []  # the rest of it, the next batch last
        self.position = Position(0)
        """After the batch that was delivered last."""
        self._failed = False

    def __next__(self) -> Any:
        if self._loader._iterations != self._number:
            raise StateError("this iterator was given up when the loader was iterated again: use the newer one")
        if self._failed:
            raise StateError("this iteration ended with an error: iterate the loader again, or load a state first")
        if self.meter is None:
            self._messages, self.meter = self._loader._begin()
            self._advance(self.meter.plan.reached(0))
        else:
            self.meter.ask()
        try:
            return self._deliver(self.meter)
        except StopIteration:
            raise
        except BaseException as error:
            # A failed worker has lost its place: what the others still hold would be an epoch with holes.
            self._failed = True
            self.meter.answer()
            self._loader._stop_workers(self._messages)
            if getattr(error, "is_of_worker", False):  # the frames of this process do not explain it
                raise error.with_traceback(None) from None
            raise

    def _deliver(self, meter: EpochMeter) -> Any:
        """Return the next batch; at the end, check that all came."""
        if not self._group:
            message = next(self._messages)
            meter.count(message.counted)
            for _ in range(1, 1 if message.batches else self._loader.num_workers):
                # Each worker says that it has no batch left, and what its cache has counted.
                meter.count(next(self._messages).counted)
            self._group = message.batches[::-1]
            if not self._group:
                if not self._loader.persistent_workers:
                    self._loader._stop_workers(self._messages)
                if not meter.plan.is_over(self.position):
                    raise StateError(f"the workers ended after {meter.batches:,} batches, before the epoch did")
                meter.answer()
                meter.finish()
                raise StopIteration
        batch, replaced, reached = self._group.pop(), None, None
        if self._loader.num_workers:
            from wdsdist.loader.ipc.failure import WorkerFailure

            if isinstance(batch, WorkerFailure):
                batch.reraise()
        if isinstance(batch, NotedBatch):
            batch, replaced, reached = batch
        if reached is None:
            reached = meter.plan.reached(meter.batches + 1)
        meter.answer(reached, replaced)
        self._advance(reached)
        return batch

    def _advance(self, reached: Reached) -> None:
        """Keep the position in the epoch after the batches that were delivered, for a checkpoint."""
        self.position = reached.position
        self._loader._progress.advance(reached.position)


class AcceleratedBatches(Iterator[Any]):
    """Iterate over a loader that Accelerate has prepared, as its own loaders do.

    Batches are on Accelerate's device. Meanwhile Accelerate can ask whether the current one is the last, which decides
    when accumulated gradients are applied. It holds no more than a weak reference to this.
    """

    end_of_dataloader = False
    remainder = -1
    """Samples that Accelerate's `gather_for_metrics` keeps of the last batch; -1 for all."""

    def __init__(self, batches: EpochIterator, *, non_blocking: bool) -> None:
        from accelerate.state import GradientState, PartialState

        self._batches = batches
        self._non_blocking = non_blocking
        self._gradients = GradientState()
        self._device = PartialState().device

    def __next__(self) -> Any:
        from accelerate.utils import send_to_device

        # An evaluation that was given up in between has left its references.
        others = [batches for batches in self._gradients.dataloader_references[1:] if batches not in (None, self)]
        self._gradients.dataloader_references = [None, *others]
        batch = send_to_device(next(self._batches), self._device, non_blocking=self._non_blocking)
        if self._batches.meter is not None:
            plan = self._batches.meter.plan
            self.end_of_dataloader = self._batches.position.consumed >= plan.num_samples
            self.remainder = plan.last_global_batch  # only marked padding comes last in what is gathered
        self._gradients.dataloader_references = [None, *others, self]
        return batch
