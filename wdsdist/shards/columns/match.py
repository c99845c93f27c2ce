"""Match the values of columns by 128-bit hashes: any order, any number, no extra needed.

Short texts and identifiers of 32 hexadecimal digits are their own hash, made by a mixing that can be undone: that is
several times as fast as BLAKE2b, which all others are hashed by.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, Uint64s
from wdsdist.shards.columns.column import Column

_CHUNK = 1_000_000
"""Values that are hashed at once, which bounds memory."""

_SHORT = 15
"""Bytes of the longest text that is its own hash, together with its length."""
_IDENTIFIER = 32

_DIGITS = np.full(256, 255, np.uint8)
_DIGITS[list(b"0123456789abcdef")] = range(16)


class ValueIndex:
    """Values by their hashes, to find the place of each of many others among them.

    >>> ValueIndex([Column.of(["a", "b"]), Column.of(["a", None])]).places(Column.of(["b", "x", None, "a"])).tolist()
    [1, -1, -1, 0]
    """

    def __init__(self, columns: Iterable[Column]) -> None:
        """Hash the values of columns, which need not be kept: their places go on from one to the next."""
        highs, lows, missing = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)], [np.zeros(0, np.uint8)]
        for column in columns:
            hashes = _hashes(column)
            highs.append(hashes[:, 0].copy())
            lows.append(hashes[:, 1].copy())
            missing.append(column.missing)
        # Each array takes 8 bytes a value: no more of them are there at once than have to be.
        high = np.concatenate(highs)
        highs.clear()
        order = np.argsort(high, kind="stable")
        self.num_values = len(order)
        """Values, also missing and equal ones."""
        order = order[np.concatenate(missing)[order] == 0]
        self.num_missing = self.num_values - len(order)
        high = high[order]
        low = np.concatenate(lows)[order]
        lows.clear()
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        self.num_repeated = int(len(order) - is_first.sum())
        """Values that are equal to an earlier one."""
        if self.num_repeated:
            order, high, low = order[is_first], high[is_first], low[is_first]
        self._order, self._high, self._low = order, high, low

    def places(self, column: Column) -> Int64s:
        """Return int64 [samples]: the place of each value of a column among the values, or -1.

        Values are compared as texts, so that 3 is the key ``"3"``. Missing values match nothing. Of equal values the
        first counts.
        """
        found = np.full(len(column), -1, np.int64)
        if not len(self._order):
            return found
        for first in range(0, len(column), _CHUNK):
            part = column.part(first, first + _CHUNK)
            wanted = _hashes(part)
            ascending = np.argsort(wanted[:, 0])  # neighbours are looked up in neighbouring memory
            found[first + ascending] = self._places(wanted[ascending, 0], wanted[ascending, 1])
            found[first : first + len(part)][part.missing.view(np.bool_)] = -1
        return found

    def _places(self, high: Uint64s, low: Uint64s) -> Int64s:
        places = np.minimum(np.searchsorted(self._high, high), len(self._high) - 1)
        # Of two values whose first 64 bits agree, the other one may be meant: once in thousands of 10**8 values.
        further = np.minimum(places + 1, len(self._high) - 1)
        is_further = (self._high[further] == high) & (self._low[further] == low) & (self._low[places] != low)
        places = np.where(is_further, further, places)
        return np.where((self._high[places] == high) & (self._low[places] == low), self._order[places], -1)


def match(column: Column, values: Column) -> Int64s:
    """Return int64 [samples]: the place in ``values`` of each value of a column, or -1; see `ValueIndex.places`.

    >>> match(Column.of(["b", "x", None, "a"]), Column.of(["a", "b", "a"])).tolist()
    [1, -1, -1, 0]
    """
    return ValueIndex([values]).places(column)


def _hashes(column: Column) -> Uint64s:
    """Return uint64 [values, 2]."""
    hashes = np.empty((len(column), 2), np.uint64)
    for first in range(0, len(column), _CHUNK):
        part = column.part(first, first + _CHUNK).as_kind("text")
        assert part.starts is not None
        hashes[first : first + len(part)] = _hashed(part.values, part.starts)
    return hashes


def _hashed(values: npt.NDArray[np.uint8], starts: Int64s) -> Uint64s:
    begin = int(starts[0])
    values, starts = values[begin : int(starts[-1])], starts - begin
    data, lengths = values.data, np.diff(starts)
    hashes = np.zeros((len(lengths), 16), np.uint8)
    for length in np.unique(lengths).tolist():
        chosen = np.flatnonzero(lengths == length)
        if length <= _SHORT:
            hashes[chosen, :length] = values[starts[chosen, None] + np.arange(length)]
            hashes[chosen, _SHORT] = length
            continue
        if length == _IDENTIFIER:
            digits = _DIGITS[values[starts[chosen, None] + np.arange(length)]]
            # The last byte of a short text is at most 15: no identifier must look like one.
            is_identifier = (digits.max(axis=1) < 16) & (digits[:, -2] > 0)
            hashes[chosen[is_identifier]] = (digits[:, ::2] << 4 | digits[:, 1::2])[is_identifier]
            chosen = chosen[~is_identifier]
        places = zip(starts[chosen].tolist(), starts[chosen + 1].tolist(), strict=True)
        digests = b"".join([hashlib.blake2b(data[one:end], digest_size=16).digest() for one, end in places])
        hashes[chosen] = np.frombuffer(digests, np.uint8).reshape(-1, 16)
    return _mixed(hashes.view("<u8"))


def _mixed(words: Uint64s) -> Uint64s:
    """Return pairs of words mixed so that each bit depends on all; different pairs stay different (a Feistel network).

    Without that, the first word of a short text would be its first letters, which many have in common.
    """
    one, other = words[:, 0], words[:, 1]
    for _ in range(2):
        one = one ^ _scrambled(other)
        other = other ^ _scrambled(one)
    return np.stack([one, other], axis=1)


def _scrambled(words: Uint64s) -> Uint64s:
    """Return the finalizer of splitmix64 (Steele, Lea and Flood 2014)."""
    words = (words + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(30)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
