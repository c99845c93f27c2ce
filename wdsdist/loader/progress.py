"""Which epoch comes next, and from which sample: the rules that training loops and checkpoints rely on.

- An epoch that was asked for with ``set_epoch`` is played next, from its start.
- Without being asked, each iteration plays the next epoch, also when the one before was abandoned.
- A loaded state is continued by the next iteration; asking for its own epoch keeps it, and so does asking for the one
  that had been asked for when it was taken, after which the loader may have gone on by itself: Lightning asks once for
  an epoch in which it plays a short loader several times. Asking for another discards it.
- A loaded state at the end of its epoch continues with the next epoch, unless its own epoch is asked for: then there
  is nothing left to play.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from wdsdist.errors import LoaderStateError


@dataclass(frozen=True, slots=True)
class Position:
    """A place in training: an epoch, and the samples of it that all ranks together have consumed."""

    epoch: int
    consumed: int


class Progress:
    """Keeps a loader's place and decides where its next iteration starts.

    >>> progress = Progress()
    >>> progress.start(lambda position: True)
    Position(epoch=0, consumed=0)
    >>> progress.advance(128)
    >>> progress.start(lambda position: True)  # abandoned: the next epoch follows all the same
    Position(epoch=1, consumed=0)
    """

    def __init__(self) -> None:
        self._current: Position | None = None
        self._requested: int | None = None
        self._asked: int | None = None  # the latest request of all, here or where the loaded state was taken
        self._resumed: Position | None = None
        self._finished = False  # whether nothing is left of the epoch of a loaded position
        self._playing = False  # whether the current epoch has gone on since the last request or restart

    def request(self, epoch: int) -> None:
        """Ask for an epoch: the next iteration plays it, or one that has begun but not delivered anything yet."""
        if self._resumed is not None and epoch not in (self._resumed.epoch, self._asked):
            goes_on = self._finished and epoch == self._resumed.epoch + 1
            if not goes_on:
                warnings.warn(
                    f"set_epoch({epoch}) discards the loaded state (epoch {self._resumed.epoch}, "
                    f"{self._resumed.consumed:,} samples consumed): right where epochs are cut short, as Lightning's "
                    f"limit_train_batches does; to play the rest of that epoch, ask for it",
                    stacklevel=4,
                )
            self._resumed = None
        self._requested = self._asked = epoch
        self._playing = False

    def resume(self, position: Position, *, asked: int | None = None, finished: bool = False) -> None:
        """Continue from a loaded position; what was asked for before no longer counts.

        Asking for the epoch that was ``asked`` for when it was taken keeps it, as asking for its own does. Asking for
        the epoch after one that was ``finished`` discards nothing.
        """
        self._resumed, self._asked, self._finished = position, asked, finished
        self._requested = None
        self._playing = False

    def restart(self) -> None:
        """Note that a new iteration has begun, though it has not delivered anything yet."""
        self._playing = False

    @property
    def position(self) -> Position:
        """The place to put into a checkpoint now."""
        if self._playing and self._current is not None:
            return self._current
        return self._next()

    @property
    def asked(self) -> int:
        """The epoch that was asked for last, to put beside the place; that of the place where none was."""
        return self.position.epoch if self._asked is None else self._asked

    def start(self, has_batches: Callable[[Position], bool]) -> Position:
        """Return where the iteration that now starts begins; ``has_batches`` tells whether a position has any left."""
        position = self._next()
        if self._resumed is not None and self._requested is None and not has_batches(position):
            position = Position(position.epoch + 1, 0)
        self._current, self._requested, self._resumed, self._playing = position, None, None, True
        return position

    def advance(self, consumed: int) -> None:
        """Note how many samples of the current epoch are consumed."""
        if self._current is None:
            raise LoaderStateError("an epoch advanced before it was started")
        self._current = Position(self._current.epoch, consumed)
        self._playing = True

    def _next(self) -> Position:
        if self._resumed is not None:
            return self._resumed
        if self._requested is not None:
            return Position(self._requested, 0)
        return Position(0 if self._current is None else self._current.epoch + 1, 0)
