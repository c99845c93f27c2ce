"""Match tables with the samples of a data set: a row belongs to every sample whose key it has, in any order of rows."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import logging
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.host import temporary_dir
from wdsdist._util.validation import counted, hint
from wdsdist.curation import arrays, column_file, fields
from wdsdist.curation.column_file import StoredColumn
from wdsdist.curation.columns import ColumnReader
from wdsdist.curation.query import connected
from wdsdist.curation.tables import Table, kind_of, open_table, pyarrow
from wdsdist.errors import ArgumentError, NotFoundError, SourceError
from wdsdist.shards.shard_indexes import shard_index

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

Tables = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_MEMORY = 6 << 30
"""Bytes of memory of a join at most; beyond, DuckDB writes temporary files."""
_ROWS = 1_000_000
_LOOKED_AT = 200
"""Samples whose values are compared with a table that no sample is in."""
_TEXTS = (*fields.JSON, "txt", "url", "id", "cls")
"""Members whose values are compared with such a table."""
_log = logging.getLogger("wdsdist")


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


class Join(NamedTuple):
    """A join of tables to a data set."""

    data: Manifest
    tables: list[str]
    """The paths and URLs of the tables, whose rows are counted one after another."""
    on: tuple[str, str]
    """The column of the data set and the column of the tables that are compared, as strings."""
    only: Collection[str] | None
    options: storage.StorageOptions | None
    other: Literal["error", "replace", "keep"]
    """What to do for a sample that has another value."""

    @classmethod
    def of(
        cls,
        data: Manifest,
        tables: Tables,
        on: str | Mapping[str, str],
        only: Collection[str] | None,
        storage_options: Mapping[str, Any] | None,
        other: Literal["error", "replace", "keep"],
    ) -> Join:
        """Return a join by the arguments of `Manifest.add_columns`.

        Raises `NotFoundError` for a pattern such as ``meta/*.parquet`` that no file fits.
        """
        pairs = {on: on} if isinstance(on, str) else on
        if not isinstance(pairs, Mapping) or [type(name) for pair in pairs.items() for name in pair] != [str, str]:
            raise ArgumentError(
                f"on is {on!r}: it must be the name of a column, or a mapping from the column of the data set to the "
                f"column of the table",
                argument="on",
            )
        paths: Any = [tables] if isinstance(tables, str | os.PathLike) else tables
        is_list = isinstance(paths, Sequence) and len(paths) > 0
        if not is_list or not all(isinstance(path, str | os.PathLike) for path in paths):
            raise ArgumentError(
                f"join is {tables!r}: it must be the path of a table, or a list of them", argument="join"
            )
        locations, files = [storage.normalise(os.fspath(table)) for table in paths], list[str]()
        options = data.client_options if storage_options is None else storage.named(storage_options, locations)
        for location in locations:
            (folder, name), fitting = storage.split(location), [location]
            is_far = storage.is_remote(location)
            if set(name) & set("*[" if is_far else "*?[") and (is_far or not Path(location).exists()):
                matching = fnmatch.filter([entry.name for entry in storage.list(folder, options)], name)
                fitting = [storage.join(folder, file) for file in sorted(matching)]
            if not fitting:
                raise NotFoundError(f"{storage.shown(location)} fits no file")
            files += [file if is_far else str(Path(file).absolute()) for file in fitting]
        return cls(data, files, next(iter(pairs.items())), only, options, other)

    def write(self, work: Path) -> tuple[JoinReport, list[str]]:
        """Write the columns of the tables into a folder: fill the gaps of columns, and keep the values that they have.

        Returns how rows and samples matched, and the names of the columns.

        Raises `ArgumentError` if a sample has another value already, unless the join says what to do then.
        """
        data, added = self.data, list[str]()
        with contextlib.ExitStack() as stack:
            tables = [stack.enter_context(opened(location, self.options)) for location in self.tables]
            rows, report = match(ColumnReader(data, self.on[0], work), tables, self.on[1])
            for name, new in _columns(tables, self.on[1], self.only):
                if column_file.is_free(name) or not name:
                    _log.warning("the column %r of %s is left out: the shards say it", name, report.tables)
                    continue
                stored = column_file.load_or_warn(data, name, work)
                kind = arrays.common_type([new.type, *([] if stored is None else [stored.type])])
                made_by: dict[str, Any] = {} if stored is None else dict(stored.made_by)
                if self.other != "keep":
                    shown = list(map(storage.shown, self.tables))
                    record = {"tables": shown, "on": list(self.on), "replace": self.other == "replace"}
                    made_by["joins"] = [*(join for join in made_by.get("joins", ()) if join != record), record]
                differing: list[int] = []
                parts = self._parts(rows, new.cast(kind, safe=False), stored, differing)
                failed = (0, "") if stored is None else (stored.num_failed, stored.first_failed)
                column_file.write(data, work, name, kind, made_by, parts, failed)
                added.append(name)
                if sum(differing) and self.other == "error":
                    has = f"{counted(sum(differing), 'sample')} {'has' if sum(differing) == 1 else 'have'}"
                    raise ArgumentError(
                        f"{has} another {name!r} already than {report.tables} says, so nothing was written: pass "
                        f"replace=True to take the new values",
                        argument="replace",
                    )
        return report, added

    def _parts(self, rows: Int64s, new: Any, stored: StoredColumn | None, differing: list[int]) -> Iterator[Any]:
        """Yield the values of each shard, and add to ``differing`` how many of them are there and differ.

        A missing value differs from none.
        """
        pa, compute = pyarrow(), pyarrow().compute
        for shard, (end, count) in enumerate(zip(self.data.ends.tolist(), self.data.counts.tolist(), strict=True)):
            own = rows[end - count : end]
            values = new.take(pa.array(own, mask=own < 0))
            if stored is not None and stored.is_covered[shard]:
                old = stored.read(shard).cast(values.type, safe=False)
                differs = compute.not_equal(old, values)
                if str(old.type) == "double":
                    differs = compute.and_not(differs, compute.and_(compute.is_nan(old), compute.is_nan(values)))
                differing.append(compute.sum(differs).as_py() or 0)
                values = compute.coalesce(*((values, old) if self.other == "replace" else (old, values)))
            yield values


@contextlib.contextmanager
def opened(location: str, options: storage.StorageOptions | None) -> Iterator[Table]:
    """Open a table at a path or URL; a remote one is fetched into a temporary file.

    Raises `NotFoundError`, and `SourceError` if it is not a table that can be read.
    """
    shown, kind = storage.shown(location), kind_of(storage.split(location)[1].partition("?")[0])
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        try:
            path = Path(location if not storage.is_remote(location) else folder)
            if storage.is_remote(location):
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


def match(reader: ColumnReader, tables: Sequence[Table], on: str, argument: str = "on") -> tuple[Int64s, JoinReport]:
    """Match samples with the rows of tables, which are counted one after another; values are compared as strings.

    Args:
        reader: reads the values of the samples.
        tables: the tables.
        on: their column that is compared.
        argument: named by the error if no row matches a sample.

    Returns:
        int64 [samples], the first row of each sample, or -1; and how rows and samples matched.

    Raises `ArgumentError` if a table lacks the column or no row matches, `SourceError` if values are nested.
    """
    pa, data = pyarrow(), reader.manifest
    shards = np.flatnonzero(data.counts).tolist()
    num_rows = sum(table.num_rows for table in tables)
    streams = {
        "samples": (chunk for shard in shards for chunk in reader.read([shard]).chunks),
        "rows": keys_in(tables, on),
    }
    schema = pa.schema([("n", pa.int64()), ("key", pa.large_string())])
    failed: list[Exception] = []

    def numbered(parts: Iterable[Any]) -> Iterator[Any]:
        first = 0
        try:
            for part in parts:
                numbers = pa.array(np.arange(first, first + len(part)))
                yield pa.record_batch([numbers, part.cast("large_string")], schema=schema)
                first += len(part)
        except Exception as error:  # DuckDB would raise another one in its place
            failed.append(error)
            raise

    rows, is_matched = np.full(data.num_samples, num_rows), np.zeros(num_rows, bool)
    limit = min(_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 3)
    with (
        tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as scratch,
        connected("join=", scratch=scratch, memory_limit=limit) as connection,
    ):
        for name, parts in streams.items():
            connection.register(name, pa.RecordBatchReader.from_batches(schema, numbered(parts)))
        try:
            pairs = connection.sql("SELECT samples.n, rows.n FROM samples JOIN rows USING (key)")
            for batch in pa.RecordBatchReader.from_stream(pairs):
                samples, matching = (column.to_numpy() for column in batch.columns)
                np.minimum.at(rows, samples, matching)
                is_matched[matching] = True
        except Exception:
            if failed:
                raise failed[0] from None
            raise
    has_row = rows < num_rows
    label = tables[0].label if len(tables) == 1 else f"{len(tables):,} tables"
    if num_rows and len(rows) and not has_row.any():
        raise ArgumentError(_advice(reader, tables, on, label), argument=argument)
    is_used = np.zeros(num_rows, bool)
    is_used[rows[has_row]] = True
    matched, used, with_row = int(is_matched.sum()), int(is_used.sum()), int(has_row.sum())
    counts = (num_rows, matched - used, num_rows - matched, with_row, len(rows) - with_row)
    return np.where(has_row, rows, -1), JoinReport(label, reader.name, *counts)


def keys_in(tables: Sequence[Table], on: str) -> Iterator[Any]:
    """Yield the values of a column of tables, as arrays."""
    for table, key in [(table, name_in(table, on)) for table in tables]:
        for batch in table.batches([key], rows=_ROWS):
            try:
                yield arrays.plain(batch.column(0), table.schema.field(key).metadata)
            except pyarrow().ArrowInvalid as error:
                raise SourceError(f"{table.label}: samples cannot be matched by {key!r}: {error}") from error


def _columns(tables: Sequence[Table], on: str, only: Collection[str] | None) -> Iterator[tuple[str, Any]]:
    """Yield the name and the values of each column of tables but the key: an array, one value for each row.

    Nested values are left out. Raises `ArgumentError` for a name in ``only`` that no table has.
    """
    known = dict[str, None]()
    for table in tables:
        flat = (field.name for field in table.schema if not pyarrow().types.is_nested(field.type))
        known |= dict.fromkeys(name for name in flat if name != name_in(table, on))
    for name in only or ():
        if name not in known:
            raise ArgumentError(f"{tables[0].label} has no column {name!r}: {hint(name, known)}", argument="only")
    for name in known if only is None else only:
        parts = []
        for table in tables:
            if name in table.schema.names:
                kind = table.schema.field(name).metadata
                parts += [arrays.plain(batch.column(0), kind) for batch in table.batches([name], rows=_ROWS)]
            else:
                parts.append(pyarrow().nulls(table.num_rows))
        yield name, arrays.concatenated(parts).combine_chunks()


# Advice if no row matches


def _advice(reader: ColumnReader, tables: Sequence[Table], on: str, label: str) -> str:
    """Return an error that shows a value of each side, and names the column whose values look like the tables'."""
    own = reader.name
    listed = [value for part in keys_in(tables, on) for value in part.cast("large_string").to_pylist() if value]
    known, shapes = set(listed), {_shape(value) for value in listed[:_LOOKED_AT]}
    values_of = examples(reader.manifest, own)
    sample, row = next(iter(values_of.get(own, ())), None), next(iter(listed), None)
    alike = {
        name: (sum(value in known for value in values), sum(_shape(value) in shapes for value in values))
        for name, values in values_of.items()
        if name != own
    }
    best = max(alike, key=lambda name: alike[name], default="")
    advice = "name the columns of the data set and of the table with on="
    if best and any(alike[best]):
        advice = f"the values of {best!r} look alike, so pass on={best!r} (--on {best})"
    return f"no sample's {own} is in {label}, which has {row!r}, and a sample {sample!r}: {advice}"


def _shape(value: str) -> str:
    """Return the pattern of a join value: the first letters, digits and separators, which similar values share.

    >>> _shape("https://a.b/c") == _shape("http://x.y/z/0.jpg"), _shape("000012") == _shape("cat")
    (True, False)
    """
    return re.sub("[A-Za-z]+", "a", re.sub("[0-9]+", "0", value))[:4]


def examples(data: Manifest, on: str) -> dict[str, list[str]]:
    """Return some values of the columns, and of the fields in JSON members, of the first samples of a data set."""
    part = next(part for part in data.data_sets if part.num_samples).whole
    shard = int((part.counts > 0).argmax())
    examples: dict[str, list[str]] = {}
    for name in dict.fromkeys([column_file.KEY, on, *column_file.names(part)]):
        with contextlib.suppress(ArgumentError):
            values = ColumnReader(part, name).read([shard]).slice(0, _LOOKED_AT).cast("large_string")
            examples[name] = [value for value in values.to_pylist() if value]
    index = shard_index(part, shard)
    small = [fields.Field("field", name.lower()) for name in index.extensions if fields.kind_of(name) in _TEXTS]
    for member, column in fields.read(part, shard, small, np.arange(min(index.num_samples, _LOOKED_AT))).items():
        for value in filter(None, column.values.cast("large_string").to_pylist()):
            row = json.loads(value) if fields.kind_of(member) in fields.JSON else value
            for name, inner in row.items() if isinstance(row, dict) else [("", row)]:
                if isinstance(inner, (str, int)) and inner != "":
                    examples.setdefault(f"{member}.{name}".removesuffix("."), []).append(str(inner))
    return examples
