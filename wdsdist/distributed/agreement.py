"""Values of other ranks, through the store of the process group, without a collective or a barrier."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from dataclasses import dataclass

from wdsdist.distributed.identity import process_group
from wdsdist.distributed.job_store import member_of, stamped
from wdsdist.errors import StateError

_calls: Counter[str] = Counter()
"""Calls for each name in this process: the first is answered by the other ranks' first, and so on."""

_PAUSE = 0.05
"""Seconds between looks for what other ranks have written."""


@dataclass(frozen=True, slots=True)
class Told:
    """The value of the first rank that called `first_value`."""

    rank: int
    """The one that was first."""
    own_rank: int
    """This one."""
    value: str


def first_value(name: str, value: str) -> Told | None:
    """Return the value of the first rank to call this with ``name``: this one's, where none was before it.

    The first rank stores its value. No rank waits for another. ``None`` where there is no process group of several, or
    where its store has ended with its host.
    """
    dist = process_group()
    if dist is None or dist.get_world_size() == 1:
        return None
    key = f"same/{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"
    with contextlib.suppress(RuntimeError):  # the store ended with its host: other calls report that
        member = member_of(dist)
        first = member.first_note(key, member.is_current, rank=member.rank, value=value)
        return Told(first["rank"], dist.get_rank(), first["value"])
    return None


_REPLACED = (
    "it was replaced while the job started, or one node used a copy while the store was away; start the job again"
)


def check_same(name: str, value: str, *, why: str = _REPLACED, about: str = "") -> None:
    """Raise `StateError` where this rank's value differs from that of the first rank to call this with ``name``.

    Without a process group nothing is compared. The error names both ranks and values, and ends in ``why``: the cause
    and the remedy. ``about`` tells calls apart that have one name.

    >>> check_same("index.json of s3://bucket/train", "6f0c...")
    """
    call = f"{name} {about}"
    _calls[call] += 1
    told = first_value(f"{call} {_calls[call]}", value)
    if told is not None and told.value != value:
        raise StateError(
            f"rank {told.own_rank} reads another {name} than rank {told.rank} ({value[:12]}, not {told.value[:12]}): "
            f"{why}"
        )


def gather(name: str, value: str, seconds: float) -> list[str | None]:
    """Return the value of each rank, which all call this with the same name; ``None`` of one that did not in time.

    Without a process group there is this process alone.
    """
    _calls[name] += 1
    number = _calls[name]
    dist = process_group()
    if dist is None or dist.get_world_size() == 1:
        return [value]
    found: list[str | None] = [None] * dist.get_world_size()
    found[dist.get_rank()] = value
    until = time.monotonic() + seconds
    with contextlib.suppress(RuntimeError):  # the store ended with its host
        member = member_of(dist)
        keys = [f"gather/{name}/{rank}" for rank in range(member.world_size)]
        member.store.set(keys[member.rank], stamped(member.store, number=number, value=value))
        while True:
            missing = [rank for rank, one in enumerate(found) if one is None]
            for rank, note in zip(missing, member.notes([keys[rank] for rank in missing]), strict=True):
                if note and note["number"] >= number:  # a rank that is ahead has replaced its value by a newer one
                    found[rank] = note["value"]
            if None not in found or time.monotonic() >= until:
                return found
            time.sleep(_PAUSE)
    return found
