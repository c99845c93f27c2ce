"""A loader that Accelerate has prepared: what `Accelerator.prepare` reads of it, and its iteration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdsdist.loader.epoch_iterator import EpochIterator


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
        if (epoch := self._batches.epoch) is not None:
            self.end_of_dataloader = self._batches.position.consumed >= epoch.plan.num_samples
            self.remainder = epoch.plan.last_global_batch  # only marked padding comes last in what is gathered
        self._gradients.dataloader_references = [None, *others, self]
        return batch
