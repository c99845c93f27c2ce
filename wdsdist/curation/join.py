"""Join tables to a data set: a row belongs to every sample whose key it has, in whatever order the rows come."""

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
from wdsdist.curation import arrays, database
from wdsdist.curation.columns import ColumnReader
from wdsdist.curation.tables import SUFFIXES, Table, kind_of, open_table, pyarrow
from wdsdist.errors import ArgumentError, NotFoundError, SourceError

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

Tables = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_MEMORY = 4 << 30
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
    if isinstance(on, Mapping) and len(on) == 1 and all(isinstance(one, str) for pair in on.items() for one in pair):
        return next(iter(on.items()))
    raise ArgumentError(
        f"on is {on!r}: it must be the name of a column, or a mapping from the column of the data set to the column of "
        f"the table",
        argument="on",
    )


def locations(given: Tables, options: storage.StorageOptions) -> list[str]:
    """Return the paths and URLs of tables; for a pattern such as ``meta/*.parquet`` the files that fit.

    Raises `NotFoundError` if no file fits, or one does not exist.
    """
    listed = [given] if isinstance(given, (str, os.PathLike)) or not isinstance(given, Iterable) else list(given)
    if not listed or not all(isinstance(one, (str, os.PathLike)) for one in listed):
        raise ArgumentError(
            f"join is {given!r}: it must be the path or URL of a table, or a list of them", argument="join"
        )
    found: list[str] = []
    for location in (storage.normalise(os.fspath(one)) for one in listed):
        folder, name = storage.split(location)
        if _exists(location, options):
            found.append(location if storage.is_remote(location) else str(Path(location).absolute()))
            continue
        has_pattern = bool(set(name) & set("*?["))
        fitting = fnmatch.filter([entry.name for entry in storage.list(folder, options)], name) if has_pattern else []
        if not fitting:
            raise NotFoundError(f"{storage.shown(location)} {'fits no file' if has_pattern else 'does not exist'}")
        found += locations([storage.join(folder, one) for one in sorted(fitting)], options)
    return found


def _exists(location: str, options: storage.StorageOptions) -> bool:
    try:
        storage.stat(location, options)
    except FileNotFoundError:
        return False
    return True


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
    """Return the column of a table that ``on`` means: ``json.uid`` of a data set is often ``uid`` of a table."""
    for name in (on, on.rpartition(".")[2]):
        if name in table.schema.names:
            return name
    raise ArgumentError(
        f"{table.label} has no column {on!r} to match samples by: {hint(on, table.schema.names)}", argument="on"
    )


class Joined:
    """Tables whose rows are matched with the samples of a data set.

    Raises `ArgumentError` if a table lacks a column.
    """

    def __init__(
        self, data: Manifest, tables: Sequence[Table], on: tuple[str, str], only: Collection[str] | None
    ) -> None:
        self._tables = tables
        keys = [name_in(table, on[1]) for table in tables]
        wanted = dict.fromkeys(
            name for table, key in zip(tables, keys, strict=True) for name in table.schema.names if name != key
        )
        for name in only or ():
            if name not in wanted:
                label = tables[0].label
                raise ArgumentError(f"{label} has no column {name!r}: {hint(name, list(wanted))}", argument="only")
        self.names = [name for name in wanted if only is None or name in only]
        total = sum(table.num_rows for table in tables)
        self.rows = np.full(data.num_samples, total, np.int64)
        """int64 [samples]: the row of each sample, counted over all tables; their number if there is none."""
        is_matched, examples = np.zeros(total, np.bool_), dict[str, Any]()
        for samples, rows in self._matches(data, on[0], keys, examples):
            np.minimum.at(self.rows, samples, rows)
            is_matched[rows] = True
        has_row = self.rows < total
        used = len(np.unique(self.rows[has_row])) if len(self.rows) else 0
        matched, label = int(has_row.sum()), self._label()
        self._examples = [repr(examples.get(name)) for name in ("samples", "rows")]
        unmatched = total - int(is_matched.sum())
        self.report = JoinReport(
            label, on[0], total, total - unmatched - used, unmatched, matched, len(has_row) - matched
        )
        self.rows[~has_row] = -1

    def check_matched(self) -> None:
        """Raise `ArgumentError` if no row matches a sample."""
        if not self.report.samples_matched:
            on, (sample, row) = self.report.on, self._examples
            raise ArgumentError(
                f"no row of {self.report.tables} matches a sample by {on!r}: a sample has {sample}, a row {row}; name "
                f"the columns of the data set and of the table, as in on={{{on!r}: ...}}",
                argument="on",
            )

    def _label(self) -> str:
        return self._tables[0].label if len(self._tables) == 1 else f"{len(self._tables):,} tables"

    def _matches(
        self, data: Manifest, own: str, keys: list[str], examples: dict[str, Any]
    ) -> Iterator[tuple[Int64s, Int64s]]:
        """Yield the numbers of samples and of rows that have the same key."""
        pa = pyarrow()
        reader, batches = ColumnReader(data, own), list[Any]()

        def stream(name: str, parts: Iterable[Any]) -> Iterator[Any]:
            first = 0
            for part in parts:
                strings = arrays.as_strings(part)
                strings = strings.combine_chunks() if isinstance(strings, pa.ChunkedArray) else strings
                if len(strings):
                    examples.setdefault(name, strings[0].as_py())
                yield pa.record_batch([pa.array(np.arange(first, first + len(strings))), strings], names=["n", "key"])
                first += len(strings)

        def of_tables() -> Iterator[Any]:
            for table, key in zip(self._tables, keys, strict=True):
                for batch in table.batches([key], rows=_ROWS):
                    batches[:] = [arrays.plain(batch.column(0))]
                    if batches[0] is None:
                        raise SourceError(
                            f"{table.label}: samples cannot be matched by {key!r}, whose values are nested"
                        )
                    yield batches[0]

        limit = min(_MEMORY, database.total_memory() // 3)
        with (
            tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as scratch,
            database.connected("join=", scratch=scratch, memory_limit=limit) as connection,
        ):
            schema = pa.schema([("n", pa.int64()), ("key", pa.large_string())])
            groups = database.shard_groups(data, _ROWS)
            for name, parts in (("samples", (reader.read(group) for group in groups)), ("rows", of_tables())):
                connection.register(name, pa.RecordBatchReader.from_batches(schema, stream(name, parts)))
            relation = connection.sql("SELECT samples.n AS sample, rows.n AS row FROM samples JOIN rows USING (key)")
            for batch in pa.RecordBatchReader.from_stream(relation):
                yield batch.column(0).to_numpy(), batch.column(1).to_numpy()

    def columns(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the values of each column of the tables: an array, one value for each row."""
        is_text = any(kind_of(table.label) not in ("parquet", "arrow") for table in self._tables)
        for group in [self.names] if is_text else [[name] for name in self.names]:
            parts: dict[str, list[Any]] = {name: [] for name in group}
            for table in self._tables:
                present = [name for name in group if name in table.schema.names]
                for batch in table.batches(present, rows=_ROWS) if present else ():
                    for name, values in zip(present, batch.columns, strict=True):
                        parts[name].append(arrays.plain(values))
                for name in set(group) - set(present):
                    parts[name].append(pyarrow().nulls(table.num_rows))
            for name in group:
                if all(part is not None for part in parts[name]):
                    kind = arrays.common_type(parts[name])
                    yield (
                        name,
                        pyarrow().concat_arrays([part.cast(kind) for part in parts.pop(name)] or [pyarrow().nulls(0)]),
                    )
