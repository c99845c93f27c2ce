"""Progress in an epoch of planned batches: how far the batches that were handed out have come."""

from __future__ import annotations

from dataclasses import replace

from wdsdist.sampling.planned_epoch import Place, PlannedEpoch, Reached


class PlannedProgress:
    """How far the training loop has come in an epoch of planned batches, as the batches themselves tell."""

    def __init__(self, epoch: PlannedEpoch) -> None:
        self.epoch = epoch
        self._place = epoch.start
        self._samples = 0
        self._share = epoch.start.block / max(1, epoch.num_blocks)
        self.batches_per_rank = 0
        """Batches that are known of by now."""
        self.fill: float | None = None
        """How full the batches of the latest block are, between 0 and 1; ``None`` before the first one."""

    def add(self, reached: Reached) -> None:
        """Note a batch that was handed out."""
        self._place, self._share, self.fill = reached.place, reached.share, reached.fill
        self._samples += reached.samples
        self.batches_per_rank += 1

    def samples_in(self, batches: int) -> int:
        """Return the samples of the batches that were handed out."""
        return self._samples

    def share(self, batches: int) -> float:
        """Return the part of the epoch that is behind these batches, between 0 and 1, as if all blocks were alike."""
        return self._share

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of the epoch from its start on."""
        return self.epoch.start.block >= self.epoch.num_blocks

    def consumed(self, batches: int) -> Place:
        """Return the place after the batches that were handed out."""
        return self._place

    def is_complete(self, batches: int) -> bool:
        """Return whether these batches complete the epoch: only blocks without a step follow."""
        return not any(replace(self.epoch, start=self._place).steps())
