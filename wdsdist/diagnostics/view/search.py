"""Go through the shards of a data set for keys, or for what is wrong, a part of them at a time.

Each call takes a limited time and returns the shard at which the next call continues, so that a page shows results
while the other shards are searched.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from wdsdist.errors import WdsdistError
from wdsdist.samples.member_reader import shard_name
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.shard_indexes import shard_index
from wdsdist.shards.source import picks_of

_SECONDS = 0.4
"""Seconds after which a call returns, at the end of a shard."""
_MOST = 200
"""Samples or problems after which it returns."""


def keys(manifest: Manifest, string: str, *, shard: int, seconds: float = _SECONDS) -> dict[str, Any]:
    """Return the numbers of the samples whose keys contain a string, from a shard on; damaged shards are skipped."""

    def in_shard(number: int) -> list[Any]:
        try:
            index = shard_index(manifest, number)
        except WdsdistError:
            return []  # `problems` names it
        return _numbers(manifest, number, _containing(index, string))

    return _walk(manifest, in_shard, shard, seconds)


def problems(manifest: Manifest, *, shard: int) -> dict[str, Any]:
    """Return what is wrong with shards and their samples, from a shard on, by indexes and sizes alone.

    A problem is a shard that is missing, or is not what its index says (``damaged``); or a sample that was ``left out``
    when the shard was packed or indexed.
    """

    def in_shard(number: int) -> list[Any]:
        name = shard_name(manifest, number)
        try:
            left_out = shard_index(manifest, number).left_out
        except WdsdistError as error:
            return [{"what": "damaged", "shard": name, "key": "", "reason": str(error)}]
        return [{"what": "left out", "shard": name, "key": key, "reason": reason} for key, reason in left_out]

    return _walk(manifest, in_shard, shard, _SECONDS)


def _walk(manifest: Manifest, in_shard: Callable[[int], list[Any]], first: int, seconds: float) -> dict[str, Any]:
    """Return the items of some shards, and the ``"next_shard"`` at which the next call continues, or ``None``."""
    total = len(manifest.counts)
    items: list[Any] = []
    end = time.monotonic() + seconds
    for number in range(max(first, 0), total):
        items += in_shard(number)
        if number + 1 < total and (len(items) >= _MOST or time.monotonic() >= end):
            return {"items": items, "next_shard": number + 1, "num_shards": total}
    return {"items": items, "next_shard": None, "num_shards": total}


def with_key(manifest: Manifest, shard: int, index: ShardIndex, key: str) -> list[int]:
    """Return the numbers of the sample of a shard with a key: a view may have it never, once or several times."""
    return _numbers(manifest, shard, [stored for stored in _containing(index, key) if index.key(stored) == key])


def _numbers(manifest: Manifest, shard: int, samples: list[int]) -> list[int]:
    """Return the numbers in the data set of some stored samples of a shard."""
    picks, first = picks_of(manifest, shard), int(manifest.ends[shard] - manifest.counts[shard])
    chosen = np.array(samples, np.int64) if picks is None else np.flatnonzero(np.isin(picks, samples))
    numbers: list[int] = (first + chosen).tolist()
    return numbers


def _containing(index: ShardIndex, string: str) -> list[int]:
    """Return the samples whose keys contain a string, each once."""
    keys, pattern = index.key_bytes.tobytes(), string.encode("utf-8", "surrogateescape")
    samples = []
    position = keys.find(pattern) if pattern else -1
    while position >= 0:
        # The keys are concatenated: a match counts only if it lies within one key.
        sample = int(np.searchsorted(index.key_starts, position, side="right")) - 1
        end = int(index.key_starts[sample + 1])
        is_within = position + len(pattern) <= end
        if is_within:
            samples.append(sample)
        position = keys.find(pattern, end if is_within else position + 1)
    return samples
