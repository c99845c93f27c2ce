"""Join tables to a data set: the values of a row belong to all samples whose key it has."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist.errors import ArgumentError, ArgumentTypeError, SourceNotFoundError
from wdsdist.shards.columns import table
from wdsdist.shards.columns.column import Column
from wdsdist.shards.columns.match import ValueIndex

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

Tables = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_CHUNK = 4_000_000
"""Samples whose values are gathered at once, which bounds memory."""


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
    raise ArgumentTypeError(
        f"on is {on!r}: it must be the name of a column, or a mapping from that of the data set to that of the table"
    )


def locations(
    given: Tables, own: storage.StorageOptions, storage_options: Mapping[str, Any] | None
) -> tuple[list[str], storage.StorageOptions]:
    """Return the paths and URLs of tables, of a pattern such as ``meta/*.parquet`` those that fit, and their options.

    ``own`` are the options of the data set, which count where no others are given.

    Raises `SourceNotFoundError` where none fits, or one does not exist.
    """
    listed = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    if not listed or not all(isinstance(one, (str, os.PathLike)) for one in listed):
        raise ArgumentTypeError(f"join is {given!r}: it must be the path or URL of a table, or a list of them")
    named = [storage.normalise(os.fspath(one)) for one in listed]
    options = own if storage_options is None else storage.named(storage_options, named)
    found: list[str] = []
    for location in named:
        folder, name = storage.split(location)
        fitting = [name]
        if not storage.exists(location, options):
            has_pattern = bool(set(name) & set("*?["))
            fitting = fnmatch.filter(storage.names(folder, "", options), name) if has_pattern else []
            if not fitting:
                problem = "fits no file" if has_pattern else "does not exist"
                raise SourceNotFoundError(f"{storage.shown(location)} {problem}")
        found += [storage.join(folder, one) for one in fitting]
    return found, options


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
    own = manifest._column(on[0])
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
