"""The position of a loader in training: which epoch its next iteration runs, and from which sample.

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

import warnings
from collections.abc import Callable

from wdsdist.loader.chosen_epoch import ChosenEpoch
from wdsdist.sampling.plan import Plan, Position


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
        self._current: Position | None = None
        self._requested: int | None = None
        self._asked: int | None = None  # the latest request of all, here or where the loaded state was taken
        self._resumed: Position | None = None
        self._finished = False  # whether nothing is left of the epoch of a loaded position
        self._playing = False  # whether the current epoch has advanced since the last request or restart

    def _heed(self) -> None:
        """Let the next iteration take an epoch that was chosen since the last call; of several choices the last."""
        if self._chosen.requests == self._heeded:
            return
        self._heeded, epoch = self._chosen.requests, self._chosen.epoch
        if self._resumed is not None and epoch not in (self._resumed.epoch, self._asked):
            goes_on = self._finished and epoch == self._resumed.epoch + 1
            if not goes_on:
                warnings.warn(
                    f"set_epoch({epoch}) discards the loaded state of epoch {self._resumed.epoch} "
                    f"({self._resumed.consumed:,} samples consumed). Call set_epoch({self._resumed.epoch}) to finish "
                    f"that epoch; if epochs are cut short, as with Lightning's limit_train_batches, ignore this",
                    stacklevel=4,
                )
            self._resumed = None
        self._requested = self._asked = epoch
        self._playing = False

    def resume(self, position: Position, *, asked: int | None = None, finished: bool = False) -> None:
        """Continue from a loaded position; earlier requests no longer count.

        Args:
            position: of the state.
            asked: the epoch that was asked for last when it was saved; asking for it again keeps the state.
            finished: whether nothing is left of its epoch; asking for the next one discards nothing.
        """
        self._heed()
        self._resumed, self._asked, self._finished = position, asked, finished
        self._requested = None
        self._playing = False

    def restart(self) -> None:
        """Note that a new iteration has begun, though it has not delivered anything yet."""
        self._playing = False

    @property
    def is_playing(self) -> bool:
        """Whether an epoch is under way."""
        self._heed()
        return self._playing

    @property
    def position(self) -> Position:
        """The position to put into a checkpoint now."""
        self._heed()
        if self._playing and self._current is not None:
            return self._current
        return self._next()

    @property
    def position_of_length(self) -> Position:
        """The position in the current or next epoch; after a finished state, the start of the epoch that follows."""
        self._heed()
        if self._resumed is not None and self._finished and self._requested is None:
            return Position(self._resumed.epoch + 1)
        return self.position

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
        position = self._next()
        plan = plan_at(position)
        if self._resumed is not None and self._requested is None and plan.is_over(plan.reached(0).position):
            position = Position(position.epoch + 1)
            plan = plan_at(position)
        return position, plan

    def begin(self, position: Position) -> None:
        """Note that an iteration has begun at a position, which was `upcoming`."""
        self._current, self._requested, self._resumed, self._playing = position, None, None, True

    def advance(self, position: Position) -> None:
        """Note the position in the current epoch."""
        self._heed()
        self._current = position
        self._playing = True

    def _next(self) -> Position:
        if self._resumed is not None:
            return self._resumed
        if self._requested is not None:
            return Position(self._requested)
        return Position(0 if self._current is None else self._current.epoch + 1)
