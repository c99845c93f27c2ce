"""Add columns to a data set: values from its members, and values from tables that are joined.

The sources of a column are recorded with it, and the first that has a value for a sample counts. So a join fills gaps,
and a later call makes the values of new shards.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wdsdist import storage
from wdsdist._util.pools import Carried, completed, pool
from wdsdist._util.validation import check_callable, check_integer, check_path, counted
from wdsdist.curation import arrays, column_file
from wdsdist.curation.column_file import Source, StoredColumn
from wdsdist.curation.columns import ColumnReader, names
from wdsdist.curation.fields import KINDS, Field, Values, parsed, read
from wdsdist.curation.join import Join, Tables, opened, table_paths
from wdsdist.curation.tables import Table, pyarrow
from wdsdist.errors import ArgumentError, IndexFormatError
from wdsdist.shards.progress import Report, ShardsProgress

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_log = logging.getLogger("wdsdist")


class Added(NamedTuple):
    """What adding columns did."""

    folder: Path
    columns: tuple[str, ...]


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
) -> Added:
    """Add columns to a data set, or refresh stale ones; see `Manifest.add_columns`."""
    check_callable("progress", progress)
    if workers is not None:
        check_integer("workers", workers, 1)
    data, requested, new_join = manifest.whole, parsed(manifest.whole, fields, probe), None
    paths, options = ({}, manifest.client_options) if join is None else table_paths(data, join, storage_options)
    if join is not None:
        new_join = {"tables": [*paths], "on": _compared(on)}
        if new_join["on"][0] not in {*names(data), *(field.name for field in requested)}:
            requested += parsed(data, [new_join["on"][0]], [])
    elif not requested and not column_file.names(data):
        raise ArgumentError("the data set has no columns to refresh: say which to add, by fields, probe or join")
    with contextlib.ExitStack() as stack:
        chosen = None if output is None else check_path("output", output)
        folder, write = stack.enter_context(column_file.writing(data, chosen))
        columns = _Columns(
            data,
            read=functools.partial(from_members, data, workers=workers, progress=progress),
            open_table=lambda path: stack.enter_context(opened(paths.get(path, path), options)),
        )
        added = [field.name for field in requested]
        for field in requested:
            sources = columns[field.name].sources
            if not replace and field.source not in sources and any("tables" in source for source in sources):
                raise ArgumentError(
                    f"the column {field.name!r} has values that were joined: pass replace=True to drop them"
                )
            if field.source not in sources:  # another way to make it: its values are dropped
                columns[field.name] = _Column(None, [field.source])
        if not requested and new_join is None:
            added = [name for name in column_file.names(data) if columns.is_incomplete(name)]
        incomplete = list(filter(columns.is_incomplete, added))
        columns.read_members(incomplete)
        for name in incomplete:
            write(name, columns.values_of(name), columns[name].sources)
        if new_join is not None:
            joined = columns.joined(new_join)
            for name in joined.columns(only):
                if column_file.is_free(name) or not name:
                    _log.warning("the column %r of %s is left out: the shards say it", name, joined.label)
                    continue
                values, differing = arrays.filled_up(columns.values_of(name), joined.values(name), replace=replace)
                if differing and not replace:
                    has = f"{counted(differing, 'sample')} {'has' if differing == 1 else 'have'}"
                    raise ArgumentError(
                        f"{has} another {name!r} already than {joined.label} says, so nothing was written: "
                        f"pass replace=True to take the new values",
                        argument="replace",
                    )
                others = [source for source in columns[name].sources if source != new_join]
                write(name, values, [new_join, *others] if replace else [*others, new_join])
                added.append(name)
    return Added(folder, tuple(dict.fromkeys(added)))


def _compared(on: str | Mapping[str, str]) -> list[str]:
    """Return the column of the data set and the column of the tables that ``on`` names."""
    pairs = {on: on} if isinstance(on, str) else on
    if not isinstance(pairs, Mapping) or [type(name) for pair in pairs.items() for name in pair] != [str, str]:
        raise ArgumentError(
            f"on is {on!r}: it must be the name of a column, or a mapping from the column of the data set to the "
            f"column of the table",
            argument="on",
        )
    return list(next(iter(pairs.items())))


class _Column(NamedTuple):
    """A column that is made or completed."""

    stored: StoredColumn | None
    """Its file, whose values stay."""
    sources: list[Source]


class _Columns(dict[str, _Column]):
    """The columns of a data set as they are now, by name, and their sources, each of which is read once.

    Args:
        data: the data set.
        read: reads columns of members in some shards.
        open_table: opens a table by its recorded path.
    """

    def __init__(
        self,
        data: Manifest,
        read: Callable[[Sequence[Field], Sequence[int]], dict[str, Any]],
        open_table: Callable[[str], Table],
    ) -> None:
        self.data, self._read, self._open_table = data, read, open_table
        self._members: dict[str, Any] = {}
        self._joins: dict[str, Join] = {}

    def __missing__(self, name: str) -> _Column:
        """Look up a column in the files; a damaged file is replaced."""
        stored = None
        try:
            stored = column_file.load(self.data, name)
        except IndexFormatError as error:
            _log.warning("%s; it is replaced", error)
        self[name] = _Column(stored, [] if stored is None else stored.sources)
        return self[name]

    def is_incomplete(self, name: str) -> bool:
        """Return whether a column is stale: it has sources, but no values of some shards."""
        stored, sources = self[name]
        return bool(sources) and (stored is None or stored.is_stale)

    def values_of(self, name: str) -> Any:
        """Return the values of all samples, a chunked array: the first that the file or a source has."""
        stored, sources = self[name]
        values = pyarrow().chunked_array([pyarrow().nulls(self.data.num_samples)])
        if stored is not None:
            values = arrays.concatenated(
                [
                    pyarrow().nulls(count) if stored.groups[shard] < 0 else stored.read(shard)
                    for shard, count in enumerate(self.data.counts.tolist())
                ]
            )
        for source in sources if self.is_incomplete(name) else ():
            if "tables" not in source and name not in self._members:
                self.read_members([name])
            more = self.joined(source).values(name) if "tables" in source else self._members[name]
            values, _ = arrays.filled_up(values, more)
        return values

    def joined(self, source: Source) -> Join:
        """Return the tables of a source, matched with the samples."""
        key = json.dumps(source)
        if key not in self._joins:
            own, tables = source["on"][0], [self._open_table(path) for path in source["tables"]]
            self._joins[key] = Join(self.data, tables, source["on"], functools.partial(self._parts_of, own))
        return self._joins[key]

    def _parts_of(self, name: str) -> Iterator[Any]:
        """Yield the values of a column that is made or not, shard by shard if it is in a file."""
        if self.is_incomplete(name):
            yield from self.values_of(name).chunks
            return
        reader = ColumnReader(self.data, name)
        for shard in np.flatnonzero(self.data.counts).tolist():
            yield from reader.read([shard]).chunks

    def read_members(self, names: Sequence[str]) -> None:
        """Read columns of members, in the shards that the file of any of them lacks."""
        sources = [source for name in names for source in self[name].sources]
        fields = parsed(self.data, *([source[kind] for source in sources if kind in source] for kind in KINDS))
        lacking = np.zeros(len(self.data.counts), np.bool_)
        for field in fields:
            stored = self[field.name].stored
            lacking |= True if stored is None else stored.groups < 0
        self._members |= self._read(fields, np.flatnonzero(lacking).tolist())


def from_members(
    data: Manifest, fields: Sequence[Field], shards: Sequence[int], workers: int | None = None, progress: Report = None
) -> dict[str, Any]:
    """Return columns of the members of some shards: chunked arrays by name, with no values for the other shards."""
    if not fields:
        return {}
    made: dict[int, dict[str, Values]] = {}

    def report() -> None:
        if progress:
            sizes, done = data.sizes.clip(0), list(made)
            in_bytes = int(sizes[done].sum()), int(sizes[shards].sum())
            progress(ShardsProgress(len(done), len(shards), *in_bytes, int(data.counts[done].sum())))

    report()
    carried = Carried((data, fields))
    is_remote = any(storage.is_remote(data.location(shard)) for shard in shards)
    with pool(workers, len(shards), remote=is_remote) as executor:
        futures = {executor.submit(_read, carried, shard): shard for shard in shards}
        for future in completed(futures):
            made[futures[future]] = future.result()
            report()
    columns = {}
    for field in fields:
        parts = []
        for shard, count in enumerate(data.counts.tolist()):
            parts.append(made[shard][field.name] if shard in made else Values(pyarrow().nulls(count)))
        if failed := sum(part.num_failed for part in parts):
            shard = next(shard for shard, part in enumerate(parts) if part.num_failed)
            first = f"{data.shown_name(shard)}: {parts[shard].first_failed}"
            _log.warning(
                "%s: the members of %s cannot be read, and have no value, such as %s",
                field.name, counted(failed, "sample"), first,
            )  # fmt: skip
        columns[field.name] = arrays.concatenated([part.values for part in parts])
    return columns


def _read(carried: Carried[tuple[Manifest, Sequence[Field]]], shard: int) -> dict[str, Values]:
    data, fields = carried.value
    return read(data, shard, fields)
