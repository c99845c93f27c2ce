"""Match tables with the samples of a data set: a row belongs to every sample whose key it has, in any order of rows."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.host import temporary_dir
from wdsdist._util.validation import hint
from wdsdist.curation import arrays
from wdsdist.curation.columns import ColumnReader
from wdsdist.curation.query import connected
from wdsdist.curation.tables import SUFFIXES, Table, kind_of, open_table, pyarrow
from wdsdist.curation.text_tables import TextTable
from wdsdist.errors import ArgumentError, NotFoundError, SourceError

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

Tables = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_MEMORY = 6 << 30
"""Bytes of memory of a join at most; beyond, DuckDB writes temporary files."""
_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class JoinReport:
    """How the rows of tables and the samples of a data set matched."""

    tables: str
    on: str
    rows: int
    rows_repeated: int
    """Rows with the key of an earlier row, which counts."""
    rows_unmatched: int
    """Rows without a sample."""
    samples_matched: int
    samples_unmatched: int
    """Samples without a row."""

    def __str__(self) -> str:
        return (
            f"{self.tables} by {self.on}: rows {self.rows:,}, {self.rows_unmatched:,} of them without a sample, "
            f"{self.rows_repeated:,} with the key of an earlier row; samples matched {self.samples_matched:,}, "
            f"{self.samples_unmatched:,} without a row"
        )


def keys_of(on: str | Mapping[str, str]) -> tuple[str, str]:
    """Return the column of the data set and the column of the tables that rows are matched by.

    >>> keys_of("json.uid"), keys_of({"json.uid": "uid"})
    (('json.uid', 'json.uid'), ('json.uid', 'uid'))
    """
    if isinstance(on, str) and on:
        return on, on
    if isinstance(on, Mapping) and len(on) == 1 and all(isinstance(name, str) for pair in on.items() for name in pair):
        return next(iter(on.items()))
    raise ArgumentError(
        f"on is {on!r}: it must be the name of a column, or a mapping from the column of the data set to the column of "
        f"the table",
        argument="on",
    )


def locations(tables: Tables, options: storage.StorageOptions) -> list[str]:
    """Return the paths and URLs of tables; for a pattern such as ``meta/*.parquet`` the files that fit.

    Raises `NotFoundError` if no file fits, or one does not exist.
    """
    listed = [tables] if isinstance(tables, (str, os.PathLike)) or not isinstance(tables, Iterable) else list(tables)
    if not listed or not all(isinstance(table, (str, os.PathLike)) for table in listed):
        raise ArgumentError(
            f"join is {tables!r}: it must be the path or URL of a table, or a list of them", argument="join"
        )
    files: list[str] = []
    for location in (storage.normalise(os.fspath(table)) for table in listed):
        folder, name = storage.split(location)
        with contextlib.suppress(FileNotFoundError):
            storage.stat(location, options)
            files.append(location if storage.is_remote(location) else str(Path(location).absolute()))
            continue
        has_pattern = bool(set(name) & set("*?["))
        fitting = fnmatch.filter([entry.name for entry in storage.list(folder, options)], name) if has_pattern else []
        if not fitting:
            raise NotFoundError(f"{storage.shown(location)} {'fits no file' if has_pattern else 'does not exist'}")
        files += locations([storage.join(folder, file) for file in sorted(fitting)], options)
    return files


@contextlib.contextmanager
def opened(location: str, options: storage.StorageOptions | None) -> Iterator[Table]:
    """Open a table at a path or URL; a remote one is fetched into a temporary file.

    Raises `NotFoundError`, and `SourceError` if it is not a table that can be read.
    """
    shown = storage.shown(location)
    kind = kind_of(storage.split(location)[1].partition("?")[0])
    if kind is None:
        raise ArgumentError(
            f"{shown} is not a table that can be joined: its name must end in "
            f"{', '.join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)}"
        )
    with contextlib.ExitStack() as stack:
        path = Path(storage.local_path(location)) if not storage.is_remote(location) else None
        try:
            if path is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()))
                path = Path(folder) / f"table{'.gz' if shown.endswith('.gz') else ''}"
                storage.fetch(location, path, options)
            yield open_table(path, kind=kind, label=shown)
        except IsADirectoryError as error:
            raise SourceError(f"{shown} is a folder: name a file in it") from error
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"{shown} does not exist") from error


def name_in(table: Table, on: str) -> str:
    """Return the column of a table that ``on`` means: ``json.uid`` of a data set is often ``uid`` of a table.

    Raises `ArgumentError` if the table has neither.
    """
    for name in (on, on.rpartition(".")[2]):
        if name in table.schema.names:
            return name
    raise ArgumentError(
        f"{table.label} has no column {on!r} to match samples by: {hint(on, table.schema.names)}", argument="on"
    )


class Matches:
    """The row of each sample in some tables, whose rows are counted one after another.

    Args:
        data: the data set.
        tables: the tables.
        on: the column of the data set and the column of the tables that are compared, as strings.

    Raises `ArgumentError` if a table lacks that column, `SourceError` if its values are nested.
    """

    def __init__(self, data: Manifest, tables: Sequence[Table], on: tuple[str, str]) -> None:
        self._data, self._tables, self._own = data, tables, on[0]
        self._keys = [name_in(table, on[1]) for table in tables]
        self.label = tables[0].label if len(tables) == 1 else f"{len(tables):,} tables"
        num_rows = sum(table.num_rows for table in tables)
        rows, is_matched, is_used = (
            np.full(data.num_samples, num_rows),
            np.zeros(num_rows, bool),
            np.zeros(num_rows, bool),
        )
        for samples, matching in self._pairs():
            np.minimum.at(rows, samples, matching)
            is_matched[matching] = True
        has_row = rows < num_rows
        is_used[rows[has_row]] = True
        self.rows: Int64s = np.where(has_row, rows, -1)
        """int64 [samples]: the first row of each sample; -1 without one."""
        matched, used, with_row = int(is_matched.sum()), int(is_used.sum()), int(has_row.sum())
        self.report = JoinReport(
            self.label, on[0], num_rows, matched - used, num_rows - matched, with_row, len(rows) - with_row
        )

    def _pairs(self) -> Iterator[tuple[Int64s, Int64s]]:
        """Yield the numbers of samples and of rows that have the same key, in any order."""
        pa = pyarrow()
        schema = pa.schema([("n", pa.int64()), ("key", pa.large_string())])

        def numbered(parts: Iterable[Any]) -> Iterator[Any]:
            first = 0
            for part in parts:
                numbers = pa.array(np.arange(first, first + len(part)))
                yield pa.record_batch([numbers, part.cast("large_string")], schema=schema)
                first += len(part)

        reader = ColumnReader(self._data, self._own)
        shards = np.flatnonzero(self._data.counts).tolist()
        own = (chunk for shard in shards for chunk in reader.read([shard]).chunks)
        limit = min(_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 3)
        with (
            tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as scratch,
            connected("join=", scratch=scratch, memory_limit=limit) as connection,
        ):
            for name, parts in (("samples", own), ("rows", self._key_values())):
                connection.register(name, pa.RecordBatchReader.from_batches(schema, numbered(parts)))
            pairs = connection.sql("SELECT samples.n, rows.n FROM samples JOIN rows USING (key)")
            for batch in pa.RecordBatchReader.from_stream(pairs):
                yield batch.column(0).to_numpy(), batch.column(1).to_numpy()

    def _key_values(self) -> Iterator[Any]:
        for table, key in zip(self._tables, self._keys, strict=True):
            for batch in table.batches([key], rows=_ROWS):
                try:
                    yield arrays.plain(batch.column(0), table.schema.field(key).metadata)
                except pyarrow().ArrowInvalid as error:
                    raise SourceError(f"{table.label}: samples cannot be matched by {key!r}: {error}") from error

    def columns(self, only: Collection[str] | None) -> Iterator[tuple[str, Any]]:
        """Yield the name and the values of each column of the tables but the key: an array, one value for each row.

        Nested values are left out. Raises `ArgumentError` for a name in ``only`` that no table has.
        """
        types, known = pyarrow().types, dict[str, None]()
        for table, key in zip(self._tables, self._keys, strict=True):
            known |= dict.fromkeys(field.name for field in table.schema if not types.is_nested(field.type))
            known.pop(key, None)
        for name in only or ():
            if name not in known:
                raise ArgumentError(f"{self.label} has no column {name!r}: {hint(name, known)}", argument="only")
        names = [name for name in known if only is None or name in only]
        is_text = any(isinstance(table, TextTable) for table in self._tables)  # whose rows are parsed once
        for group in [names] if is_text else [[name] for name in names]:
            parts: dict[str, list[Any]] = {name: [pyarrow().nulls(0)] for name in group}
            for table in self._tables:
                present = [name for name in group if name in table.schema.names]
                for batch in table.batches(present, rows=_ROWS) if present else ():
                    for name, values in zip(present, batch.columns, strict=True):
                        parts[name].append(arrays.plain(values, table.schema.field(name).metadata))
                for name in set(group).difference(present):
                    parts[name].append(pyarrow().nulls(table.num_rows))
            for name in group:
                yield name, arrays.concatenated(parts.pop(name)).combine_chunks()

    def check(self) -> None:
        """Raise `ArgumentError` if no row matches a sample."""
        if self.report.samples_matched:
            return
        shards = np.flatnonzero(self._data.counts)[:1].tolist()
        parts = ColumnReader(self._data, self._own).read(shards).chunks, self._key_values()
        sample, row = (next((str(part[0].as_py()) for part in some if len(part)), None) for some in parts)
        raise ArgumentError(
            f"no row of {self.label} matches a sample by {self._own!r}: a sample has {sample!r}, a row {row!r}; name "
            f"the columns of the data set and of the table, as in on={{{self._own!r}: ...}}",
            argument="on",
        )
