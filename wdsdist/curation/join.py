"""Match tables with the samples of a data set: a row belongs to every sample whose key it has, in any order of rows."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from wdsdist.errors import ArgumentError, NotFoundError, SourceError
from wdsdist.shards.shard_indexes import shard_index
from wdsdist.shards.spellings import matching

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

Arrays = Callable[[], Iterable[Any]]
"""Gives the values of a column as arrays, part by part, each time that it is called."""
Tables = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_MEMORY = 6 << 30
"""Bytes of memory of a join at most; beyond, DuckDB writes temporary files."""
_ROWS = 1_000_000
_LOOKED_AT = 200
"""Samples whose values are compared with a table that no sample is in."""
_COMPARED = (*fields.JSON, "txt", "url", "id", "cls")
"""Members whose values are compared with such a table."""

_log = logging.getLogger("wdsdist")


def table_paths(
    manifest: Manifest, tables: Tables, storage_options: Mapping[str, Any] | None
) -> tuple[dict[str, str], storage.StorageOptions | None]:
    """Return the tables that ``join`` names, and the options of their stores.

    The tables are paths and URLs, by their names without credentials; patterns are expanded. Raises `NotFoundError` for
    a pattern that nothing matches.
    """
    paths: Any = [tables] if isinstance(tables, str | os.PathLike) else tables
    is_list = isinstance(paths, Sequence) and len(paths) > 0
    if not is_list or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise ArgumentError(f"join is {tables!r}: it must be the path of a table, or a list of them", argument="join")
    locations = [storage.normalise(os.fspath(table)) for table in paths]
    options = manifest.client_options if storage_options is None else storage.named(storage_options, locations)
    files = [path for location in locations for path in matching(location, options)]
    files = [path if storage.is_remote(path) else str(Path(path).absolute()) for path in files]
    return {storage.shown(path): path for path in files}, options


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
                fetch(location, path, options)
            table = open_table(path, kind=kind, label=shown)
        except IsADirectoryError as error:
            raise SourceError(f"{shown} is a folder: name a file in it") from error
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"{shown} does not exist") from error
        yield table


def match(
    data: Manifest, own: str, samples: Arrays, keys: Arrays, num_rows: int, label: str, argument: str = "on"
) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Match samples with rows by a value of each, compared as strings; of rows with the same value the first counts.

    Args:
        data: the data set or view.
        own: the column of the samples that is compared.
        samples: gives its values, part by part.
        keys: gives the values of the rows, part by part.
        num_rows: how many these are.
        label: the name of the rows in messages.
        argument: named by the error if no row matches a sample.

    Returns:
        int64 [samples], the row of each sample or -1; and bool [rows], whether a row has a sample.

    Raises `ArgumentError` if no row matches.
    """
    pa, failed = pyarrow(), list[Exception]()
    schema = pa.schema([("n", pa.int64()), ("key", pa.large_string())])

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
    memory = min(_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 3)
    with (
        tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as scratch,
        connected("join=", temp_directory=scratch, memory_limit=f"{memory}B") as connection,
    ):
        for name, parts in (("samples", samples()), ("rows", keys())):
            connection.register(name, pa.RecordBatchReader.from_batches(schema, numbered(parts)))
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
        raise ArgumentError(_advice(data, own, samples, keys, label), argument=argument)
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


class Join:
    """Tables whose rows, counted one after another, are matched with the samples of a data set.

    Args:
        data: the data set.
        tables: the tables.
        on: the name of the samples' column that is compared, and the name of the tables' column.
        samples: gives the values of the samples' column, part by part.

    Raises `ArgumentError` if a table lacks the column or no row matches, `SourceError` if values are nested.
    """

    def __init__(self, data: Manifest, tables: Sequence[Table], on: Sequence[str], samples: Arrays) -> None:
        self._tables, self._keys = tables, [name_in(table, on[1]) for table in tables]
        self.label = tables[0].label if len(tables) == 1 else f"{len(tables):,} tables"

        def keys() -> Iterator[Any]:
            for table, key in zip(tables, self._keys, strict=True):
                yield from column(table, key)

        num_rows = sum(table.num_rows for table in tables)
        self._rows, is_matched = match(data, on[0], samples, keys, num_rows, self.label)
        num_used, matched = len(np.unique(self._rows[self._rows >= 0])), int(is_matched.sum())
        unmatched = int((self._rows < 0).sum())
        _log.log(
            logging.WARNING if unmatched or num_used < num_rows else logging.INFO,
            f"joined {self.label} by {on[0]}: rows {num_rows:,}, {num_rows - matched:,} of them without a sample, "
            f"{matched - num_used:,} with the key of an earlier row; samples matched {len(self._rows) - unmatched:,}, "
            f"{unmatched:,} without a row",
        )

    def columns(self, only: Collection[str] | None) -> list[str]:
        """Return the names of the tables' columns but the key, without columns of nested values; or only some.

        Raises `ArgumentError` for a name in ``only`` that no table has.
        """
        known = dict[str, None]()
        for table, key in zip(self._tables, self._keys, strict=True):
            flat = (field.name for field in table.schema if not pyarrow().types.is_nested(field.type))
            known |= dict.fromkeys(name for name in flat if name != key)
        for name in only or ():
            if name not in known:
                message = f"{self._tables[0].label} has no column {name!r}: {hint(name, known)}"
                raise ArgumentError(message, argument="only")
        return list(known if only is None else only)

    def values(self, name: str) -> Any:
        """Return the values of a column of the tables for the samples, as an array."""
        parts = list[Any]()
        for table in self._tables:
            parts += column(table, name) if name in table.schema.names else [pyarrow().nulls(table.num_rows)]
        rows = pyarrow().array(self._rows, mask=self._rows < 0)
        return arrays.concatenated(parts).combine_chunks().take(rows)


def _advice(data: Manifest, own: str, samples: Arrays, keys: Arrays, label: str) -> str:
    """Return an error that shows a value of each side, and names the column whose values look like the rows'."""
    sample, row = (
        next(
            (value for part in parts() for value in part.cast("large_string").drop_null().slice(0, 1).to_pylist()), None
        )
        for parts in (samples, keys)
    )
    listed = [value for part in keys() for value in part.cast("large_string").drop_null().to_pylist()]
    known, patterns = set(listed), {_pattern(value) for value in listed[:_LOOKED_AT]}
    alike = {
        name: (len(known.intersection(values)), sum(_pattern(value) in patterns for value in values))
        for name, values in examples(data).items()
        if name != own
    }
    best = max(alike, key=lambda name: alike[name], default="")
    advice = "name the columns of the data set and of the table with on="
    if best and any(alike[best]):
        advice = f"the values of {best!r} look alike, so pass on={best!r} (--on {best})"
    return f"no sample's {own} is in {label}, which has {row!r}, and a sample {sample!r}: {advice}"


def _pattern(value: str) -> str:
    """Return the start of a value with letters and digits made alike, which similar values share.

    >>> _pattern("https://a.b/c") == _pattern("http://x.y/z/0.jpg"), _pattern("000012") == _pattern("cat")
    (True, False)
    """
    return re.sub("[A-Za-z]+", "a", re.sub("[0-9]+", "0", value))[:4]


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
    for member, column in fields.read(part, shard, [fields.Field("field", name) for name in small], _LOOKED_AT).items():
        for value in column.values.cast("large_string").drop_null().to_pylist():
            row = json.loads(value) if fields.kind_of(member) in fields.JSON else value
            for name, inner in row.items() if isinstance(row, dict) else [("", row)]:
                if isinstance(inner, (str, int)) and inner != "":
                    examples.setdefault(f"{member}.{name}".removesuffix("."), []).append(str(inner))
    return examples
