"""State shared between the main process and its workers, in shared memory that outlives an epoch.

Persistent workers hold a copy of the data set that was made when they started. Which epoch starts, and where, reaches
them here; what they count reaches the main process.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import threading
import weakref
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray, RawValue
from typing import Any, NamedTuple

from wdsdist._util.pools import follow_parent
from wdsdist._util.shared_memory import UNUSABLE, AnonymousMemory, is_spawning, leave_inherited_objects
from wdsdist._util.validation import check_integer
from wdsdist.errors import StateError
from wdsdist.sampling.block_plan import World
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import OrderSettings
from wdsdist.sampling.planned_epoch import Place
from wdsdist.shards.source import Counters

_VALUE_BYTES = 8 << 10
"""Of a `SharedValue`: an epoch start has some 500, and 30 for each of the worlds on which a block was resumed."""
_NUMBERS_BYTES = 512
"""Of one that holds a few numbers: where `/dev/shm` is small, workers need it for the locks of their queues."""


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
    """The start of an epoch of planned batches, or of the rest of one after a resume."""

    world: World
    place: Place
    block: int
    """Positions of the order in a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStart:
    """The start of an epoch as a loader's workers need it: its order and plan, the rank, and how batches are sent."""

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
        """The prefix of log lines about this rank, where there are others."""
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
        self._shared = SharedValue((0, 0), most=_NUMBERS_BYTES)  # the same two
        self._began_in: int | None = None  # the process that last began an iteration

    def choose(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays; raise ``ArgumentError`` for a negative one."""
        self.epoch, self.requests = check_integer("epoch", epoch, 0, 2**63 - 1), self.requests + 1
        self._shared.write((self.epoch, self.requests))

    def begin(self) -> int:
        """Return the epoch of an iteration of single samples that begins now.

        The first of a worker has the epoch that was chosen when the worker was started: were it to look later, a
        choice in the meantime would give the workers of one iteration different epochs.
        """
        if self._began_in == os.getpid():
            self.epoch, self.requests = self._shared.read()
        self._began_in = os.getpid()
        return self.epoch


class WorkerCounters:
    """Cache counters of each worker of a loader.

    Each has a value of its own, so that none waits for another. Counts only grow: workers that are started in the place
    of others go on with theirs.

    >>> counters = WorkerCounters(2)
    >>> for worker in (0, 1, 1):
    ...     counters.add(worker, Counters(retries=1))
    >>> counters.total()
    Counters(shards_fetched=0, bytes_fetched=0, bytes_cached=0, retries=3)
    """

    def __init__(self, num_workers: int) -> None:
        self._of_workers = [SharedValue(Counters(), most=_NUMBERS_BYTES) for _ in range(num_workers)]

    def total(self) -> Counters:
        """Return the sum over all workers."""
        return functools.reduce(Counters.plus, (one.read() for one in self._of_workers), Counters())

    def add(self, worker: int, counted: Counters) -> None:
        """Add to the counters of a worker, in any thread of it."""
        with _adding:
            self._of_workers[worker].write(self._of_workers[worker].read().plus(counted))


_adding = threading.Lock()  # of the threads of one worker, which make batches and fetch


class SharedValue:
    """A small value that a process shares with its data loading workers, or one of them with it; it has one writer.

    Other processes that get a copy, such as ranks that are started with a data set as their argument, get a value of
    their own: what one rank writes must not reach the workers of another.

    Args:
        value: what it is at first.
        most: bytes that its pickle may take.

    >>> value = SharedValue()
    >>> value.write({"epoch": 3})
    >>> value.read()
    {'epoch': 3}
    """

    def __init__(self, value: object = None, *, most: int = _VALUE_BYTES) -> None:
        self._most = most
        self._hold(pickle.dumps(value))

    def _hold(self, pickled: bytes) -> None:
        try:
            self._pickles, self._writes = RawArray("c", 2 * self._most), RawValue("q", 0)
        except OSError as error:
            if error.errno not in UNUSABLE:
                raise
            # No /dev/shm, hence no workers, whose queues need locks there; what is forked shares this memory too.
            memory, size = AnonymousMemory(), 8 + 2 * self._most
            memory.allocate(0, size)
            mapped = memory.map(0, size)
            self._pickles = (ctypes.c_char * (2 * self._most)).from_buffer(mapped, 8)
            self._writes = ctypes.c_int64.from_buffer(mapped)
        self._pickles[: len(pickled)] = pickled  # of which the number of writes says which half counts
        self._owner = os.getpid()
        _held.add(self)

    def write(self, value: object) -> None:
        """Replace the value. Raises `StateError` for one that is too large; the one before stays."""
        pickled = pickle.dumps(value)
        if len(pickled) > self._most:
            raise StateError(
                f"what workers are told takes {len(pickled):,} bytes, and at most {self._most:,} reach them: is a "
                f"number among the arguments or in the state as large as it was meant to be?"
            )
        self._be_own()
        number = self._writes.value + 1
        first = number % 2 * self._most
        self._pickles[first : first + len(pickled)] = pickled
        # Last: a worker that is slow to begin an iteration, which was given up meanwhile, finds the one before whole.
        self._writes.value = number

    def read(self) -> Any:
        """Return the value that was written last."""
        self._be_own()
        return pickle.loads(self._latest())

    def _latest(self) -> bytes:
        while True:
            number = self._writes.value
            first = number % 2 * self._most
            pickled: bytes = self._pickles[first : first + self._most]
            if self._writes.value == number:  # else this half may have been written while it was read
                return pickled

    def _be_own(self) -> None:
        """Take memory of its own in a process that got the value from another, and is no worker of that."""
        from torch.utils.data import get_worker_info  # not at the top: planning on the command line takes no torch

        if self._owner != os.getpid() and get_worker_info() is None:
            self._hold(self._latest())

    def __reduce__(self) -> tuple[Any, ...]:
        made = functools.partial(SharedValue, most=self._most)
        return (made, (), self.__dict__) if is_spawning() else (made, (self.read(),))


_held: weakref.WeakSet[SharedValue] = weakref.WeakSet()


def _hold_before_fork() -> None:
    # A rank that was forked itself shares with its workers, not with the workers of other ranks.
    for value in list(_held):
        value._be_own()


os.register_at_fork(before=_hold_before_fork)
