"""Checkpoints of a loader: which epoch comes next and from which sample, and the state that keeps the position.

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

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from wdsdist.errors import ArgumentError, IndexFormatError, StateError
from wdsdist.loader.worker_state import ChosenEpoch
from wdsdist.sampling.order import OrderSettings
from wdsdist.sampling.plan import Plan, Position

if TYPE_CHECKING:
    from wdsdist.loader.order_config import OrderConfig

_VERSION = 2
"""Of the format of a state, the order and the plans of batches: each change of any of them takes another number."""

State = dict[str, Any]

VIEW = "view"
"""Key of a state that names the file of the view that it belongs to, for messages only."""

_POSITION = "epoch", "consumed", "finished", "segments"


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
                    f"that epoch; if epochs are cut short, as by Lightning's limit_train_batches, all is well",
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
    def shown(self) -> Position:
        """The `position` for ``repr``, which changes nothing and warns of nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return copy.copy(self).position

    @property
    def position_of_length(self) -> Position:
        """The position in the current or next epoch; after a finished state, the start of the epoch that follows."""
        self._heed()
        if self._resumed is not None and self._finished and self._requested is None:
            return Position(self._resumed.epoch + 1)
        return self.position

    @property
    def asked(self) -> int:
        """The epoch that was asked for last, or that of the position if none was."""
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
        if self._current is None:
            raise StateError("an epoch advanced before it was started")
        self._current = position
        self._playing = True

    def _next(self) -> Position:
        if self._resumed is not None:
            return self._resumed
        if self._requested is not None:
            return Position(self._requested)
        return Position(0 if self._current is None else self._current.epoch + 1)


def make_state(
    position: Position, config: OrderConfig, settings: OrderSettings, *, batches: str = "", **rules: Any
) -> State:
    """Return the state of a loader at a position: flat, of strings and numbers only, so that it survives JSON.

    Args:
        position: of the loader.
        config, settings: of its order.
        batches: the label of its batcher.
        rules: further fields of its batcher.
    """
    by_shard = settings.name == "shard"
    num_samples = config.num_samples
    finished = 0 < num_samples <= position.consumed
    return {
        "version": _VERSION,
        "epoch": position.epoch + finished,
        "consumed": 0 if finished else position.consumed,
        "segments": "" if finished else position.segments,
        "finished": finished,
        "num_samples": num_samples,
        "fingerprint": config.fingerprint,
        "order": settings.name,
        "shuffle": settings.shuffle,
        "seed": settings.seed,
        # The order of DistributedSampler has neither windows nor lanes.
        "shuffle_window": settings.window if by_shard and settings.shuffle else 0,
        "num_canonical_replicas": settings.num_canonical_replicas if by_shard else 0,
        **config.notes,
        **({VIEW: config.manifest.picks.path} if config.manifest.picks else {}),
        "batches": batches,
        **rules,
    }


def check_state(state: object, position: str = "consumed") -> None:
    """Raise `ArgumentError` for anything but a state, and `StateError` for a state of another format.

    ``position`` is the key of its position in the epoch.
    """
    if not isinstance(state, Mapping) or not {"version", "epoch", position} <= state.keys():
        kind = "StreamingDataLoader" if position == "consumed" else "StreamingDataset"
        raise ArgumentError(f"{state!r} is not the state of a {kind}: pass what state_dict() returned")
    if state["version"] != _VERSION:
        raise StateError(
            f"the state has version {state['version']!r}, this wdsdist reads {_VERSION}: use the release that saved it"
        )


def read_state(state: Mapping[str, Any], expected: State) -> Position:
    """Return the position in a state, after checking that all but the rules of its batches is as ``expected``.

    Inside an epoch these must be as expected, too. Raises `StateError` that lists each difference.

    >>> own = {"epoch": 0, "consumed": 0, "num_samples": 8, "seed": 1}
    >>> read_state({**own, "consumed": 4}, own)
    Position(epoch=0, consumed=4, segments='')
    >>> read_state({**own, "seed": 2}, own)
    Traceback (most recent call last):
    wdsdist.errors.StateError: the state belongs to another run: seed is 2 in the state and 1 here
    """
    ignored = {*_POSITION, VIEW, "batches", "dealing", "columns", "block_samples"}
    differences = [
        f"{name} is {state.get(name)!r} in the state and {value!r} here"
        for name, value in expected.items()
        if name not in ignored and state.get(name) != value
    ]
    if differences:
        differences += _differing_samples(state, expected)
        raise StateError(f"the state belongs to another run: {'; '.join(differences)}")
    epoch, consumed, segments = state["epoch"], state["consumed"], state.get("segments", "")
    is_sound = type(epoch) is int and type(consumed) is int and isinstance(segments, str)
    if not is_sound or epoch < 0 or not 0 <= consumed <= state["num_samples"]:
        raise StateError(
            f"the state is damaged: epoch {epoch!r}, consumed {consumed!r} of {state['num_samples']!r} samples, "
            f"segments {segments!r}"
        )
    position = Position(epoch, consumed, segments)
    if position.has_begun and state.get("batches") != expected.get("batches"):
        raise StateError(
            f"the state was taken inside an epoch of batches by other rules ({state.get('batches')}, here "
            f"{expected.get('batches')}): finish that epoch with its own, or begin an epoch"
        )
    if state.get("finished") and epoch and not position.has_begun:
        return Position(epoch - 1, state["num_samples"])
    return position


def _differing_samples(state: Mapping[str, Any], expected: State) -> list[str]:
    """Return, for a message, how many samples differ between the views of two states, if that is known."""
    if not (VIEW in state or VIEW in expected) or state.get("fingerprint") == expected["fingerprint"]:
        return []
    from wdsdist.curation import view_file

    try:
        count = view_file.count_differing(str(state[VIEW]), str(expected[VIEW]))
    except (KeyError, OSError, IndexFormatError):  # a view was not saved, or has been removed
        least = abs(int(state.get("num_samples", 0)) - int(expected["num_samples"]))
        return [f"so the views differ in {least:,} samples at least"]
    return [f"so the views differ in {count:,} samples" if count else "so the views have the same samples otherwise"]
