"""Match tables with the samples of a data set: a row belongs to every sample whose key it has, in any order of rows."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.host import temporary_dir
from wdsdist._util.validation import hint
from wdsdist.curation import arrays, column_file, fields
from wdsdist.curation.columns import ColumnReader
from wdsdist.curation.query import connected
from wdsdist.curation.tables import Table, kind_of, open_table, pyarrow
from wdsdist.errors import ArgumentError, NotFoundError, SourceError, given
from wdsdist.shards.shard_indexes import shard_index
from wdsdist.shards.spellings import matching
from wdsdist.storage import engine

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

Tables = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_MEMORY = 6 << 30
"""Bytes of memory of a join at most; beyond, DuckDB writes temporary files."""
_ROWS = 1_000_000
_LOOKED_AT = 200
"""Samples, and rows, whose values are compared if no sample has a row."""
_COMPARED = (*fields.JSON, "txt", "url", "id", "cls")
"""Members whose values are compared with such a table."""


def open_tables(
    data: Manifest, tables: Tables, storage_options: Mapping[str, Any] | None
) -> tuple[list[str], list[Table]]:
    """Open the tables that ``join`` names by paths, URLs and patterns; return their names without credentials, too.

    Raises `NotFoundError` for a pattern that nothing matches, and what `open_at` raises.
    """
    paths: Any = [tables] if isinstance(tables, str | os.PathLike) else tables
    is_list = isinstance(paths, Sequence) and len(paths) > 0
    if not is_list or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise ArgumentError(f"join is {tables!r}: it must be the path of a table, or a list of them", argument="join")
    named = [storage.normalise(os.fspath(path)) for path in paths]
    options = data.client_options if storage_options is None else storage.named(storage_options, named)
    named = [path if storage.is_remote(path) else str(Path(path).absolute()) for path in named]
    opened = [open_at(path, options) for pattern in named for path in matching(pattern, options)]
    return [storage.shown(pattern) for pattern in named], opened


def open_at(
    location: str, options: storage.StorageOptions | None, on_error: Literal["raise", "skip"] = "raise"
) -> Table:
    """Open a table at a path or URL; a remote one is fetched into a temporary file, whose name is removed at once.

    Raises `NotFoundError`, and `SourceError` if it is not a table that can be read.
    """
    shown, kind = storage.shown(location), kind_of(storage.split(location)[1].partition("?")[0])
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        try:
            if storage.is_remote(location):
                url, location = location, f"{folder}/table{'.gz' if shown.endswith('.gz') else ''}"
                engine.fetch(url, Path(location), options)
            return open_table(Path(location), kind=kind, label=shown, on_error=on_error)
        except IsADirectoryError as error:
            raise SourceError(f"{shown} is a folder: name a file in it") from error
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"{shown} does not exist") from error


def match(
    data: Manifest,
    own: str,
    samples: Iterable[Any],
    keys: Iterable[Any],
    num_rows: int,
    label: str,
    argument: str = "on",
) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Match samples with rows by a value of each, compared as strings; of rows with the same value the first counts.

    Args:
        data: the data set or view.
        own: the column of the samples that is compared.
        samples: its values, as arrays.
        keys: the values of the rows, as arrays.
        num_rows: how many these are.
        label: the name of the rows in messages.
        argument: named by the error if no row matches a sample.

    Returns:
        int64 [samples], the row of each sample or -1; and bool [rows], whether a row has a sample.

    Raises `ArgumentError` if no row matches.
    """
    pa, failed = pyarrow(), list[Exception]()
    schema = pa.schema([("n", pa.int64()), ("key", pa.large_string())])
    heads: dict[str, list[str]] = {"samples": [], "rows": []}

    def numbered(name: str, parts: Iterable[Any]) -> Iterator[Any]:
        first = 0
        try:
            for part in parts:
                numbers, strings = pa.array(np.arange(first, first + len(part))), part.cast("large_string")
                if len(heads[name]) < _LOOKED_AT:
                    heads[name] += strings.drop_null()[:_LOOKED_AT].to_pylist()
                yield pa.record_batch([numbers, strings], schema=schema)
                first += len(part)
        except Exception as error:  # DuckDB would raise another one in its place
            failed.append(error)
            raise

    rows, is_matched = np.full(data.num_samples, num_rows), np.zeros(num_rows, bool)
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
                matching, row = (column.to_numpy() for column in batch.columns)
                np.minimum.at(rows, matching, row)
                is_matched[row] = True
        except Exception:
            if failed:
                raise failed[0] from None
            raise
    has_row = rows < num_rows
    if num_rows and len(rows) and not has_row.any():
        raise ArgumentError(_advice(data, own, label, **heads), argument=argument)
    return np.where(has_row, rows, -1), is_matched


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


def column(table: Table, name: str) -> Iterator[Any]:
    """Yield the values of a column of a table, as arrays. Raises `SourceError` if they are nested."""
    metadata = table.schema.field(name).metadata
    try:
        yield from (arrays.plain(batch.column(0), metadata) for batch in table.batches([name], rows=_ROWS))
    except pyarrow().ArrowInvalid as error:
        raise SourceError(f"{table.label}: samples cannot be matched by {name!r}: {error}") from error


def _advice(data: Manifest, own: str, label: str, samples: Sequence[str], rows: Sequence[str]) -> str:
    """Return an error that shows a value of each side, and names the column whose values look like the rows'."""
    sample, row = (next(iter(values), None) for values in (samples, rows))
    known, patterns = set(rows), set(map(_pattern, rows))
    alike = {
        name: (len(known.intersection(values)), sum(_pattern(value) in patterns for value in values))
        for name, values in examples(data).items()
        if name != own
    }
    best = max(alike, key=lambda name: alike[name], default="")
    advice = f"name the columns of the data set and of the table with {given('on')}"
    if best and any(alike[best]):
        advice = f"the values of {best!r} look alike, so pass {given('on', best)}"
    return f"no sample's {own} is in {label}, which has {row!r}, and a sample {sample!r}: {advice}"


def _pattern(value: str) -> str:
    """Return the start of a value with letters and digits made alike, which similar values share; a short value itself.

    >>> _pattern("https://a.b/c") == _pattern("http://x.y/z/0.jpg"), _pattern("000012") == _pattern("cat")
    (True, False)
    """
    pattern = re.sub("[A-Za-z]+", "a", re.sub("[0-9]+", "0", value))[:4]
    return pattern if len(pattern) == 4 else value


def examples(data: Manifest) -> dict[str, list[str]]:
    """Return some values of the columns, and of the fields in JSON members, of the first samples of a data set."""
    part = next(part for part in data.data_sets if part.num_samples).whole
    shard = int((part.counts > 0).argmax())
    examples: dict[str, list[str]] = {}
    for name in (column_file.KEY, *column_file.names(part)):
        with contextlib.suppress(ArgumentError):
            values = ColumnReader(part, name).read([shard]).slice(0, _LOOKED_AT).cast("large_string")
            examples[name] = values.drop_null().to_pylist()
    small = [name.lower() for name in shard_index(part, shard).extensions if fields.kind_of(name) in _COMPARED]
    members, _ = fields.read(part, small, shard, _LOOKED_AT)
    for member, values in members.items():
        for value in values.cast("large_string").drop_null().to_pylist():
            row = json.loads(value) if fields.kind_of(member) in fields.JSON else value
            for name, inner in row.items() if isinstance(row, dict) else [("", row)]:
                if isinstance(inner, (str, int)) and inner != "":
                    examples.setdefault(f"{member}.{name}".removesuffix("."), []).append(str(inner))
    return examples
