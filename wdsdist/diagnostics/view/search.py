"""Go through the shards of a data set for keys, or for what is wrong, a part of them at a time.

Each call takes a limited time and returns the shard at which the next call continues, so that a page shows results
while the other shards are searched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist.errors import WdsdistError
from wdsdist.samples.member_reader import MemberReader, shard_name
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.quarantine import BadEntry
from wdsdist.shards.shard_indexes import shard_index

_SECONDS = 0.4
"""Seconds after which a call returns, at the end of a shard."""
_MOST = 200
"""Samples or problems after which it returns."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one call."""

    items: list[Any]
    next_shard: int | None
    """The shard at which the next call continues; ``None`` at the end."""
    num_shards: int


def keys(reader: MemberReader, text: str, *, shard: int, seconds: float = _SECONDS) -> Found:
    """Return the numbers of the samples whose keys contain a string, from a shard on; damaged shards are skipped."""
    wanted = text.encode("utf-8", "surrogateescape")

    def in_shard(number: int) -> list[Any]:
        try:
            index = shard_index(reader.manifest, number)
        except WdsdistError:
            return []  # `problems` names it
        return [one for stored in _with_text(index, wanted) for one in numbers_of(reader.manifest, number, stored)]

    return _walk(reader, in_shard, shard, seconds)


def problems(reader: MemberReader, quarantined: Sequence[BadEntry], *, shard: int, seconds: float = _SECONDS) -> Found:
    """Return what is wrong with shards and their samples, from a shard on, by indexes and sizes alone.

    A problem is a shard that is missing, or is not what its index says (``damaged``); a sample that was ``left out``
    when the shard was packed or indexed; or a sample in a quarantine file (``quarantined``), with its number if the
    data set has it.
    """
    by_shard: dict[str, list[BadEntry]] = {}
    for entry in quarantined:
        by_shard.setdefault(storage.split(entry.shard)[1], []).append(entry)

    def in_shard(number: int) -> list[Any]:
        name = shard_name(reader.manifest, number)

        def problem(what: str, key: str, reason: str, number: int | None = None) -> dict[str, Any]:
            return {"what": what, "shard": name, "key": key, "reason": reason, "number": number}

        try:
            # Not the one that is kept: the shard is looked at as it is now.
            index = shard_index(reader.manifest, number)
        except WdsdistError as error:
            return [problem("damaged", "", str(error))]
        found = [problem("left out", key, reason) for key, reason in index.left_out]
        for entry in by_shard.get(storage.split(name)[1], ()):
            numbers = [
                one for stored in with_key(index, entry.key) for one in numbers_of(reader.manifest, number, stored)
            ]
            reason = f"{entry.field}: {entry.reason}" if entry.field else entry.reason
            found.append(problem("quarantined", entry.key, reason, numbers[0] if numbers else None))
        return found

    return _walk(reader, in_shard, shard, seconds)


def _walk(reader: MemberReader, in_shard: Callable[[int], list[Any]], first: int, seconds: float) -> Found:
    total = len(reader.manifest.counts)
    found: list[Any] = []
    end = time.monotonic() + seconds
    for number in range(max(first, 0), total):
        found += in_shard(number)
        if number + 1 < total and (len(found) >= _MOST or time.monotonic() >= end):
            return Found(found, number + 1, total)
    return Found(found, None, total)


def numbers_of(manifest: Manifest, shard: int, stored: int) -> list[int]:
    """Return the numbers of a stored sample in the data set: a view may have it never, once or several times."""
    part, own = manifest.part(shard)
    picked = [stored] if part.picks is None else np.flatnonzero(part.picks.of_shard(own) == stored).tolist()
    first = int(manifest.ends[shard] - manifest.counts[shard])
    return [first + place for place in picked]


def _with_text(index: ShardIndex, wanted: bytes) -> Iterator[int]:
    """Yield the samples whose keys contain a string, each once."""
    text = index.key_bytes.tobytes()
    place = text.find(wanted) if wanted else -1
    while place >= 0:
        # The keys are concatenated: a match counts only if it lies within one key.
        sample = int(np.searchsorted(index.key_starts, place, side="right")) - 1
        end = int(index.key_starts[sample + 1])
        if place + len(wanted) <= end:
            yield sample
            place = text.find(wanted, end)
        else:
            place = text.find(wanted, place + 1)


def with_key(index: ShardIndex, key: str) -> list[int]:
    """Return the samples of a shard with a key; an index has at most one."""
    return [sample for sample in _with_text(index, key.encode("utf-8", "surrogateescape")) if index.key(sample) == key]
