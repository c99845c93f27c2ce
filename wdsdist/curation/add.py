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
from wdsdist.curation.fields import parsed, read_all
from wdsdist.curation.join import Tables, column, match, name_in, open_tables
from wdsdist.curation.tables import Table, pyarrow
from wdsdist.errors import ArgumentError, IndexFormatError, printable

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
    data, requested = manifest.whole, parsed(manifest.whole, fields, probe)
    kinds = {field.name: field.kind for field in requested}

    @functools.cache
    def kept(name: str) -> StoredColumn | None:
        """Return the file of a column whose values stay."""
        try:
            stored = column_file.load(data, name)
        except IndexFormatError as error:
            _log.warning("%s; its values are not used", error)
            return None
        if stored is None or kinds.get(name, stored.kind) == stored.kind:
            return stored
        if not overwrite and _values(data, stored).null_count < data.num_samples:
            origin = "that were joined" if stored.tables else f"of a {stored.kind}"
            raise ArgumentError(f"the column {name!r} has values {origin}: pass overwrite=True to drop them")
        return None

    candidates, joined, tables = list[str](), list[str](), list[Table]()
    if join is not None:
        own, theirs = _compared(on)
        if own not in {*names(data), *kinds}:
            requested += parsed(data, [own], [])
        labels, tables = open_tables(data, join, storage_options)
        joined = _joined(tables, theirs, only)
        candidates = [own, *joined]
    elif not requested:
        candidates = column_file.names(data)
        if not candidates:
            raise ArgumentError("the data set has no columns to refresh: say which to add, by fields, probe or join")
    made, shards = dict[str, Any](), set[int]()
    with column_file.writing(data, folder) as write:
        files = [kept(name) for name in candidates if name not in kinds and not column_file.is_free(name)]
        stale = [stored for stored in files if stored is not None and stored.is_stale]
        requested += parsed(data, *([each.name for each in stale if each.kind == kind] for kind in ("field", "probe")))
        if join is None and (lacking := [each for each in stale if each.tables]):
            columns = ", ".join(each.name for each in lacking)
            paths = ", ".join(sorted({path for each in lacking for path in each.tables}))
            about = f"new shards lack the values of joined columns ({columns}): join their tables again ({paths})"
            _log.warning("%s", printable(about))
        incomplete = [field for field in requested if (stored := kept(field.name)) is None or stored.is_stale]
        for field in incomplete:
            stored = kept(field.name)
            shards.update(range(len(data.counts)) if stored is None else np.flatnonzero(stored.groups < 0).tolist())
        read = read_all(data, incomplete, sorted(shards), workers, progress)
        for field in incomplete:
            stored = kept(field.name)
            fresh = {shard: arrays_of[field.name] for shard, arrays_of in read.items()}
            made[field.name] = _values(data, stored, fresh)
            write(field.name, made[field.name], field.kind, stored.tables if stored else [])
        if tables:
            filled = np.flatnonzero(data.counts).tolist()
            samples = made[own].chunks if own in made else map(ColumnReader(data, own).of_shard, filled)
            rows = _match(data, own, samples, tables, theirs)
        for name in joined:
            stored = kept(name)
            values = made[name] if name in made else _values(data, stored)
            values, differing = arrays.filled_up(values, _taken(tables, name, rows), overwrite=overwrite)
            if differing and not overwrite:
                has = f"{counted(differing, 'sample')} {'has' if differing == 1 else 'have'}"
                raise ArgumentError(
                    f"{has} another {name!r} already than {_label(tables)}; nothing was written: pass overwrite=True",
                    argument="overwrite",
                )
            before = stored.tables if stored else []
            kind = kinds.get(name) or (stored.kind if stored else "table")
            write(name, values, kind, dict.fromkeys([*before, *labels]))
    return list(dict.fromkeys([*(field.name for field in requested), *joined]))


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


def _values(data: Manifest, stored: StoredColumn | None, fresh: Mapping[int, Any] | None = None) -> Any:
    """Return the values of all samples, as a chunked array: of the shards that a file has, or else ``fresh`` ones."""

    def values(shard: int, count: int) -> Any:
        if stored is not None and stored.groups[shard] >= 0:
            return stored.read(shard)
        return fresh[shard] if fresh else pyarrow().nulls(count)

    return arrays.concatenated(itertools.starmap(values, enumerate(data.counts.tolist())))
