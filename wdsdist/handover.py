"""What the main process tells its workers, through shared memory that outlives an epoch.

Persistent workers hold a copy of the data set that was made when they started; an epoch or a position that is decided
later reaches them here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields
from typing import Any

import torch

from wdsdist.progress import Progress


class EpochRequest:
    """The epoch that ``set_epoch`` asked for, and how often one was asked for.

    >>> request, progress = EpochRequest(), Progress()
    >>> request.make(3)
    >>> request.pass_to(progress)
    >>> progress.position
    Position(epoch=3, consumed=0)
    """

    def __init__(self) -> None:
        self._shared = _shared_numbers(2)
        self._seen = 0

    def make(self, epoch: int) -> None:
        """Ask for an epoch."""
        self._shared[0] = epoch
        self._shared[1] += 1

    def watch(self) -> EpochRequest:
        """Return the same request for one more that answers it, also if it was made before."""
        watcher = copy.copy(self)
        watcher._seen = 0
        return watcher

    def pass_to(self, progress: Progress) -> None:
        """Tell ``progress`` of an epoch that was asked for since the last call."""
        epoch, made = self._shared.tolist()
        if made != self._seen:
            self._seen = made
            progress.request(epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where an iteration starts, and for whom."""

    epoch: int
    consumed: int
    """Samples of the epoch that all ranks together have consumed before."""
    rank: int
    num_replicas: int
    num_canonical_replicas: int


class StartingPoint:
    """The `Start` of the current iteration: the loader writes it, then each worker reads it as it begins.

    >>> point = StartingPoint()
    >>> point.write(Start(epoch=1, consumed=0, rank=0, num_replicas=1, num_canonical_replicas=1))
    >>> point.read().epoch
    1
    """

    def __init__(self) -> None:
        self._shared = _shared_numbers(len(fields(Start)))

    def write(self, start: Start) -> None:
        """Set where workers start next."""
        self._shared.copy_(torch.tensor(astuple(start)))

    def read(self) -> Start:
        """Return where to start."""
        return Start(**dict(zip((one.name for one in fields(Start)), self._shared.tolist(), strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How a loader wants its batches made."""

    batch_size: int
    drop_last: bool
    """Whether a rank's last batch is dropped when it is not full."""
    collate_fn: Callable[[list[Any]], Any] | None
    start: StartingPoint = field(default_factory=StartingPoint)


def _shared_numbers(count: int) -> torch.Tensor:
    numbers = torch.zeros(count, dtype=torch.int64)
    return numbers.share_memory_()  # type: ignore[no-untyped-call, no-any-return]  # torch leaves it untyped
