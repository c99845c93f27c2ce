"""What a data set and its workers share: the start of an epoch, the chosen epoch, and notes on long waits."""

from __future__ import annotations

import mmap
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wdsdist._util.shared_memory import AnonymousMemory, is_spawning, leave_inherited_objects
from wdsdist._util.validation import check_integer
from wdsdist.sampling.order import OrderSettings
from wdsdist.sampling.plan import Position, Reached, World

if TYPE_CHECKING:
    from wdsdist.samples.bad_samples import Replaced

_NOTE_BYTES = 1000
"""The longest note on what a worker waits for."""


def enter_worker() -> tuple[int, int]:
    """Return the number of this data loading worker and the number of workers; ``(0, 1)`` outside of workers.

    Prepares a worker: it ends with its parent, and leaves inherited objects out of garbage collection.
    """
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    if worker is None:
        return 0, 1
    from wdsdist._util.pools import follow_parent

    leave_inherited_objects()
    follow_parent()
    return worker.id, worker.num_workers


class NotedBatch(NamedTuple):
    """A batch on its way from a worker, with notes for the main process. A batch without notes is sent bare.

    A tuple, whose parts torch's pinning thread pins.
    """

    batch: Any
    replaced: Replaced | None
    """The bad samples that were replaced in it."""
    reached: Reached | None
    """How far the epoch has come with it, if the plan does not know by its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStart:
    """The start of an epoch as a loader's workers need it, to make its plan and to send its batches."""

    position: Position
    rank: int
    world: World
    settings: OrderSettings
    block: int = 0
    """Samples that are planned together."""
    group: int = 1
    """Batches that a worker makes and sends together."""

    @property
    def log_prefix(self) -> str:
        """The prefix of log lines about this rank, if there are others."""
        return f"rank {self.rank}: " if self.world.num_replicas > 1 else ""


class SharedMap:
    """A few bytes of anonymous shared memory, mapped in each process that is forked or spawned with it."""

    def __init__(self, size: int, memory: AnonymousMemory | None = None) -> None:
        self._memory = AnonymousMemory() if memory is None else memory
        if memory is None:
            self._memory.allocate(0, size)
        self.bytes: mmap.mmap = self._memory.map(0, size)

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedMap, (len(self.bytes), self._memory)


class WaitNotes:
    """A note of each worker on what it waits for, which the main process shows when a wait is long.

    >>> notes = WaitNotes(2)
    >>> notes.write(1, "s3://bucket/7.tar")
    >>> notes.read(0), notes.read(1)
    ('', 's3://bucket/7.tar')
    """

    def __init__(self, num_workers: int) -> None:
        self._shared = SharedMap(max(1, num_workers) * _NOTE_BYTES)

    def write(self, worker: int, note: str) -> None:
        """Replace the note of a worker."""
        content = note.encode("utf-8", "backslashreplace")[:_NOTE_BYTES]
        self._shared.bytes[worker * _NOTE_BYTES : (worker + 1) * _NOTE_BYTES] = content.ljust(_NOTE_BYTES, b"\0")

    def read(self, worker: int) -> str:
        """Return the note of a worker."""
        content = self._shared.bytes[worker * _NOTE_BYTES : (worker + 1) * _NOTE_BYTES]
        return content.rstrip(b"\0").decode("utf-8", "replace")


class ChosenEpoch:
    """The epoch that ``set_epoch`` chose, which persistent workers of a foreign ``DataLoader`` see as well.

    Workers share it with the process that started them. A rank that gets a copy, forked or sent, has one of its own.

    >>> chosen = ChosenEpoch()
    >>> chosen.choose(3)
    >>> chosen.epoch, chosen.requests
    (3, 1)
    """

    def __init__(self, epoch: int = 0, requests: int = 0, iterations: int = 0) -> None:
        self._began_in: int | None = None  # the process that last began an iteration
        self.epoch = epoch
        self.requests = requests
        """How often an epoch was chosen."""
        self._hold(SharedMap(24), os.getpid())
        self._numbers[:] = epoch, requests, iterations

    def _hold(self, shared: SharedMap, owner: int) -> None:
        self._shared, self._owner = shared, owner
        self._numbers = np.frombuffer(shared.bytes, np.int64)  # epoch, requests, iterations
        _chosen.add(self)

    def choose(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays; raise ``ArgumentError`` for a negative one."""
        self.epoch, self.requests = check_integer("epoch", epoch, 0, 2**63 - 1), self.requests + 1
        self._be_own()
        self._numbers[:2] = self.epoch, self.requests

    def begin(self) -> int:
        """Return the epoch of an iteration of single samples that begins now.

        The first iteration of a worker has the epoch that was chosen when the worker was started: a later choice could
        give the workers of one iteration different epochs.
        """
        if self._began_in == os.getpid():
            self.epoch, self.requests = map(int, self._numbers[:2])
        self._began_in = os.getpid()
        return self.epoch

    def count_iteration(self) -> int:
        """Return how many iterations of single samples were counted before, in this process and its workers."""
        self._numbers[2] += 1
        return int(self._numbers[2]) - 1

    def _be_own(self) -> None:
        """Take memory of its own in a process that got a copy and is no worker of the process that made it."""
        from torch.utils.data import get_worker_info  # not at the top: planning on the command line takes no torch

        if self._owner != os.getpid() and get_worker_info() is None:
            numbers = self._numbers.copy()
            self._hold(SharedMap(24), os.getpid())
            self._numbers[:] = numbers

    def __reduce__(self) -> tuple[Any, ...]:
        self._be_own()
        if is_spawning():
            return _chosen_epoch, (self._shared, self._owner, self.epoch, self.requests)
        return ChosenEpoch, tuple(map(int, self._numbers))


def _chosen_epoch(shared: SharedMap, owner: int, epoch: int, requests: int) -> ChosenEpoch:
    chosen = ChosenEpoch.__new__(ChosenEpoch)
    chosen._began_in, chosen.epoch, chosen.requests = None, epoch, requests
    chosen._hold(shared, owner)
    return chosen


_chosen: weakref.WeakSet[ChosenEpoch] = weakref.WeakSet()


def _own_before_fork() -> None:
    # A rank that was forked itself shares with its workers, not with the workers of other ranks.
    for chosen in list(_chosen):
        chosen._be_own()


os.register_at_fork(before=_own_before_fork)
