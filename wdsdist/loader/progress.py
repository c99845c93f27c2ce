"""The position in training: the epoch that was asked for, and the epoch and sample where the next iteration begins.

The rules that training loops and checkpoints rely on:

- An epoch that was asked for with ``set_epoch`` comes next, from its start.
- Without being asked, each iteration takes the next epoch, also if the one before was abandoned.
- The next iteration continues a loaded state. ``set_epoch`` of its own epoch keeps it, and so does the epoch that was
  asked for last when it was saved, after which the loader may have gone on by itself: Lightning asks once for an epoch
  in which it iterates a short loader several times. Another epoch discards it.
- A state at the end of an epoch names the next one, so that ``range(state["epoch"], n)`` are the epochs that are left;
  ``finished`` tells it from the state of an epoch that has begun. A loaded one continues with the next epoch, unless
  the epoch that has ended is asked for: then nothing is left.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from wdsdist._util.shared_memory import AnonymousMemory, is_spawning
from wdsdist._util.validation import check_integer
from wdsdist.sampling.plan import Plan, Position


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
        self._leave_parent()
        if self._began_in == os.getpid():
            self.epoch, self.requests = map(int, self._shared[:2])
        self._began_in = os.getpid()
        return self.epoch

    def count_iteration(self) -> int:
        """Return how many iterations of single samples were counted before, in this process and its workers."""
        self._leave_parent()
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


class Progress:
    """Keep a loader's position in training and decide where its next iteration starts.

    Args:
        chosen: the epoch that ``set_epoch`` chooses, which is read whenever the position matters.

    >>> chosen = ChosenEpoch()
    >>> progress = Progress(chosen)
    >>> progress.position
    Position(epoch=0, consumed=0, segments='')
    >>> chosen.choose(3)
    >>> progress.position
    Position(epoch=3, consumed=0, segments='')
    """

    def __init__(self, chosen: ChosenEpoch) -> None:
        self._chosen = chosen
        self._heeded = 0  # choices so far
        self._current: Position | None = None  # in the epoch that is under way
        self._next = Position(0)  # where the next iteration begins
        self._is_loaded = False  # whether a state says so
        self._goes_past_end = False  # whether the next epoch begins if nothing is left of the one that a state names
        self._finished = False  # whether nothing is left of the epoch of a loaded position
        self._asked: int | None = None  # the latest epoch that was asked for, here or where the loaded state was taken

    def _heed(self) -> None:
        """Let the next iteration take an epoch that was chosen since the last call; of several choices the last."""
        if self._chosen.requests == self._heeded:
            return
        self._heeded, epoch, loaded = self._chosen.requests, self._chosen.epoch, self._next
        if not self._is_loaded or epoch not in (loaded.epoch, self._asked):
            if self._is_loaded and not (self._finished and epoch == loaded.epoch + 1):
                warnings.warn(
                    f"set_epoch({epoch}) discards the loaded state of epoch {loaded.epoch} ({loaded.consumed:,} "
                    f"samples consumed). Call set_epoch({loaded.epoch}) to finish that epoch; if epochs are cut short, "
                    f"as with Lightning's limit_train_batches, ignore this",
                    stacklevel=4,
                )
            self._next, self._is_loaded = Position(epoch), False
        self._asked, self._goes_past_end, self._current = epoch, False, None

    def resume(self, position: Position, *, asked: int | None = None, finished: bool = False) -> None:
        """Continue from a loaded position; earlier requests no longer count.

        Args:
            position: of the state.
            asked: the epoch that was asked for last when it was saved; asking for it again keeps the state.
            finished: whether nothing is left of its epoch; asking for the next one discards nothing.
        """
        self._heed()
        self._next, self._is_loaded, self._goes_past_end, self._current = position, True, True, None
        self._asked, self._finished = asked, finished

    def restart(self) -> None:
        """Note that a new iteration has begun, though it has not delivered anything yet."""
        self._current = None

    @property
    def is_playing(self) -> bool:
        """Whether an epoch is under way."""
        self._heed()
        return self._current is not None

    @property
    def position(self) -> Position:
        """The position to put into a checkpoint now."""
        self._heed()
        return self._next if self._current is None else self._current

    @property
    def position_of_length(self) -> Position:
        """The position in the current or next epoch; after a finished state, the start of the epoch that follows."""
        position = self.position
        return Position(position.epoch + 1) if self._goes_past_end and self._finished else position

    @property
    def asked(self) -> int:
        """The epoch that was asked for last, or the position's epoch."""
        epoch = self.position.epoch
        return epoch if self._asked is None else self._asked

    def upcoming(self, plan_at: Callable[[Position], Plan]) -> tuple[Position, Plan]:
        """Return where the next iteration begins, and its plan, as ``plan_at`` makes it of a position.

        Nothing changes until `begin`, so that an iteration that fails to begin is not counted as an epoch.
        """
        self._heed()
        position, plan = self._next, plan_at(self._next)
        if self._goes_past_end and plan.is_over(position):
            position = Position(position.epoch + 1)
            plan = plan_at(position)
        return position, plan

    def begin(self, position: Position) -> None:
        """Note that an iteration has begun at a position, which was `upcoming`."""
        self._current, self._next = position, Position(position.epoch + 1)
        self._is_loaded = self._goes_past_end = False

    def advance(self, position: Position) -> None:
        """Note the position in the current epoch."""
        self._heed()
        self._current = position
