"""The epoch that ``set_epoch`` chose for a data set, in memory that it shares with its workers."""

from __future__ import annotations

import os
import weakref
from typing import Any

import numpy as np

from wdsdist._util.shared_memory import AnonymousMemory, is_spawning
from wdsdist._util.validation import check_integer


class ChosenEpoch:
    """The epoch that ``set_epoch`` chose, which persistent workers of a foreign ``DataLoader`` see as well.

    Workers share it with the process that started them. A rank that gets a copy, forked or sent, has its own.

    >>> chosen = ChosenEpoch()
    >>> chosen.choose(3)
    >>> chosen.epoch, chosen.requests
    (3, 1)
    """

    def __init__(
        self, epoch: int = 0, requests: int = 0, memory: AnonymousMemory | None = None, owner: int = 0
    ) -> None:
        self.epoch = epoch
        self.requests = requests
        """How often an epoch was chosen."""
        self._began_in: int | None = None  # the process that last began an iteration
        self._share(memory, owner)
        _chosen.add(self)

    def _share(self, memory: AnonymousMemory | None = None, owner: int = 0) -> None:
        """Share these numbers through the memory of an owner, or through new memory of this process."""
        self._memory, self._owner = memory or AnonymousMemory(), owner or os.getpid()
        if memory is None:
            self._memory.allocate(0, 24)
        self._shared = np.frombuffer(self._memory.map(0, 24), np.int64)
        """The epoch, the requests, and the iterations of single samples."""
        if memory is None:
            self._shared[:2] = self.epoch, self.requests

    def choose(self, epoch: int) -> None:
        """Choose the epoch that the next iteration runs; raise ``ArgumentError`` for a negative one."""
        self.epoch, self.requests = check_integer("epoch", epoch, 0, 2**63 - 1), self.requests + 1
        self._leave_parent()
        self._shared[:2] = self.epoch, self.requests

    def begin(self) -> int:
        """Return the epoch of an iteration of single samples that begins now.

        The first iteration of a worker has the epoch that was chosen when the worker was started: a later choice could
        give the workers of one iteration different epochs.
        """
        if self._began_in == os.getpid():
            self.epoch, self.requests = map(int, self._shared[:2])
        self._began_in = os.getpid()
        return self.epoch

    def count_iteration(self) -> int:
        """Return how many iterations of single samples were counted before, in this process and its workers."""
        self._shared[2] += 1
        return int(self._shared[2]) - 1

    def _leave_parent(self) -> None:
        """Take own memory in a process that got a copy and is not a worker of the process that made it."""
        if self._owner != os.getpid():
            from torch.utils.data import get_worker_info  # not at the top: planning on the command line takes no torch

            if get_worker_info() is None:
                self._share()

    def __reduce__(self) -> tuple[Any, ...]:
        self._leave_parent()
        shared = (self._memory, self._owner) if is_spawning() else ()
        return ChosenEpoch, (self.epoch, self.requests, *shared)


_chosen: weakref.WeakSet[ChosenEpoch] = weakref.WeakSet()


def _leave_parents() -> None:
    # A rank that was forked itself shares with its workers, not with the workers of other ranks.
    for chosen in list(_chosen):
        chosen._leave_parent()


os.register_at_fork(before=_leave_parents)
