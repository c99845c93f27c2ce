"""State shared between the main process and its workers, in shared memory that outlives an epoch.

Persistent workers hold a copy of the data set that was made when they started. Which epoch starts, and where, reaches
them here; what they count reaches the main process.
"""

from __future__ import annotations

import os
import pickle
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

from wdsdist._util.pools import follow_parent
from wdsdist._util.shared_memory import is_spawning, leave_inherited_objects
from wdsdist._util.validation import check_integer
from wdsdist.cache.shard_cache import Counters
from wdsdist.errors import LoaderStateError
from wdsdist.sampling.block_plan import World
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import OrderSettings
from wdsdist.sampling.planned_epoch import Place

_WIDTH = len(Counters._fields)

_VALUE_BYTES = 8 << 10
"""Of a `SharedValue`: an epoch start has some 500, and 30 for each of the worlds on which a block was resumed."""


def enter_worker() -> tuple[int, int]:
    """Return the number of this data loading worker, and how many there are; ``(0, 1)`` in a process that is none.

    A worker is prepared for its work: it ends with its parent, and leaves what it inherited out of garbage collection.
    """
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    if worker is None:
        return 0, 1
    leave_inherited_objects()
    follow_parent()
    return worker.id, worker.num_workers


class PlannedStart(NamedTuple):
    """Where an epoch of planned batches starts, or goes on."""

    world: World
    place: Place
    block: int
    """Positions of the order in a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStart:
    """Which epoch starts in the workers of a loader, where, and for which rank."""

    epoch: int
    rank: int
    settings: OrderSettings
    plan: EpochPlan
    group: int = 1
    """Batches that a worker makes and sends together."""
    planned: PlannedStart | None = None
    """Where planned batches start; ``None`` for batches of a number of samples."""
    node: range | None = None
    """The ranks of this node; ``None`` where they are not known."""

    @property
    def log_prefix(self) -> str:
        """What lines in the log about this rank begin with, where there are others."""
        return f"rank {self.rank}: " if self.plan.num_replicas > 1 else ""


class ChosenEpoch:
    """The epoch that ``set_epoch`` chose, which persistent workers of a foreign ``DataLoader`` see as well.

    >>> chosen = ChosenEpoch()
    >>> chosen.choose(3)
    >>> chosen.epoch, chosen.requests
    (3, 1)
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.requests = 0
        """How often an epoch was chosen."""
        self._shared = SharedNumbers([0, 0])  # the same two
        self._began_in: int | None = None  # the process that last began an iteration

    def choose(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays; raise ``ArgumentError`` for a negative one."""
        self.epoch, self.requests = check_integer("epoch", epoch, 0, 2**63 - 1), self.requests + 1
        self._shared[:] = [self.epoch, self.requests]

    def begin(self) -> int:
        """Return the epoch of an iteration of single samples that begins now.

        The first of a worker has the epoch that was chosen when the worker was started: were it to look later, a
        choice in the meantime would give the workers of one iteration different epochs.
        """
        if self._began_in == os.getpid():
            self.epoch, self.requests = self._shared[:]
        self._began_in = os.getpid()
        return self.epoch


class WorkerCounters:
    """Cache counters of each worker of a loader.

    Each adds to a row of its own, so that none waits for another. Rows only grow: workers that are started in the
    place of others go on in their rows.

    >>> counters = WorkerCounters(2)
    >>> for worker in (0, 1, 1):
    ...     counters.add(worker, Counters(cache_hits=1))
    >>> counters.total()
    Counters(cache_hits=3, shards_fetched=0, bytes_fetched=0, retries=0)
    """

    def __init__(self, num_workers: int) -> None:
        self._rows = SharedNumbers([0] * max(1, num_workers) * _WIDTH)  # there is no memory of no bytes

    def total(self) -> Counters:
        """Return the sum of all rows."""
        numbers = self._rows[:]
        return Counters(*[sum(numbers[column::_WIDTH]) for column in range(_WIDTH)])

    def add(self, worker: int, counted: Counters) -> None:
        """Add to the row of a worker, in any thread of it."""
        with _adding:
            self._rows.add(worker * _WIDTH, counted)


_adding = threading.Lock()  # of the threads of one worker, which make batches and fetch


class SharedValue:
    """A small value that a process shares with its data loading workers, or one of them with it.

    >>> value = SharedValue()
    >>> value.write({"epoch": 3})
    >>> value.read()
    {'epoch': 3}
    """

    def __init__(self, value: object = None) -> None:
        self._pickles = SharedNumbers(bytes(2 * _VALUE_BYTES), "B")
        self._writes = SharedNumbers([0])  # the latest decides which half counts
        self.write(value)

    def write(self, value: object) -> None:
        """Replace the value. Raises `LoaderStateError` for one that is too large; the one before stays."""
        pickled = pickle.dumps(value)
        if len(pickled) > _VALUE_BYTES:
            raise LoaderStateError(
                f"what workers are told takes {len(pickled):,} bytes, and at most {_VALUE_BYTES:,} reach them: is a "
                f"number among the arguments or in the state as large as it was meant to be?"
            )
        number = self._writes[0] + 1
        first = number % 2 * _VALUE_BYTES
        self._pickles[first : first + len(pickled)] = pickled
        # Last: a worker that is slow to begin an iteration, which was given up meanwhile, finds the one before whole.
        self._writes[0] = number

    def read(self) -> Any:
        """Return the value that was written last."""
        while True:
            number = self._writes[0]
            first = number % 2 * _VALUE_BYTES
            pickled = bytes(self._pickles[first : first + _VALUE_BYTES])
            if self._writes[0] == number:  # else this half may have been written while it was read
                return pickle.loads(pickled)


class SharedNumbers:
    """Integers that a process shares with its data loading workers; each has one writer at a time.

    Other processes that get a copy, such as ranks that are started with a data set as their argument, get numbers of
    their own: what one rank writes must not reach the workers of another.

    >>> numbers = SharedNumbers([3, 4, 5])
    >>> numbers[1:] = [6, 7]
    >>> numbers[0], numbers[:]
    (3, [3, 6, 7])
    """

    def __init__(self, numbers: Sequence[int], kind: str = "q") -> None:
        self._kind = kind  # as of `array.array`
        self._hold(numbers)

    def _hold(self, numbers: Sequence[int]) -> None:
        self._array = RawArray(self._kind, list(numbers))
        self._owner = os.getpid()
        _held.add(self)

    def __getitem__(self, place: int | slice) -> Any:
        return self._mine()[place]

    def __setitem__(self, place: int | slice, numbers: int | Sequence[int]) -> None:
        self._mine()[place] = numbers

    def add(self, first: int, amounts: Sequence[int]) -> None:
        """Add to the numbers from ``first`` on."""
        array = self._mine()
        for place, amount in enumerate(amounts, first):
            array[place] += amount

    def _mine(self) -> Any:
        """Return the memory; a process that got it from another, and is no worker of that, takes one of its own."""
        from torch.utils.data import get_worker_info  # not at the top: planning on the command line takes no torch

        if self._owner != os.getpid() and get_worker_info() is None:
            self._hold(self._array[:])
        return self._array

    def __reduce__(self) -> tuple[Any, ...]:
        if is_spawning():
            return SharedNumbers, ([0],), self.__dict__
        return SharedNumbers, (self[:], self._kind)


_held: weakref.WeakSet[SharedNumbers] = weakref.WeakSet()


def _hold_before_fork() -> None:
    # A rank that was forked itself shares with its workers, not with the workers of other ranks.
    for numbers in list(_held):
        numbers._mine()


os.register_at_fork(before=_hold_before_fork)
