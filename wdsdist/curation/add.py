"""Add columns to a data set: values of its members, and values of tables that are joined, which fill gaps.

A file of a column records how its values were made, so that a later call without arguments reads the members of new
shards. It opens no table: the user names a table for each join, and a data set names none.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import check_callable, check_integer, check_path, counted, hint
from wdsdist.curation import arrays, column_file
from wdsdist.curation.column_file import StoredColumn
from wdsdist.curation.columns import ColumnReader, names
from wdsdist.curation.fields import checked, read_all
from wdsdist.curation.join import Tables, column, match, name_in, open_tables
from wdsdist.curation.tables import Table, pyarrow
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
    overwrite: bool = False,
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
    stored, values = functools.cache(functools.partial(_stored, data)), dict[str, Any]()
    candidates, joined, tables = list[str](), list[str](), list[Table]()
    if join is not None:
        own, theirs = _compared(on)
        if own not in {*names(data), *requested}:
            requested += checked(data, [own])
        labels, tables = open_tables(data, join, storage_options)
        joined = _joined(tables, theirs, only)
        candidates = [own, *joined]
    elif not requested:
        candidates = column_file.names(data)
        if not candidates:
            raise ArgumentError("the data set has no columns to refresh: say which to add, by fields, probe or join")
    with column_file.writing(data, folder) as write:
        stale = [column for name in candidates if (column := stored(name)) is not None and column.lacking]
        requested += checked(data, [column.name for column in stale if column.is_read and column.name not in requested])
        if join is None and (outdated := [column for column in stale if column.tables]):
            columns = ", ".join(column.name for column in outdated)
            paths = ", ".join(sorted({path for column in outdated for path in column.tables}))
            about = f"new shards lack the values of joined columns ({columns}): join their tables again ({paths})"
            _log.warning("%s", printable(about))

        def fill(name: str, others: Any, origin: str, paths: Iterable[str], *, is_read: bool) -> None:
            """Fill the gaps of a column, and write it."""
            before, column = values.get(name), stored(name)
            if before is None:
                known = dict[int, Any]()
                if column is not None:
                    known = {n: column.read(n) for n in np.flatnonzero(column.groups >= 0).tolist()}
                before = _concatenated(data, known)
            values[name], differing = arrays.filled_up(before, others, overwrite=overwrite)
            if differing and not overwrite:
                has = f"{counted(differing, 'sample')} {'has' if differing == 1 else 'have'} another"
                raise ArgumentError(
                    f"{has} {name!r} already than {origin}; nothing was written: pass {given('overwrite', True)}",
                    argument="overwrite",
                )
            is_read = is_read or name in requested or (column is not None and column.is_read)
            write(name, values[name], dict.fromkeys([*(column.tables if column else ()), *paths]), is_read=is_read)

        lacking = dict[str, Sequence[int]]()
        for name in requested:
            column = stored(name)
            if column is None or not column.is_read:
                lacking[name] = range(len(data.counts))
            elif column.lacking:
                lacking[name] = column.lacking
        read = read_all(data, list(lacking), sorted(set().union(*lacking.values())), workers, progress)
        for name in lacking:
            fresh = {shard: read[shard][name] for shard in lacking[name]}
            fill(name, _concatenated(data, fresh), "the members", (), is_read=True)
        if tables:
            filled = np.flatnonzero(data.counts).tolist()
            samples = values[own].chunks if own in values else map(ColumnReader(data, own).of_shard, filled)
            rows = _match(data, own, samples, tables, theirs)
        for name in joined:
            fill(name, _taken(tables, name, rows), _label(tables), labels, is_read=False)
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
    return arrays.concatenated(known[n] if n in known else pyarrow().nulls(count) for n, count in counts)


def _compared(on: str | Mapping[str, str]) -> tuple[str, str]:
    """Return the column of the data set and the column of the tables that ``on`` names."""
    pairs = {on: on} if isinstance(on, str) else on
    if not isinstance(pairs, Mapping) or [type(name) for pair in pairs.items() for name in pair] != [str, str]:
        raise ArgumentError(
            f"on is {on!r}: it must be the name of a column, or a mapping from the column of the data set to the "
            f"column of the table",
            argument="on",
        )
    return next(iter(pairs.items()))


def _joined(tables: Sequence[Table], on: str, only: Collection[str] | None) -> list[str]:
    """Return the names of the tables' columns but the key, without columns of nested values; or only some.

    Raises `ArgumentError` if a table lacks the key, or for a name in ``only`` that no table has.
    """
    known = dict[str, None]()
    for table in tables:
        key, is_nested = name_in(table, on), pyarrow().types.is_nested
        known |= dict.fromkeys(each.name for each in table.schema if each.name != key and not is_nested(each.type))
    for name in only or ():
        if name not in known:
            message = f"{tables[0].label} has no column {name!r}: {hint(name, known)}"
            raise ArgumentError(message, argument="only")
    joined = list[str]()
    for name in known if only is None else only:
        if column_file.is_free(name) or not name:
            _log.warning("the column %r of %s is left out: the shards say it", name, _label(tables))
        else:
            joined.append(name)
    return joined


def _match(data: Manifest, own: str, samples: Iterable[Any], tables: Sequence[Table], on: str) -> Int64s:
    """Match the rows of tables, counted one after another, with the samples; return the row of each sample or -1."""
    num_rows = sum(table.num_rows for table in tables)
    keys = itertools.chain.from_iterable(column(table, name_in(table, on)) for table in tables)
    rows, is_matched = match(data, own, samples, keys, num_rows, _label(tables))
    num_used, matched, unmatched = len(np.unique(rows[rows >= 0])), int(is_matched.sum()), int((rows < 0).sum())
    _log.log(
        logging.WARNING if unmatched or num_used < num_rows else logging.INFO,
        f"joined {_label(tables)} by {own}: rows {num_rows:,}, {num_rows - matched:,} of them without a sample, "
        f"{matched - num_used:,} with the key of an earlier row; samples matched {len(rows) - unmatched:,}, "
        f"{unmatched:,} without a row",
    )
    return rows


def _taken(tables: Sequence[Table], name: str, rows: Int64s) -> Any:
    """Return the values of a column of the tables for the samples that have these rows, as an array."""
    parts = list[Any]()
    for table in tables:
        parts += column(table, name) if name in table.schema.names else [pyarrow().nulls(table.num_rows)]
    return arrays.concatenated(parts).combine_chunks().take(pyarrow().array(rows, mask=rows < 0))


def _label(tables: Sequence[Table]) -> str:
    return tables[0].label if len(tables) == 1 else f"{len(tables):,} tables"
