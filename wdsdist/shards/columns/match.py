"""Match the values of a column with those of another, by 128-bit hashes: any order, any number, no extra needed."""

from __future__ import annotations

import hashlib

import numpy as np

from wdsdist._util.array_types import Int64s, Uint64s
from wdsdist.shards.columns.column import Column

_CHUNK = 1_000_000
"""Values that are hashed at once, which bounds memory."""


def match(column: Column, values: Column) -> Int64s:
    """Return int64 [samples]: the place in ``values`` of each value of a column, or -1.

    Values are compared as texts, so that 3 is the key ``"3"``. Missing values match nothing. Of equal ``values`` the
    first counts.

    >>> match(Column.of(["b", "x", None, "a"]), Column.of(["a", "b", "a"])).tolist()
    [1, -1, -1, 0]
    """
    high, low = _hashes(values)
    order = np.lexsort((low, high))
    order = order[values.missing[order] == 0]
    high, low = high[order], low[order]
    found = np.full(len(column), -1, np.int64)
    for first in range(0, len(column), _CHUNK):
        part = column.part(first, first + _CHUNK)
        wanted_high, wanted_low = _hashes(part)
        ascending = np.lexsort((wanted_low, wanted_high))  # neighbours are looked up in neighbouring memory
        found[first + ascending] = _places(high, low, order, wanted_high[ascending], wanted_low[ascending])
        found[first : first + len(part)][part.missing.view(np.bool_)] = -1
    return found


def _places(high: Uint64s, low: Uint64s, order: Int64s, wanted: Uint64s, wanted_low: Uint64s) -> Int64s:
    """Return int64: where in ``order`` each wanted hash lies among the sorted ones, or -1."""
    if not len(order):
        return np.full(len(wanted), -1, np.int64)
    places = np.minimum(np.searchsorted(high, wanted), len(high) - 1)
    # Of two values whose first 64 bits agree, the other one may be meant: once in thousands of lists of 10**8 values.
    further = np.minimum(places + 1, len(high) - 1)
    places = np.where(
        (high[further] == wanted) & (low[further] == wanted_low) & (low[places] != wanted_low), further, places
    )
    return np.where((high[places] == wanted) & (low[places] == wanted_low), order[places], -1)


def _hashes(column: Column) -> tuple[Uint64s, Uint64s]:
    digests = np.empty((len(column), 2), np.uint64)
    for first in range(0, len(column), _CHUNK):
        texts = column.part(first, first + _CHUNK).texts()
        joined = b"".join([hashlib.blake2b(text, digest_size=16).digest() for text in texts])
        digests[first : first + len(texts)] = np.frombuffer(joined, "<u8").reshape(-1, 2)
    return digests[:, 0].copy(), digests[:, 1].copy()
