"""Checkpoints of a loader: which epoch comes next and from which sample, and the state that keeps the place.

The rules that training loops and checkpoints rely on:

- An epoch that was asked for with ``set_epoch`` is played next, from its start.
- Without being asked, each iteration plays the next epoch, also when the one before was abandoned.
- A loaded state is continued by the next iteration; asking for its own epoch keeps it, and so does asking for the one
  that had been asked for when it was taken, after which the loader may have gone on by itself: Lightning asks once for
  an epoch in which it plays a short loader several times. Asking for another discards it.
- A state at the end of an epoch names the next one, so that ``range(state["epoch"], n)`` are the epochs left to play;
  ``finished`` tells it from the state of an epoch that has begun. Loaded, it continues with the next epoch, unless the
  one that has ended is asked for: then there is nothing left to play. (Releases before said the epoch that had ended,
  with all its samples consumed.)
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wdsdist.errors import ArgumentError, IndexFormatError, StateError
from wdsdist.loader.worker_state import ChosenEpoch
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import VERSIONS, OrderSettings
from wdsdist.sampling.planned_epoch import Place, PlannedProgress

_VERSION = 1

State = dict[str, Any]

Left = EpochPlan | PlannedProgress
"""The batches that are left of an epoch: of a number of samples each, or planned."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in training: an epoch, and the samples of it that all ranks together have consumed."""

    epoch: int
    consumed: int
    """Of planned batches, those in whole blocks."""
    place: Place | None = field(default=None, repr=False)
    """The place in an epoch of planned batches; ``None`` at its start, and for other batches."""

    @property
    def has_begun(self) -> bool:
        """Whether some of the epoch is consumed."""
        return self.consumed > 0 or self.place is not None


class Progress:
    """Keep a loader's place in training and decide where its next iteration starts.

    Args:
        chosen: the epoch that ``set_epoch`` chooses, which is looked at whenever the place matters.

    >>> chosen = ChosenEpoch()
    >>> progress = Progress(chosen)
    >>> progress.position
    Position(epoch=0, consumed=0)
    >>> chosen.choose(3)
    >>> progress.position
    Position(epoch=3, consumed=0)
    """

    def __init__(self, chosen: ChosenEpoch) -> None:
        self._chosen = chosen
        self._heeded = 0  # choices of these
        self._current: Position | None = None
        self._requested: int | None = None
        self._asked: int | None = None  # the latest request of all, here or where the loaded state was taken
        self._resumed: Position | None = None
        self._finished = False  # whether nothing is left of the epoch of a loaded position
        self._playing = False  # whether the current epoch has gone on since the last request or restart

    def _heed(self) -> None:
        """Let the next iteration play an epoch that was chosen since the last call, or one that has delivered nothing.

        Several choices count as one, the last.
        """
        if self._chosen.requests == self._heeded:
            return
        self._heeded, epoch = self._chosen.requests, self._chosen.epoch
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
        self._heed()
        self._resumed, self._asked, self._finished = position, asked, finished
        self._requested = None
        self._playing = False

    def restart(self) -> None:
        """Note that a new iteration has begun, though it has not delivered anything yet."""
        self._playing = False

    @property
    def position(self) -> Position:
        """The place to put into a checkpoint now."""
        self._heed()
        if self._playing and self._current is not None:
            return self._current
        return self._next()

    @property
    def shown(self) -> Position:
        """The `position` for a text about the loader: to look at it must decide nothing, and warn of nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return copy.copy(self).position

    @property
    def position_of_length(self) -> Position:
        """The place in the epoch that is played or comes next: behind the end of a loaded one, that after it."""
        self._heed()
        if self._resumed is not None and self._finished and self._requested is None:
            return Position(self._resumed.epoch + 1, 0)
        return self.position

    @property
    def asked(self) -> int:
        """The epoch that was asked for last, to put beside the place; that of the place where none was."""
        epoch = self.position.epoch
        return epoch if self._asked is None else self._asked

    def upcoming(self, left_at: Callable[[Position], Left]) -> tuple[Position, Left]:
        """Return where the next iteration begins, and which batches are left there, as ``left_at`` tells of a position.

        Nothing changes until `begin`, so that an iteration that cannot begin is no epoch that was played.
        """
        self._heed()
        position = self._next()
        left = left_at(position)
        if self._resumed is not None and self._requested is None and left.is_over:
            position = Position(position.epoch + 1, 0)
            left = left_at(position)
        return position, left

    def begin(self, position: Position) -> None:
        """Note that an iteration has begun at a position, which was `upcoming`."""
        self._current, self._requested, self._resumed, self._playing = position, None, None, True

    def advance(self, consumed: int, place: Place | None = None) -> None:
        """Note how many samples of the current epoch are consumed; of planned batches, the place as well."""
        self._heed()
        if self._current is None:
            raise StateError("an epoch advanced before it was started")
        self._current = Position(self._current.epoch, consumed, place)
        self._playing = True

    def _next(self) -> Position:
        if self._resumed is not None:
            return self._resumed
        if self._requested is not None:
            return Position(self._requested, 0)
        return Position(0 if self._current is None else self._current.epoch + 1, 0)


VIEW = "view"
"""Key of a state that names the file of the view that it belongs to, for messages only."""


def make_state(
    position: Position,
    *,
    num_samples: int,
    fingerprint: str,
    settings: OrderSettings,
    notes: Mapping[str, str] | None = None,
) -> State:
    """Return the state of a loader at a position: flat, of strings and numbers only, so that it survives JSON."""
    by_shard = settings.name == "shard"
    finished = 0 < num_samples <= position.consumed
    return {
        "version": _VERSION,
        "epoch": position.epoch + finished,
        "consumed": 0 if finished else position.consumed,
        "finished": finished,
        "num_samples": num_samples,
        "fingerprint": fingerprint,
        "order": settings.name,
        "shuffle": settings.shuffle,
        "seed": settings.seed,
        # The order of DistributedSampler knows neither windows nor lanes.
        "shuffle_window": settings.window if by_shard and settings.shuffle else 0,
        "num_canonical_replicas": settings.num_canonical_replicas if by_shard else 0,
        **({"order_version": settings.version} if by_shard and settings.shuffle and settings.version > 1 else {}),
        **(notes or {}),
    }


def check_state(state: object, place: str = "consumed") -> None:
    """Raise `ArgumentError` for what is no state, which has the place in its epoch under that name."""
    if not isinstance(state, Mapping) or not {"version", "epoch", place} <= state.keys():
        kind = "StreamingDataLoader" if place == "consumed" else "StreamingDataset"
        raise ArgumentError(f"{state!r} is not the state of a {kind}: pass what state_dict() returned")


def read_state(state: Mapping[str, Any], expected: State) -> Position:
    """Return the position in a state, after checking that everything else in it is as ``expected``.

    Raises `StateError` that lists each difference.

    >>> mine = {"version": 1, "epoch": 0, "consumed": 0, "num_samples": 8, "seed": 1}
    >>> read_state({**mine, "consumed": 4}, mine)
    Position(epoch=0, consumed=4)
    >>> read_state({**mine, "seed": 2}, mine)
    Traceback (most recent call last):
    wdsdist.errors.StateError: the state belongs to another run: seed is 2 in the state and 1 here
    """
    if state["version"] != _VERSION:
        raise StateError(
            f"the state has version {state['version']!r}, this wdsdist reads {_VERSION}: use the release that saved it"
        )
    differences = [
        f"{name} is {state.get(name)!r} in the state and {value!r} here"
        for name, value in expected.items()
        if name not in ("epoch", "consumed", "finished", VIEW) and state.get(name) != value
    ]
    if differences:
        differences += _differing_samples(state, expected)
        if state.get("order_version", VERSIONS[0]) not in VERSIONS:
            differences.append("use the release that saved it")
        raise StateError(f"the state belongs to another run: {'; '.join(differences)}")
    epoch, consumed = state["epoch"], state["consumed"]
    if type(epoch) is not int or type(consumed) is not int or epoch < 0 or not 0 <= consumed <= state["num_samples"]:
        raise StateError(
            f"the state is damaged: epoch {epoch!r}, consumed {consumed!r} of {state['num_samples']!r} samples"
        )
    if state.get("finished") and epoch and not consumed:
        return Position(epoch - 1, state["num_samples"])
    return Position(epoch, consumed)


def _differing_samples(state: Mapping[str, Any], expected: State) -> list[str]:
    """Return, for a message, how many samples differ between the views of two states, as far as that is known."""
    if not (VIEW in state or VIEW in expected) or state.get("fingerprint") == expected["fingerprint"]:
        return []
    from wdsdist.curation import view_file

    try:
        count = view_file.count_differing(str(state[VIEW]), str(expected[VIEW]))
    except (KeyError, OSError, IndexFormatError):  # one is not saved, or not any more
        least = abs(int(state.get("num_samples", 0)) - int(expected["num_samples"]))
        return [f"so the views differ in {least:,} samples at least"]
    # One may keep the parts of records together in the order, and the other not.
    return [f"so the views differ in {count:,} samples" if count else "so the views have the same samples otherwise"]
