"""The epoch that ``set_epoch`` chose for a data set, in memory that it shares with its workers."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

import numpy as np

from wdsdist._util.shared_memory import AnonymousMemory, is_spawning
from wdsdist._util.validation import check_integer


class SharedMap:
    """A few bytes of anonymous shared memory, mapped in each process that is forked or spawned with it."""

    def __init__(self, size: int, memory: AnonymousMemory | None = None) -> None:
        self._memory = AnonymousMemory() if memory is None else memory
        if memory is None:
            self._memory.allocate(0, size)
        self.bytes: mmap.mmap = self._memory.map(0, size)

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedMap, (len(self.bytes), self._memory)


class ChosenEpoch:
    """The epoch that ``set_epoch`` chose, which persistent workers of a foreign ``DataLoader`` see as well.

    Workers share it with the process that started them. A rank that gets a copy, forked or sent, has its own.

    >>> chosen = ChosenEpoch()
    >>> chosen.choose(3)
    >>> chosen.epoch, chosen.requests
    (3, 1)
    """

    def __init__(self, epoch: int = 0, requests: int = 0) -> None:
        self._began_in: int | None = None  # the process that last began an iteration
        self.epoch = epoch
        self.requests = requests
        """How often an epoch was chosen."""
        self._own()

    def _own(self) -> None:
        """Share these numbers with workers of this process alone."""
        self._hold(SharedMap(24), os.getpid())
        self._numbers[:2] = self.epoch, self.requests

    def _hold(self, shared: SharedMap, owner: int) -> None:
        self._shared, self._owner = shared, owner
        self._numbers = np.frombuffer(shared.bytes, np.int64)  # epoch, requests, iterations
        _chosen.add(self)

    def choose(self, epoch: int) -> None:
        """Choose the epoch that the next iteration plays; raise ``ArgumentError`` for a negative one."""
        self.epoch, self.requests = check_integer("epoch", epoch, 0, 2**63 - 1), self.requests + 1
        self._leave_parent()
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

    def _leave_parent(self) -> None:
        """Take own memory in a process that got a copy and is no worker of the process that made it."""
        if self._owner != os.getpid():
            from torch.utils.data import get_worker_info  # not at the top: planning on the command line takes no torch

            if get_worker_info() is None:
                self._own()

    def __reduce__(self) -> tuple[Any, ...]:
        self._leave_parent()
        if is_spawning():
            return _chosen_epoch, (self._shared, self._owner, self.epoch, self.requests)
        return ChosenEpoch, (self.epoch, self.requests)


def _chosen_epoch(shared: SharedMap, owner: int, epoch: int, requests: int) -> ChosenEpoch:
    chosen = ChosenEpoch.__new__(ChosenEpoch)
    chosen._began_in, chosen.epoch, chosen.requests = None, epoch, requests
    chosen._hold(shared, owner)
    return chosen


_chosen: weakref.WeakSet[ChosenEpoch] = weakref.WeakSet()


def _leave_parents() -> None:
    # A rank that was forked itself shares with its workers, not with the workers of other ranks.
    for chosen in list(_chosen):
        chosen._leave_parent()


os.register_at_fork(before=_leave_parents)
