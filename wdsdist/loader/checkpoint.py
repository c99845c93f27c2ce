"""The state of a loader, or of a data set under a foreign loader: flat, of strings and numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wdsdist.errors import ArgumentError, IndexFormatError, StateError
from wdsdist.sampling.order import OrderSettings
from wdsdist.sampling.plan import Position

if TYPE_CHECKING:
    from wdsdist.sampling.order_config import OrderConfig

_VERSION = 2
"""The version of states, of the order and of the plans of batches: each change of any of them takes another number."""

State = dict[str, Any]

VIEW = "view"
"""Key of a state that names the file of the view that it belongs to, for messages only."""


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
    finished = 0 < config.num_samples <= position.consumed
    return {
        "epoch": position.epoch + finished,
        "consumed": 0 if finished else position.consumed,
        "segments": "" if finished else position.segments,
        "finished": finished,
        **identity_of(config, settings),
        "batches": batches,
        **rules,
    }


def identity_of(config: OrderConfig, settings: OrderSettings) -> State:
    """Return the fields that a state must have in common with the samples and the order that it is loaded into."""
    by_shard = settings.name == "shard"
    return {
        "version": _VERSION,
        "num_samples": config.num_samples,
        "fingerprint": config.fingerprint,
        "order": settings.name,
        "shuffle": settings.shuffle,
        "seed": settings.seed,
        # The order of DistributedSampler has neither windows nor lanes.
        "shuffle_window": settings.window if by_shard and settings.shuffle else 0,
        "num_canonical_replicas": settings.num_canonical_replicas if by_shard else 0,
        **config.notes,
        **({VIEW: config.manifest.picks.path} if config.manifest.picks else {}),
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


def read_state(state: Mapping[str, Any], own: State, *, batches: str = "") -> Position:
    """Return the position in a state, after checking that it has all fields of its loader's ``own`` identity.

    Inside an epoch its batches must be the same, too. Raises `StateError` that lists each difference.

    >>> own = {"num_samples": 8, "seed": 1}
    >>> read_state({**own, "epoch": 0, "consumed": 4}, own)
    Position(epoch=0, consumed=4, segments='')
    >>> read_state({**own, "epoch": 0, "consumed": 4, "seed": 2}, own)
    Traceback (most recent call last):
    wdsdist.errors.StateError: the state belongs to another run: seed is 2 in the state and 1 here
    """
    differences = [
        f"{name} is {state.get(name)!r} in the state and {value!r} here"
        for name, value in own.items()
        if name != VIEW and state.get(name) != value
    ]
    if differences:
        differences += _differing_samples(state, own)
        raise StateError(f"the state belongs to another run: {'; '.join(differences)}")
    epoch, consumed, segments = state["epoch"], state["consumed"], state.get("segments", "")
    is_sound = type(epoch) is int and type(consumed) is int and isinstance(segments, str)
    if not is_sound or epoch < 0 or not 0 <= consumed <= state["num_samples"]:
        raise StateError(
            f"the state is damaged: epoch {epoch!r}, consumed {consumed!r} of {state['num_samples']!r} samples, "
            f"segments {segments!r}"
        )
    position = Position(epoch, consumed, segments)
    if position.has_begun and state.get("batches", "") != batches:
        raise StateError(
            f"the state was taken inside an epoch of batches by other rules ({state.get('batches')}, here {batches}): "
            f"finish that epoch with the same rules, or start a new epoch"
        )
    if state.get("finished") and epoch and not position.has_begun:
        return Position(epoch - 1, state["num_samples"])
    return position


def _differing_samples(state: Mapping[str, Any], own: State) -> list[str]:
    """Return, for a message, how many samples differ between the views of two states, if that is known."""
    if not (VIEW in state or VIEW in own) or state.get("fingerprint") == own["fingerprint"]:
        return []
    from wdsdist.shards import view_file

    try:
        count = view_file.count_differing(str(state[VIEW]), str(own[VIEW]))
    except (KeyError, OSError, IndexFormatError):  # a view was not saved, or has been removed
        least = abs(int(state.get("num_samples", 0)) - int(own["num_samples"]))
        return [f"so the views differ in {least:,} samples at least"]
    return [f"so the views differ in {count:,} samples" if count else "so the views have the same samples otherwise"]
