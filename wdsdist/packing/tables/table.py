"""A table: Parquet, Arrow, CSV, TSV and JSON Lines files and ``Dataset`` objects, as Arrow rows of the same columns."""

from __future__ import annotations

import codecs
import contextlib
import functools
import io
import itertools
import json
import logging
import sys
import tempfile
import threading
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.arrow import concatenated, pyarrow
from wdsdist._util.files import check_readable
from wdsdist._util.host import temporary_dir
from wdsdist._util.validation import counted, hint
from wdsdist.errors import ArgumentError, NotFoundError, SampleError, SourceError
from wdsdist.packing.tables.text import JSON_TEXT, csv, json_lines
from wdsdist.storage import compression, engine

Kind = Literal["parquet", "arrow", "csv", "tsv", "jsonl"]

SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"), "arrow": (".arrow", ".feather", ".ipc"), "csv": (".csv", ".csv.gz"),
    "tsv": (".tsv", ".tab", ".tsv.gz"), "jsonl": (".jsonl", ".ndjson", ".jsonlines", ".jsonl.gz"),
}  # fmt: skip
"""How the names of files of each kind end, in lower case."""

_ROWS = 65_536
_VALUES = 1_000_000
_DATASET_ROWS = 4096
_KEPT_BYTES = 256 << 20
"""Decoded groups of Parquet that a table keeps for `Table.take`."""
_READING = threading.Lock()
"""Held while a table reads and keeps a group: a lent executor may have threads."""
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_log = logging.getLogger("wdsdist")


NOTES = (".md", ".txt", ".log", ".json", ".json.gz", ".yaml", ".yml", ".idx", ".wdsindex", ".crc", ".md5", ".sha256")
"""How the names of notes end that lie beside tables and shards and are no samples, in lower case."""


def kind_of(name: str) -> Kind | None:
    """Return the kind of table that the name of a file says; ``None`` for any other file."""
    return next((kind for kind, suffixes in SUFFIXES.items() if name.lower().endswith(suffixes)), None)


def is_dataset(source: object) -> bool:
    """Return whether an object is a Hugging Face ``datasets.Dataset`` without a custom transform of its rows."""
    datasets = sys.modules.get("datasets.arrow_dataset")
    return datasets is not None and isinstance(source, datasets.Dataset) and source.format["type"] != "custom"


@contextlib.contextmanager
def reading(label: str) -> Iterator[None]:
    """Raise a `SourceError` that names the table in place of an error of pyarrow."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SourceError(f"{label} cannot be read: {error.strerror or error}") from error
    except (pyarrow().ArrowException, UnicodeDecodeError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())[:300]
        raise SourceError(f"{label} is not a table that can be read: {reason}; fetch or write it again") from error


class Group(NamedTuple):
    """Rows of a table that are read together."""

    file: object
    """The name of their file in messages."""
    first: int
    """The number of the first row in that file."""
    num_rows: int
    read: Callable[[list[str]], Any] = list
    """Returns some columns as a ``pyarrow.Table``, unless the table reads its groups itself."""


class Table:
    """Rows of the same columns, in order; the last groups that were read are kept.

    Args:
        label: the name of the table in messages.
        schema: the columns: a ``pyarrow.Schema``.
        groups: the groups of rows.
        bad: the reason for each skipped row, by its number in messages.
    """

    def __init__(self, label: str, schema: Any, groups: Iterable[Group], bad: Mapping[int, str] | None = None) -> None:
        self.label, self.schema, self._groups = label, schema, tuple(groups)
        self.bad_rows = tuple(sorted((bad or {}).items()))
        """Skipped rows of a CSV or JSON Lines file: their number, as `row_name` counts, and the reason."""
        self.starts: Int64s = np.cumsum([0, *(group.num_rows for group in self._groups)]).astype(np.int64)
        """int64 [groups + 1]: the first row of each group of rows that are read together, and the number of rows."""
        self._kept: OrderedDict[tuple[int, tuple[str, ...]], Any] = OrderedDict()

    @property
    def num_rows(self) -> int:
        return int(self.starts[-1])

    def batches(self, columns: Sequence[str] | None = None, *, rows: int = _ROWS) -> Iterator[Any]:
        """Yield all rows as ``pyarrow.RecordBatch``, of ``rows`` at most, with some columns or all."""
        names = self.schema.names if columns is None else list(columns)
        for group in range(len(self._groups)):
            with reading(self.label):
                yield from self._read(group, names).to_batches(max_chunksize=rows)

    def take(self, rows: Int64s, names: list[str]) -> Any:
        """Return some columns of some rows as a ``pyarrow.Table``, in the given order; a row may come several times."""
        groups = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(groups, kind="stable")
        parts = [self.schema.empty_table().select(names)]
        with reading(self.label):
            for group in np.unique(groups).tolist():
                numbers = rows[order][groups[order] == group] - self.starts[group]
                parts.append(self._read(group, names).take(pyarrow().array(numbers)))
            return pyarrow().concat_tables(parts).take(pyarrow().array(np.argsort(order, kind="stable")))

    def name_of(self, on: str) -> str:
        """Return the column that is matched with the column ``on`` of a data set: of that name, or of its last part.

        Raises `ArgumentError` if the table has neither.
        """
        for name in (on, on.rpartition(".")[2]):
            if name in self.schema.names:
                return name
        raise ArgumentError(
            f"{self.label} has no column {on!r} to match samples by: {hint(on, self.schema.names)}", argument="on"
        )

    def values(self, name: str) -> Iterator[Any]:
        """Yield the values of a column, as arrays of a type that columns of a data set have.

        Raises `SourceError` if they are nested.
        """
        metadata = self.schema.field(name).metadata
        try:
            yield from (plain(batch.column(0), metadata) for batch in self.batches([name], rows=_VALUES))
        except pyarrow().ArrowInvalid as error:
            raise SourceError(f"{self.label}: samples cannot be matched by {name!r}: {error}") from error

    def row_name(self, row: int) -> str:
        """Return the place of a row, for messages."""
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        group = self._groups[number]
        number_in_file = row - int(self.starts[number]) + group.first
        for bad, _ in self.bad_rows:
            number_in_file += bad <= number_in_file
        return f"{group.file}, row {number_in_file:,}"

    def _read(self, group: int, names: list[str]) -> Any:
        """Return some columns of a group, with the types of the schema."""
        key = group, tuple(names)
        with _READING:
            if key not in self._kept:
                pa, fields = pyarrow(), [self.schema.field(name) for name in names]
                read, is_null = self._groups[group].read(names), pa.types.is_null
                columns = [
                    pa.nulls(len(read)) if is_null(field.type) else read.column(field.name).cast(field.type)
                    for field in fields
                ]
                # A column in one chunk, whose rows are found fastest.
                table = pa.Table.from_arrays(columns, schema=pa.schema(fields)).combine_chunks()
                table.validate(full=True)  # offsets that point elsewhere would be followed out of the file
                self._kept[key] = table
                while len(self._kept) > 1 and sum(table.nbytes for table in self._kept.values()) > _KEPT_BYTES:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


class _DatasetTable(Table):
    """The rows that a ``Dataset`` selects; its files are not opened here, as its rows may lie in memory alone."""

    def __init__(self, dataset: Any, label: str) -> None:
        self._dataset, count = dataset.with_format("arrow"), len(dataset)
        sizes = ((first, min(_DATASET_ROWS, count - first)) for first in range(0, count, _DATASET_ROWS))
        super().__init__(label, self._dataset[:0].schema, (Group(label, *size) for size in sizes))

    def take(self, rows: Int64s, names: list[str]) -> Any:
        return self._dataset.select_columns(names)[rows.tolist()].select(names)

    def _read(self, group: int, names: list[str]) -> Any:  # keeps nothing: the table travels to other processes
        first, last = self.starts[group : group + 2].tolist()
        return self._dataset.select_columns(names)[first:last].select(names)


def open_table(source: Any, *, kind: Kind | None = None, label: str = "", skips: bool = False) -> Table:
    """Open a table.

    Args:
        source: the path of a file, a list of Parquet or Arrow files with the same columns, or a ``Dataset``.
        kind: of the files; by default their suffix says it.
        label: the name of the table in messages; by default its path.
        skips: whether rows of text files that cannot be parsed are left out, and listed in ``bad_rows``.

    Raises:
        SourceError: a file does not hold what its kind says, or two columns have the same name.
        ExtraMissingError: pyarrow is not installed.
        FileNotFoundError: a file does not exist.
    """
    if is_dataset(source):
        table: Table = _DatasetTable(source, label or "the Dataset")
    else:
        paths = [Path(path) for path in ([source] if isinstance(source, (str, Path)) else source)]
        kind, label = kind or kind_of(paths[0].name), label or str(paths[0])
        if kind is None:
            endings = ", ".join(itertools.chain(*SUFFIXES.values()))
            raise SourceError(f"{label} is not a table: its name must end in {endings}")
        for path in paths:
            check_readable(path)
        with reading(label):
            if kind in ("parquet", "arrow"):
                schemas, groups = list[Any](), list[Group]()
                for path in paths:
                    schema, own = (_parquet if kind == "parquet" else _arrow)(path)
                    schemas.append(schema)
                    groups += own
                table = Table(label, _schema_of(schemas, paths), groups)
            else:
                bad = dict[int, str]() if skips else None
                if kind == "jsonl":
                    first, (schema, batches) = 1, json_lines(paths[0], label, bad)
                else:
                    first, (schema, batches) = 2, csv(paths[0], label, bad, "," if kind == "csv" else "\t")
                table = Table(label, schema, _groups(batches, label, first), bad)
    with reading(table.label):  # a name of a column may be no text
        for name, count in Counter(table.schema.names).items():
            if name and count > 1:
                raise SourceError(f"{table.label} has two columns with the name {name!r}: rename one")
    return table


def open_at(location: str, options: storage.StorageOptions | None, *, skips: bool = False) -> Table:
    """Open a table at a path or URL; a remote one is fetched into a temporary file, whose name is removed at once.

    Raises `NotFoundError`, and `SourceError` if it is not a table that can be read.
    """
    shown, kind = storage.shown(location), kind_of(storage.split(location)[1].partition("?")[0])
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        try:
            if storage.is_remote(location):
                url, location = location, f"{folder}/table{'.gz' if shown.endswith('.gz') else ''}"
                engine.fetch(url, Path(location), options)
            return open_table(Path(location), kind=kind, label=shown, skips=skips)
        except IsADirectoryError as error:
            raise SourceError(f"{shown} is a folder: name a file in it") from error
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"{shown} does not exist") from error


def _groups(batches: Iterable[Any], file: object, first: int = 0) -> Iterator[Group]:
    """Yield record batches as groups of rows of a file, whose first row has the number ``first`` in messages."""
    for batch in batches:
        yield Group(file, first, len(batch), pyarrow().Table.from_batches([batch]).select)
        first += len(batch)


def _parquet(path: Path) -> tuple[Any, list[Group]]:
    """Return the schema and the groups of rows of a Parquet file."""
    file, groups, first = pyarrow().parquet.ParquetFile(path, memory_map=True, pre_buffer=False), list[Group](), 0
    for number in range(file.num_row_groups):
        # One thread: several processes read at once.
        read = functools.partial(file.read_row_group, number, use_threads=False)
        groups.append(Group(path, first, file.metadata.row_group(number).num_rows, read))
        first += groups[-1].num_rows
    if first != file.metadata.num_rows:
        raise SourceError(f"{path} is damaged: its groups of rows have {first:,} rows: fetch it again")
    return file.schema_arrow, groups


def _arrow(path: Path) -> tuple[Any, list[Group]]:
    """Return the schema and the batches of an Arrow file or stream, mapped."""
    pa = pyarrow()
    content = pa.memory_map(str(path)).read_buffer()
    if content.slice(0, 6).to_pybytes() == b"ARROW1":
        file = pa.ipc.open_file(pa.BufferReader(content))
        return file.schema, [*_groups(map(file.get_batch, range(file.num_record_batches)), path)]
    # A stream that is cut between two batches looks like a shorter one.
    if content.slice(max(0, content.size - len(_STREAM_END))).to_pybytes() != _STREAM_END:
        raise SourceError(f"{path} lacks the end of an Arrow stream, so rows are missing: fetch or write it again")
    stream = pa.ipc.open_stream(content)
    return stream.schema, [*_groups(stream, path)]


def _schema_of(schemas: Sequence[Any], names: Sequence[object]) -> Any:
    """Return the schema of files. Raises `SourceError` if they differ."""
    pa, first = pyarrow(), schemas[0]
    for name, schema in zip(names, schemas, strict=True):
        if not schema.equals(first):
            own, other = (", ".join(f"{field.name} {field.type}" for field in each) for each in (first, schema))
            raise SourceError(f"{name} has other columns than {names[0]}: {other}, not {own}")
    views = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}  # pyarrow takes no rows of these
    fields = [field.with_type(views.get(str(field.type), field.type)) for field in first]
    return pa.schema(fields, first.metadata)


def from_values(values: Iterable[Any]) -> Any:
    """Return Python values as an array; ``None`` is a missing value. Values of several types become strings.

    >>> [str(from_values(values).type) for values in ([1, None, 3], [1, 2.5], ["a", 1], [None])]
    ['int64', 'double', 'large_string', 'null']
    """
    pa, listed = pyarrow(), list(values)
    try:
        return plain(pa.array(listed))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError):
        strings = (value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value for value in listed)
        encoded = (None if string is None else str(string).encode("utf-8", "backslashreplace") for string in strings)
        return pa.array(list(encoded), "large_binary").cast("large_string")


def plain(values: Any, metadata: Any = None) -> Any:
    """Return values of any flat type as one of the four types, or null; values of JSON text (`JSON_TEXT`) too.

    Raises ``pyarrow.ArrowInvalid`` for values that a column cannot have, as lists.
    """
    pa, kind, types = pyarrow(), values.type, pyarrow().types
    if metadata == JSON_TEXT:
        rows = (None if string is None else json.loads(string) for string in values.to_pylist())
        return from_values(
            json.dumps(row, ensure_ascii=False) if isinstance(row, (dict, list)) else row for row in rows
        )
    if types.is_dictionary(kind):
        return plain(values.cast(kind.value_type))
    if types.is_nested(kind):
        raise pa.ArrowInvalid(f"values of the type {kind} are nested")
    if types.is_null(kind) or types.is_boolean(kind):
        return values
    if types.is_integer(kind) and kind != pa.uint64():
        return values.cast("int64")
    return values.cast("double" if types.is_floating(kind) else "large_string")


def read_list(location: str, on: str, options: storage.StorageOptions | None) -> Any:
    """Return the values in a file, of a table in the column ``on``. Raises `SourceError` if it is not a list.

    A line of a quarantine file that is cut off, as a killed process leaves it, is left out with a warning.
    """
    shown, name = storage.shown(location), storage.split(location)[1].partition("?")[0].lower()
    if kind := kind_of(name):
        table = open_at(location, options, skips=kind == "jsonl")
        if table.bad_rows:
            row, reason = table.bad_rows[0]
            if not {"key", "field"}.issubset(table.schema.names):
                raise SourceError(f"{shown}, row {row:,}: {reason}")
            _log.warning("%s: %s cut off, such as row %s", shown, counted(len(table.bad_rows), "entry"), f"{row:,}")
        return concatenated(table.values(table.name_of(on))).combine_chunks()
    try:
        content = storage.read(location, options)
        if name.endswith(".gz"):
            content, name = compression.unzip(content, compression.most_expanded(len(content))), name[:-3]
        if name.endswith(".npy"):
            array = np.load(io.BytesIO(content), allow_pickle=False)
            # DataComp's identifiers are two halves of 32 hexadecimal digits.
            if array.ndim == 1 and array.dtype == np.dtype("u8,u8"):
                array = np.array([f"{int(high):016x}{int(low):016x}" for high, low in array])
            values = array.tolist()
        elif name.endswith(".json"):
            values = json.loads(content)
        elif b"\0" in content:  # as a tar has; no sample would be found by its lines
            raise ValueError("it holds bytes that no text has")
        else:  # bytes: strings are split at further characters, which keys may hold
            values = [line for line in content.removeprefix(codecs.BOM_UTF8).splitlines() if line]
        if not isinstance(values, list) or not all(isinstance(value, (str, bytes, int, float)) for value in values):
            raise ValueError("it must be a list of strings or numbers")
        return from_values(values)
    except (ValueError, RecursionError, EOFError, MemoryError, zlib.error, SampleError) as error:
        advice = "; JSON Lines end in .jsonl" if name.endswith(".json") else ""
        raise SourceError(f"{shown} is not a list of values: {error}{advice}") from error
