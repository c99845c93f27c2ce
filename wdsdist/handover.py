"""What the main process tells its workers, through shared memory that outlives an epoch.

Persistent workers hold a copy of the data set that was made when they started; an epoch or a position that is decided
later reaches them here.
"""

from __future__ import annotations

import copy
import mmap
import os
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields
from typing import Any

from torch.utils.data import get_worker_info

from wdsdist.errors import LoaderStateError
from wdsdist.memory import AnonymousMemory, is_spawning
from wdsdist.progress import Progress
from wdsdist.transport import Channel


class EpochRequest:
    """The epoch that ``set_epoch`` asked for, and how often one was asked for.

    >>> request, progress = EpochRequest(), Progress()
    >>> request.make(3)
    >>> request.pass_to(progress)
    >>> progress.position
    Position(epoch=3, consumed=0)
    """

    def __init__(self) -> None:
        self._numbers = SharedNumbers(2)  # the epoch, and how often one was asked for
        self._seen = 0

    def make(self, epoch: int) -> None:
        """Ask for an epoch."""
        made = self._numbers.read()[1]
        self._numbers.write([epoch, made + 1])

    def read(self) -> tuple[int, int]:
        """Return the epoch that was asked for last, and how often one was asked for."""
        epoch, made = self._numbers.read()
        return epoch, made

    @property
    def epoch(self) -> int:
        """The epoch that was asked for last; 0 where none was."""
        return self.read()[0]

    def watch(self) -> EpochRequest:
        """Return the same request for one more that answers it, also if it was made before."""
        watcher = copy.copy(self)
        watcher._seen = 0
        return watcher

    def pass_to(self, progress: Progress) -> None:
        """Tell ``progress`` of an epoch that was asked for since the last call."""
        epoch, made = self.read()
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
    group: int
    """Batches that a worker makes and sends together."""


class StartingPoint:
    """The `Start` of the current iteration: the loader writes it, then each worker reads it as it begins.

    >>> point = StartingPoint()
    >>> point.write(Start(epoch=1, consumed=0, rank=0, num_replicas=1, num_canonical_replicas=1, group=1))
    >>> point.read().epoch
    1
    """

    def __init__(self) -> None:
        self._numbers = SharedNumbers(len(fields(Start)))

    def write(self, start: Start) -> None:
        """Set where workers start next."""
        self._numbers.write(list(astuple(start)))

    def read(self) -> Start:
        """Return where to start.

        Raises `LoaderStateError` where no loader has said so.
        """
        numbers = self._numbers.read()
        if not any(numbers):
            raise LoaderStateError(
                "this is the data set of a loader: iterate the loader, or the data set it was made of"
            )
        return Start(**dict(zip((one.name for one in fields(Start)), numbers, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How a loader wants its batches made."""

    batch_size: int
    drop_last: bool
    """Whether a rank's last batch is dropped when it is not full."""
    collate_fn: Callable[[list[Any]], Any] | None
    channel: Channel
    start: StartingPoint = field(default_factory=StartingPoint)


class SharedNumbers:
    """Integers that a process shares with its data loading workers.

    Other processes that get a copy, such as ranks that are started with a data set as their argument, get numbers of
    their own: what one rank writes must not reach the workers of another.
    """

    def __init__(self, count: int) -> None:
        self._hold([0] * count)

    def _hold(self, numbers: list[int]) -> None:
        self._layout = struct.Struct(f"={len(numbers)}q")
        self._memory = AnonymousMemory()
        self._memory.allocate(0, self._layout.size)
        self._content = self._memory.map(0, self._layout.size)
        self._owner = os.getpid()
        self.write(numbers)
        _held.add(self)

    def read(self) -> list[int]:
        return list(self._layout.unpack_from(self._mine()))

    def write(self, numbers: list[int], *, at: int = 0) -> None:
        """Set the numbers from place ``at`` on."""
        struct.pack_into(f"={len(numbers)}q", self._mine(), at * 8, *numbers)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the other processes that share the numbers from locking them meanwhile."""
        self._mine()
        with self._memory.locked():
            yield

    def _mine(self) -> mmap.mmap:
        """Return the memory; a process that got it from another, and is no worker of that, takes one of its own."""
        if self._owner != os.getpid() and get_worker_info() is None:
            self._hold(list(self._layout.unpack_from(self._content)))
        return self._content

    def __reduce__(self) -> tuple[Any, ...]:
        self._mine()
        if is_spawning():
            return _same_numbers, (self._layout.size // 8, self._memory, self._owner)
        return _equal_numbers, (self.read(),)


def _same_numbers(count: int, memory: AnonymousMemory, owner: int) -> SharedNumbers:
    numbers = SharedNumbers.__new__(SharedNumbers)
    numbers._layout, numbers._memory, numbers._owner = struct.Struct(f"={count}q"), memory, owner
    numbers._content = memory.map(0, numbers._layout.size)
    _held.add(numbers)
    return numbers


def _equal_numbers(values: list[int]) -> SharedNumbers:
    numbers = SharedNumbers(len(values))
    numbers.write(values)
    return numbers


_held: weakref.WeakSet[SharedNumbers] = weakref.WeakSet()


def _hold_before_fork() -> None:
    # A rank that was forked itself shares with its workers, not with the workers of other ranks.
    for numbers in list(_held):
        numbers._mine()


os.register_at_fork(before=_hold_before_fork)
