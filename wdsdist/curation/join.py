"""Match tables with the samples of a data set: a row belongs to every sample whose key it has, in any order of rows."""

from __future__ import annotations

import contextlib
import difflib
import json
import logging
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.arrow import concatenated, pyarrow
from wdsdist._util.host import temporary_dir
from wdsdist._util.validation import hint
from wdsdist.curation import column_file, fields
from wdsdist.curation.columns import ColumnReader
from wdsdist.curation.query import connected
from wdsdist.errors import ArgumentError, given
from wdsdist.packing.tables.table import open_at
from wdsdist.shards.open import matching
from wdsdist.shards.shard_indexes import shard_index

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

Tables = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_MEMORY = 4 << 30
"""Bytes of memory of a join at most; beyond, DuckDB writes temporary files."""
_NONE = np.iinfo(np.int64).max
_LOOKED_AT = 200
"""Samples whose small members are looked at for values that a table may have."""
_SMALL = (*fields.JSON, "txt", "url", "id", "cls")
_SHOWN = 8
"""Columns and fields whose values are shown if no sample has a row."""
_log = logging.getLogger("wdsdist")


class JoinedTables:
    """The rows of tables, one table after another.

    Args:
        data: the data set; the options of its stores serve for the tables too, unless ``storage_options`` are given.
        tables: their paths, URLs and patterns.
        on: the column that is matched with samples; ``json.uid`` of a data set is often ``uid`` of a table.
        storage_options: of the stores of the tables.

    Raises `ArgumentError` if a table lacks that column, `NotFoundError` for a pattern that nothing matches, and what
    `open_at` raises.
    """

    def __init__(
        self, data: Manifest, tables: Tables, on: str, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        paths: Any = [tables] if isinstance(tables, str | os.PathLike) else tables
        is_list = isinstance(paths, Sequence) and len(paths) > 0
        if not is_list or not all(isinstance(path, str | os.PathLike) for path in paths):
            message = f"join is {tables!r}: it must be the path of a table, or a list of them"
            raise ArgumentError(message, argument="join")
        named = [storage.normalise(os.fspath(path)) for path in paths]
        options = data.client_options if storage_options is None else storage.named(storage_options, named)
        named = [path if storage.is_remote(path) else str(Path(path).absolute()) for path in named]
        self.paths = [storage.shown(path) for path in named]
        """The paths, URLs and patterns, without credentials."""
        self._tables = [open_at(path, options) for pattern in named for path in matching(pattern, options)]
        self._keys = [table.name_of(on) for table in self._tables]
        self.num_rows = sum(table.num_rows for table in self._tables)
        self.label = self._tables[0].label if len(self._tables) == 1 else f"{len(self._tables):,} tables"

    def names(self, only: Collection[str] | None) -> list[str]:
        """Return the names of all columns but the key and nested ones, or only some.

        Raises `ArgumentError` for a name in ``only`` that no table has.
        """
        is_nested, pairs = pyarrow().types.is_nested, zip(self._tables, self._keys, strict=True)
        joined = (each.name for table, key in pairs for each in table.schema
                  if each.name != key and not is_nested(each.type))  # fmt: skip
        known = list(dict.fromkeys(joined))
        names = known if only is None else list(only)
        if unknown := [name for name in names if name not in known]:
            message = f"{self._tables[0].label} has no column {unknown[0]!r}: {hint(unknown[0], known)}"
            raise ArgumentError(message, argument="only")
        for name in (built_in := [name for name in names if column_file.is_free(name) or not name]):
            _log.warning("the column %r of %s is left out: the shards say it", name, self.label)
        return [name for name in names if name not in built_in]

    def keys(self) -> Iterator[Any]:
        """Yield the values that are matched, of all rows, as arrays."""
        for table, key in zip(self._tables, self._keys, strict=True):
            yield from table.values(key)

    def column(self, name: str) -> Any:
        """Return a column of all rows as a chunked array; a table without it has missing values."""
        parts = list[Any]()
        for table in self._tables:
            parts += table.values(name) if name in table.schema.names else [pyarrow().nulls(table.num_rows)]
        return concatenated(parts)


def match(
    data: Manifest, own: str, samples: Iterable[Any], keys: Iterable[Any], label: str, argument: str = "on"
) -> Int64s:
    """Match samples with rows by a value of each, compared as strings; of rows with the same value the first counts.

    Args:
        data: the data set or view.
        own: the column of the samples that is compared.
        samples: its values, as arrays.
        keys: the values of the rows, as arrays.
        label: the name of the rows in messages.
        argument: named by the error if no row matches a sample.

    Returns:
        int64 [samples]: the row of each sample, or -1.

    Raises `ArgumentError` if no row matches.
    """
    pa, failed = pyarrow(), list[Exception]()
    schema = pa.schema([("n", pa.int64()), ("key", pa.large_string())])
    first: dict[str, str] = {}
    counts = {"samples": 0, "rows": 0}

    def numbered(name: str, parts: Iterable[Any]) -> Iterator[Any]:
        try:
            for part in parts:
                start, strings = counts[name], part.cast("large_string")
                counts[name] += len(part)
                if name not in first and (value := _first(strings)):
                    first[name] = value
                yield pa.record_batch([pa.array(np.arange(start, counts[name])), strings], schema=schema)
        except Exception as error:  # DuckDB would raise another one in its place
            failed.append(error)
            raise

    rows = np.full(data.num_samples, _NONE)
    memory = min(_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 3)
    with (
        tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as scratch,
        connected(given("join"), temp_directory=scratch, memory_limit=f"{memory}B") as connection,
    ):
        for name, parts in (("samples", samples), ("rows", keys)):
            connection.register(name, pa.RecordBatchReader.from_batches(schema, numbered(name, parts)))
        try:
            pairs = connection.sql("SELECT samples.n, rows.n FROM samples JOIN rows USING (key)")
            for batch in pa.RecordBatchReader.from_stream(pairs):
                np.minimum.at(rows, *(column.to_numpy() for column in batch.columns))
        except Exception:
            if failed:
                raise failed[0] from None
            raise
    if counts["rows"] and len(rows) and (rows == _NONE).all():
        values, row = {own: first.get("samples", "")} | examples(data), first.get("rows", "")
        alike = difflib.get_close_matches(row, values.values(), 1)
        better = next((name for name, value in values.items() if name != own and value in alike), None)
        order = sorted(values, key=lambda name: (name != own, name != better))[:_SHOWN]
        shown = ", ".join(f"{name} {values[name][:40]!r}" for name in order)
        if better is None:
            remedy = f"name the columns of the data set and of the table with {given('on')}"
        else:
            remedy = f"pass {given('on', better)}"
        raise ArgumentError(
            f"no sample's {own} is in {label}, which has {row!r}; samples have {shown}: {remedy}",
            argument=argument,
        )
    return np.where(rows == _NONE, -1, rows)


def _first(values: Any) -> str:
    """Return the first value that is neither missing nor empty, as a string; an empty string if there is no such."""
    strings: list[str | None] = values.slice(0, _LOOKED_AT).cast("large_string").to_pylist()
    return next(filter(None, strings), "")


def examples(data: Manifest) -> dict[str, str]:
    """Return a value of each column, and of each field in small members, of the first samples of a data set."""
    part = next(part for part in data.data_sets if part.num_samples).whole
    shard = int((part.counts > 0).argmax())
    examples: dict[str, str] = {}
    for name in (column_file.KEY, *column_file.names(part)):
        with contextlib.suppress(ArgumentError):
            examples[name] = _first(ColumnReader(part, name).read([shard]))
    small = [name.lower() for name in shard_index(part, shard).extensions if fields.kind_of(name) in _SMALL]
    members, _ = fields.read(part, small, shard, _LOOKED_AT)
    for member, values in members.items():
        if fields.kind_of(member) not in fields.JSON:
            examples.setdefault(member, _first(values))
            continue
        for string in values.cast("large_string").drop_null().to_pylist():
            row = None
            with contextlib.suppress(ValueError):  # a string of JSON stands without its quotes
                row = json.loads(string)
            for name, value in row.items() if isinstance(row, dict) else ():
                if isinstance(value, str | int) and value != "":
                    examples.setdefault(f"{member}.{name}", str(value))
    return examples
