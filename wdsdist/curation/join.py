"""Match tables with the samples of a data set: a row belongs to every sample whose key it has, in any order of rows."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wdsdist import storage
from wdsdist._util.host import temporary_dir
from wdsdist._util.validation import hint
from wdsdist.curation import arrays, column_file, fields
from wdsdist.curation.columns import ColumnReader
from wdsdist.curation.tables import Table, kind_of, open_table, pyarrow
from wdsdist.errors import ArgumentError, NotFoundError, SourceError
from wdsdist.shards.shard_indexes import shard_index
from wdsdist.shards.spellings import matching

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

Tables = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_ROWS = 1_000_000
_LOOKED_AT = 200
"""Samples whose values are compared with a table that no sample is in."""
_COMPARED = (*fields.JSON, "txt", "url", "id", "cls")
"""Members whose values are compared with such a table."""

_log = logging.getLogger("wdsdist")


class JoinReport(NamedTuple):
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
    found = [path for location in locations for path in matching(location, options)]
    found = [path if storage.is_remote(path) else str(Path(path).absolute()) for path in found]
    return {storage.shown(path): path for path in found}, options


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
            table = open_table(path, kind=kind, label=shown)
        except IsADirectoryError as error:
            raise SourceError(f"{shown} is a folder: name a file in it") from error
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"{shown} does not exist") from error
        yield table


def match(
    data: Manifest, own: str, samples: Any, keys: Any, label: str, argument: str = "on"
) -> tuple[Any, JoinReport]:
    """Match samples with rows by a value of each, compared as strings.

    Args:
        data: the data set or view.
        own: the column of the samples that is compared.
        samples, keys: its values, and the values of the rows: chunked arrays, or arrays.
        label: the name of the rows in messages.
        argument: named by the error if no row matches a sample.

    Returns:
        an array [samples], the first row of each sample or null; and how rows and samples matched.

    Raises `ArgumentError` if no row matches.
    """
    compute = pyarrow().compute
    samples, keys = samples.cast("large_string"), keys.cast("large_string")
    rows = compute.index_in(samples, value_set=keys, skip_nulls=True)
    unmatched = rows.null_count
    if len(keys) and len(samples) and unmatched == len(samples):
        raise ArgumentError(_advice(data, own, samples, keys, label), argument=argument)
    matched = compute.sum(compute.is_in(keys, value_set=samples, skip_nulls=True)).as_py() or 0
    repeated = matched - compute.count_distinct(rows).as_py()
    counts = len(keys), repeated, len(keys) - matched, len(samples) - unmatched, unmatched
    return rows, JoinReport(label, own, *counts)


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


def column(table: Table, name: str) -> list[Any]:
    """Return the values of a column of a table, as arrays. Raises `SourceError` if they are nested."""
    metadata = table.schema.field(name).metadata
    try:
        return [arrays.plain(batch.column(0), metadata) for batch in table.batches([name], rows=_ROWS)]
    except pyarrow().ArrowInvalid as error:
        raise SourceError(f"{table.label}: samples cannot be matched by {name!r}: {error}") from error


class Join:
    """Tables whose rows, counted one after another, are matched with the samples of a data set.

    Args:
        data: the data set.
        tables: the tables.
        on: the name of the samples' column that is compared, and the name of the tables' column.
        values: of the samples' column: a chunked array.

    Raises `ArgumentError` if a table lacks the column or no row matches, `SourceError` if values are nested.
    """

    def __init__(self, data: Manifest, tables: Sequence[Table], on: Sequence[str], values: Any) -> None:
        self._tables, self._keys = tables, [name_in(table, on[1]) for table in tables]
        keys = [part for table, key in zip(tables, self._keys, strict=True) for part in column(table, key)]
        label = tables[0].label if len(tables) == 1 else f"{len(tables):,} tables"
        self._rows, self.report = match(data, on[0], values, arrays.concatenated(keys), label)
        is_partial = self.report.rows_unmatched or self.report.samples_unmatched or self.report.rows_repeated
        _log.log(logging.WARNING if is_partial else logging.INFO, "joined %s", self.report)

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
        parts = []
        for table in self._tables:
            parts += column(table, name) if name in table.schema.names else [pyarrow().nulls(table.num_rows)]
        return arrays.concatenated(parts).combine_chunks().take(self._rows)


def _advice(data: Manifest, own: str, samples: Any, keys: Any, label: str) -> str:
    """Return an error that shows a value of each side, and names the column whose values look like the tables'."""
    listed = set(keys.to_pylist())
    sample, row = (next(iter(values.drop_null().slice(0, 1).to_pylist()), None) for values in (samples, keys))
    patterns = {_pattern(value) for value in keys.drop_null().slice(0, _LOOKED_AT).to_pylist()}
    alike = {
        name: (len(listed.intersection(values)), sum(_pattern(value) in patterns for value in values))
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
