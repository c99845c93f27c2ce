"""Add columns to a data set: values of its members, and values of tables that are joined, which fill gaps.

A file of a column records how its values were made, so that a later call without arguments reads the members of new
shards. It opens no table: the user names a table for each join, and a data set names none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist._util.arrow import concatenated, pyarrow
from wdsdist._util.validation import check_callable, check_integer, check_path, counted
from wdsdist.curation import column_file
from wdsdist.curation.column_file import StoredColumn
from wdsdist.curation.columns import ColumnReader, names
from wdsdist.curation.fields import checked, read_all
from wdsdist.curation.join import JoinedTables, Tables, match
from wdsdist.errors import ArgumentError, IndexFormatError, given, printable

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest
    from wdsdist.shards.progress import ShardsProgress

_log = logging.getLogger("wdsdist")


def add_columns(
    manifest: Manifest,
    *,
    fields: Sequence[str] = (),
    probe: Sequence[str] = (),
    join: Tables | None = None,
    on: str | Mapping[str, str] = "key",
    only: Collection[str] | None = None,
    replace: bool = False,
    output: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[ShardsProgress], None] | None = None,
) -> list[str]:
    """Add columns to a data set, or refresh stale ones; see `Manifest.add_columns`. Return their names."""
    check_callable("progress", progress)
    if workers is not None:
        check_integer("workers", workers, 1)
    folder = None if output is None else check_path("output", output)
    data, requested = manifest.whole, checked(manifest.whole, fields, probe)
    own, joined, tables = "", list[str](), None
    if join is not None:
        own, theirs = _compared(on)
        if own not in {*names(data), *requested}:
            requested += checked(data, [own])
        tables = JoinedTables(data, join, theirs, storage_options)
        joined = tables.names(only)
    elif on != "key" or only is not None:
        raise ArgumentError(f"on and only are for tables: name one by {given('join')}", argument="join")
    used = [*requested, *([own] if own else ()), *joined]
    if not used and not (used := column_file.names(data)):
        raise ArgumentError("the data set has no columns to refresh: say which to add, by fields, probe or join")
    with column_file.adding(data, folder) as write:
        stored = {name: _stored(data, name) for name in used}
        stale = [column for column in stored.values() if column is not None and column.lacking]
        requested += [column.name for column in stale if column.is_read and column.name not in requested]
        if tables is None and (outdated := [column for column in stale if column.tables]):
            columns = ", ".join(column.name for column in outdated)
            paths = ", ".join(sorted({path for column in outdated for path in column.tables}))
            about = f"new shards lack the values of joined columns ({columns}): join their tables again ({paths})"
            _log.warning("%s", printable(about))
        values = dict[str, Any]()

        def fill(name: str, others: Any, origin: str, paths: Sequence[str] = ()) -> None:
            """Fill the gaps of a column, and write it."""
            column = stored[name]
            if name not in values:
                known = dict[int, Any]()
                if column is not None:
                    known = {shard: column.read(shard) for shard in np.flatnonzero(column.groups >= 0).tolist()}
                values[name] = _concatenated(data, known)
            values[name], differing = _filled_up(values[name], others, replace=replace)
            if differing and not replace:
                has = f"{counted(differing, 'sample')} {'has' if differing == 1 else 'have'} another"
                raise ArgumentError(
                    f"{has} {name!r} already than {origin}; nothing was written: pass {given('replace', True)}",
                    argument="replace",
                )
            is_read = name in requested or (column is not None and column.is_read)
            write(name, values[name], dict.fromkeys([*(column.tables if column else ()), *paths]), is_read=is_read)

        every = [*range(len(data.counts))]
        shards = {name: column.lacking if (column := stored[name]) and column.is_read else every for name in requested}
        read = read_all(data, [*filter(shards.get, shards)], sorted(set().union(*shards.values())), workers, progress)
        for name in filter(shards.get, shards):
            fill(name, _concatenated(data, {shard: read[shard][name] for shard in shards[name]}), "the members")
        if tables is not None:
            filled = np.flatnonzero(data.counts).tolist()
            samples = values[own].chunks if own in values else map(ColumnReader(data, own).of_shard, filled)
            rows = match(data, own, samples, tables.keys(), tables.label)
            is_used, unmatched = np.zeros(tables.num_rows, np.bool_), int((rows < 0).sum())
            is_used[rows[rows >= 0]] = True
            num_used = int(is_used.sum())
            _log.log(
                logging.WARNING if unmatched or num_used < tables.num_rows else logging.INFO,
                f"joined {tables.label} by {own}: of {tables.num_rows:,} rows, {num_used:,} give values; "
                f"of {len(rows):,} samples, {unmatched:,} have no row",
            )
            places = pyarrow().array(rows, mask=rows < 0)
            for name in joined:
                fill(name, tables.column(name).take(places), tables.label, tables.paths)
    return list(dict.fromkeys([*requested, *joined]))


def _stored(data: Manifest, name: str) -> StoredColumn | None:
    """Return the file of a column, if it can be used."""
    try:
        return None if column_file.is_free(name) else column_file.load(data, name)
    except IndexFormatError as error:
        _log.warning("%s; its values are not used", error)
        return None


def _concatenated(data: Manifest, known: Mapping[int, Any]) -> Any:
    """Return the values of all samples, as a chunked array; samples of shards without known values have none."""
    counts = enumerate(data.counts.tolist())
    return concatenated(known[n] if n in known else pyarrow().nulls(count) for n, count in counts)


def _filled_up(values: Any, others: Any, *, replace: bool = False) -> tuple[Any, int]:
    """Return values whose gaps are filled from others, and how many samples have different values in both.

    With ``replace``, the others come first. ``values`` is a chunked array, and so is the result.
    """
    both, compute = concatenated([values, others]), pyarrow().compute
    values, others = both[: len(values)], both[len(values) :]
    if str(both.type) == "null":
        return values, 0
    differs = compute.not_equal(values, others)
    if str(both.type) == "double":
        differs = compute.and_not(differs, compute.and_(compute.is_nan(values), compute.is_nan(others)))
    filled = compute.coalesce(others, values) if replace else compute.coalesce(values, others)
    return filled, compute.sum(differs).as_py() or 0


def _compared(on: str | Mapping[str, str]) -> tuple[str, str]:
    """Return the column of the data set and the column of the tables that ``on`` names."""
    match [(on, on)] if isinstance(on, str) else [*on.items()] if isinstance(on, Mapping) else on:
        case [(str(own), str(theirs))]:
            return own, theirs
    raise ArgumentError(
        f"on is {on!r}: it must be the name of a column, or a mapping from the column of the data set to the "
        f"column of the table",
        argument="on",
    )
