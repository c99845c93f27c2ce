"""Match the values of columns, and join tables to a data set: a row belongs to all samples whose key it has.

Values are matched by their 128-bit hashes (XXH3): any order, any number, no extra needed.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from wdsdist import storage
from wdsdist._util.array_types import Int64s, Uint64s
from wdsdist.errors import ArgumentError, NotFoundError
from wdsdist.shards.columns import table
from wdsdist.shards.columns.column import Column
from wdsdist.shards.columns.read import column as column_of

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

Tables = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_CHUNK = 1_000_000
"""Values that are hashed or gathered at once, which bounds memory."""


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


def _hashes(column: Column) -> Uint64s:
    """Return uint64 [values, 2]."""
    hashes = np.empty((len(column), 2), np.uint64)
    for first in range(0, len(column), _CHUNK):
        part = column.part(first, first + _CHUNK).as_kind("text")
        assert part.starts is not None
        hashes[first : first + len(part)] = _hashed(part.values, part.starts)
    return hashes


def _hashed(values: npt.NDArray[np.uint8], starts: Int64s) -> Uint64s:
    data = values.data
    places = itertools.pairwise(starts.tolist())
    digests = b"".join([xxhash.xxh3_128_digest(data[first:last]) for first, last in places])
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class JoinReport:
    """How the rows of tables and the samples of a data set matched."""

    tables: str
    """What was joined, for people."""
    on: str
    rows: int
    rows_repeated: int
    """Rows with the key of an earlier one, which counts."""
    rows_unmatched: int
    """Rows whose key no sample has, or that have none."""
    samples_matched: int
    samples_unmatched: int
    """Samples without a row, whose values are missing."""

    def __str__(self) -> str:
        return (
            f"{self.tables} by {self.on}: rows {self.rows:,}, {self.rows_unmatched:,} of them without a sample, "
            f"{self.rows_repeated:,} with the key of an earlier one; samples matched {self.samples_matched:,}, "
            f"{self.samples_unmatched:,} without a row"
        )


def keys_of(on: str | Mapping[str, str]) -> tuple[str, str]:
    """Return the column of the data set, and that of the tables, which rows are matched by.

    >>> keys_of("json.uid"), keys_of({"json.uid": "uid"})
    (('json.uid', 'json.uid'), ('json.uid', 'uid'))
    """
    if isinstance(on, str) and on:
        return on, on
    if isinstance(on, Mapping) and len(on) == 1 and all(isinstance(one, str) for pair in on.items() for one in pair):
        return next(iter(on.items()))
    raise ArgumentError(
        f"on is {on!r}: it must be the name of a column, or a mapping from that of the data set to that of the table"
    )


def locations(
    given: Tables, own: storage.StorageOptions, storage_options: Mapping[str, Any] | None
) -> tuple[list[str], storage.StorageOptions]:
    """Return the paths and URLs of tables, of a pattern such as ``meta/*.parquet`` those that fit, and their options.

    ``own`` are the options of the data set, which count where no others are given.

    Raises `NotFoundError` where none fits, or one does not exist.
    """
    listed = [given] if isinstance(given, (str, os.PathLike)) or not isinstance(given, Iterable) else list(given)
    if not listed or not all(isinstance(one, (str, os.PathLike)) for one in listed):
        raise ArgumentError(f"join is {given!r}: it must be the path or URL of a table, or a list of them")
    named = [storage.normalise(os.fspath(one)) for one in listed]
    options = own if storage_options is None else storage.named(storage_options, named)
    found: list[str] = []
    for location in named:
        if _exists(location, options):
            found.append(location)
            continue
        folder, name = storage.split(location)
        has_pattern = bool(set(name) & set("*?["))
        fitting = fnmatch.filter([entry.name for entry in storage.list(folder, options)], name) if has_pattern else []
        if not fitting:
            problem = "fits no file" if has_pattern else "does not exist"
            raise NotFoundError(f"{storage.shown(location)} {problem}")
        found += [storage.join(folder, one) for one in fitting]
    return found, options


def _exists(location: str, options: storage.StorageOptions) -> bool:
    try:
        storage.stat(location, options)
    except FileNotFoundError:
        return False
    return True


def read(
    manifest: Manifest,
    tables: Sequence[str],
    on: tuple[str, str],
    only: Collection[str] | None,
    options: storage.StorageOptions,
) -> tuple[JoinReport, Iterator[tuple[str, Column]]]:
    """Match the rows of tables with the samples of a data set.

    Returns a report, and an iterator of the columns by name, each made when it is asked for.

    Raises `ArgumentError` where no row matches, and what `table.parts` raises.
    """
    parts: list[tuple[int, dict[str, Column]]] = []

    def keys() -> Iterator[Column]:
        for location in tables:
            for column, others in table.parts(location, on[1], only, options):
                parts.append((len(column), others))
                examples.extend(column.part(0, 1).array().tolist()[: 1 - len(examples)])
                yield column

    examples: list[Any] = []
    index = ValueIndex(keys())
    own = column_of(manifest, on[0])
    places = index.places(own)
    has_row = places >= 0
    used = np.zeros(index.num_values, np.bool_)
    used[places[has_row]] = True
    matched = int(has_row.sum())
    label = storage.shown(tables[0]) if len(tables) == 1 else f"{len(tables):,} tables"
    unmatched = index.num_values - index.num_repeated - int(used.sum())
    report = JoinReport(label, on[0], index.num_values, index.num_repeated, unmatched, matched, len(places) - matched)
    if not matched:
        sample = own.part(0, 1).array().tolist()
        raise ArgumentError(
            f"no row of {label} matches a sample by {on[0]!r}: a sample has {sample[0] if sample else None!r}, a row "
            f"{examples[0] if examples else None!r}; name the columns with on={{{on[0]!r}: ...}} (--on {on[0]}=...)"
        )
    columns = table.joined(parts)
    parts.clear()
    return report, ((name, _taken(columns.pop(name), places)) for name in list(columns))


def _taken(column: Column, places: Int64s) -> Column:
    """Return the values of rows for samples; those with -1 are missing."""
    parts = []
    for first in range(0, len(places), _CHUNK):
        some = places[first : first + _CHUNK]
        found = column.take(np.maximum(some, 0))
        missing = ((some < 0) | found.missing.view(np.bool_)).view(np.uint8)
        parts.append(Column(found.kind, found.values, found.starts, missing if missing.any() else None))
    return Column.joined(parts)
