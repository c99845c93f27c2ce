"""The state of a loader: a few plain numbers that mean the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wdsdist.errors import ArgumentTypeError, StateMismatchError
from wdsdist.loader.progress import Position
from wdsdist.sampling.order import OrderSettings

_VERSION = 1

State = dict[str, Any]


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
    return {
        "version": _VERSION,
        "epoch": position.epoch,
        "consumed": position.consumed,
        "num_samples": num_samples,
        "fingerprint": fingerprint,
        "order": settings.name,
        "shuffle": settings.shuffle,
        "seed": settings.seed,
        # The order of DistributedSampler knows neither windows nor lanes.
        "shuffle_window": settings.window if by_shard and settings.shuffle else 0,
        "num_canonical_replicas": settings.num_canonical_replicas if by_shard else 0,
        **(notes or {}),
    }


def read_state(state: Mapping[str, Any], expected: State) -> Position:
    """Return the position in a state, after checking that everything else in it is as ``expected``.

    Raises `StateMismatchError` that lists each difference, and `ArgumentTypeError` for what is no state at all.

    >>> mine = {"version": 1, "epoch": 0, "consumed": 0, "num_samples": 8, "seed": 1}
    >>> read_state({**mine, "consumed": 4}, mine)
    Position(epoch=0, consumed=4)
    >>> read_state({**mine, "seed": 2}, mine)
    Traceback (most recent call last):
    wdsdist.errors.StateMismatchError: the state belongs to another run: seed is 2 in the state and 1 here
    """
    if not isinstance(state, Mapping) or not {"version", "epoch", "consumed"} <= state.keys():
        raise ArgumentTypeError(f"{state!r} is not the state of a StreamingDataLoader: pass what state_dict() returned")
    if state["version"] != _VERSION:
        raise StateMismatchError(
            f"the state has version {state['version']!r}, this wdsdist reads {_VERSION}: use the release that saved it"
        )
    differences = [
        f"{name} is {state.get(name)!r} in the state and {value!r} here"
        for name, value in expected.items()
        if name not in ("epoch", "consumed") and state.get(name) != value
    ]
    if differences:
        raise StateMismatchError(f"the state belongs to another run: {'; '.join(differences)}")
    epoch, consumed = state["epoch"], state["consumed"]
    if type(epoch) is not int or type(consumed) is not int or epoch < 0 or not 0 <= consumed <= state["num_samples"]:
        raise StateMismatchError(
            f"the state is damaged: epoch {epoch!r}, consumed {consumed!r} of {state['num_samples']!r} samples"
        )
    return Position(epoch, consumed)
