"""What the main process tells its workers, and they tell it, through shared memory that outlives an epoch.

Persistent workers hold a copy of the data set that was made when they started; an epoch or a position that is decided
later reaches them here, and what they count reaches the main process.
"""

from __future__ import annotations

import copy
import mmap
import operator
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields
from typing import Any

from torch.utils.data import get_worker_info

from wdsdist._util.shared_memory import AnonymousMemory, is_spawning
from wdsdist.cache.counters import Counters
from wdsdist.errors import LoaderStateError
from wdsdist.loader.ipc import Channel
from wdsdist.loader.progress import Progress
from wdsdist.sampling.epoch_plan import EpochPlan

_WIDTH = len(Counters._fields)


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
    shuffle_window: int
    group: int
    """Batches that a worker makes and sends together."""


class StartingPoint:
    """The `Start` of the current iteration: the loader writes it, then each worker reads it as it begins.

    >>> point = StartingPoint()
    >>> start = Start(
    ...     epoch=1, consumed=0, rank=0, num_replicas=1, num_canonical_replicas=1, shuffle_window=64, group=1
    ... )
    >>> point.write(start)
    >>> point.read() == start
    True
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


class Tallies:
    """What the workers of a loader have had from the cache so far.

    Each adds to a row of its own, so that none waits for another. Rows only grow: workers that are started in the
    place of others go on in their rows.

    >>> tallies = Tallies(2)
    >>> done = Counters()
    >>> for group in tallies.counted("abc", worker=1, count=lambda: done):
    ...     done = Counters(cache_hits=done.cache_hits + 1)
    >>> tallies.total()
    Counters(cache_hits=3, shards_fetched=0, bytes_fetched=0, retries=0)
    """

    def __init__(self, num_workers: int) -> None:
        self._rows = SharedNumbers(max(1, num_workers) * _WIDTH)  # there is no memory of no bytes
        self._own: dict[int, _Row] = {}

    def total(self) -> Counters:
        """Return the sum of all rows."""
        numbers = self._rows.read()
        return Counters(*[sum(numbers[column::_WIDTH]) for column in range(_WIDTH)])

    def counted(
        self,
        groups: Iterable[Any],
        worker: int,
        count: Callable[[], Counters],
        listen: Callable[[Callable[[], None]], None] = lambda _: None,
    ) -> Iterator[Any]:
        """Yield what a worker makes, and add to its row what has been counted by then.

        Before a group is sent: who has received the last one finds everything in the row. Threads that count for other
        workers too, also when this one has made its last group, call what ``listen`` was given.
        """
        row = self._own.setdefault(worker, _Row(self._rows, worker * _WIDTH, count))
        listen(row.update)
        try:
            for group in groups:
                row.update()
                yield group
        finally:
            row.update()


class _Row:
    """The row of one worker, in that worker."""

    def __init__(self, rows: SharedNumbers, first: int, count: Callable[[], Counters]) -> None:
        self._rows = rows
        self._first = first
        self._count = count
        self._counted = count()
        self._updating = threading.Lock()

    def update(self) -> None:
        """Add what was counted since the last time."""
        with self._updating:
            before, self._counted = self._counted, self._count()
            if self._counted != before:
                self._rows.add(self._first, self._counted - before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How a loader wants its batches made."""

    batch_size: int
    drop_last: bool
    """Whether a rank's last batch is dropped when it is not full."""
    collate_fn: Callable[[list[Any]], Any] | None
    channel: Channel
    tallies: Tallies
    start: StartingPoint = field(default_factory=StartingPoint)

    def plan(self, num_samples: int, num_replicas: int, consumed: int = 0, *, drop_last: bool) -> EpochPlan:
        """Return the batches of an epoch from ``consumed`` samples on; ``drop_last`` is the data set's."""
        return EpochPlan(
            num_samples=num_samples,
            num_replicas=num_replicas,
            batch_size=self.batch_size,
            drop_last=drop_last,
            drop_last_batch=self.drop_last,
            start=consumed,
        )


class SharedNumbers:
    """Integers that a process shares with its data loading workers; each has one writer at a time, or is locked.

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

    def add(self, first: int, amounts: Sequence[int]) -> None:
        """Add to the numbers from ``first`` on."""
        content, place, layout = self._mine(), 8 * first, f"={len(amounts)}q"
        sums = map(operator.add, struct.unpack_from(layout, content, place), amounts)
        struct.pack_into(layout, content, place, *sums)

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
