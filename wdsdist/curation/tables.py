"""Tables of rows on Arrow: Parquet, Arrow, CSV, TSV and JSON Lines files, and ``Dataset`` objects of ``datasets``.

A `Table` gives its rows as Arrow batches, in order, or any rows by number. It consists of groups of rows that are read
together: row groups of Parquet, record batches of Arrow. Text files become temporary Arrow files, as only all values of
a column together say its type. A column of a CSV has numbers only if they keep all that is written: codes such as
``007`` stay strings, and so do integers of more than 64 bits, dates and times.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import gzip
import itertools
import json
import mmap
import sys
import tempfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.extras import extra
from wdsdist._util.files import check_readable
from wdsdist.errors import SourceError

Kind = Literal["parquet", "arrow", "csv", "tsv", "jsonl", "dataset"]

SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"), "arrow": (".arrow", ".feather", ".ipc"), "csv": (".csv", ".csv.gz"),
    "tsv": (".tsv", ".tab", ".tsv.gz"), "jsonl": (".jsonl", ".ndjson", ".jsonlines", ".jsonl.gz"),
}  # fmt: skip
"""How the names of files of each kind end, in lower case."""
JSON_TEXT = {b"json": b"text"}
"""Metadata of a field whose strings are JSON: nested values, and values of several types in one column."""

_ROWS = 65_536
_DATASET_ROWS = 4096
_KEPT_BYTES = 256 << 20
"""Decoded groups of Parquet that a table keeps for `Table.take`."""
_BLOCK = 16 << 20
"""Bytes of a CSV that are parsed together, and the most that a row can have."""
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_LAST = "(end of the table)"
"""Each field of the row that is added to a CSV: quotes that do not end swallow it."""
_CSV_TYPES = {
    "bool": r"^(?:true|True|TRUE|false|False|FALSE)$",
    "int64": r"^-?(?:0|[1-9][0-9]{0,18})$",
    "double": (
        r"^-?(?:0|[1-9][0-9]{0,15}|(?:0|[1-9][0-9]*)?\.[0-9]*|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?[eE][+-]?[0-9]{1,3})$"
    ),
}
"""The pattern of all values of a column of a CSV that has the type; the first type that fits counts."""
_JSON_TYPES = {bool: "bool", int: "int64", float: "double", str: "string"}


def kind_of(name: str) -> Kind | None:
    """Return the kind of table that the name of a file says; ``None`` for any other file.

    >>> kind_of("meta/part-0.PARQUET"), kind_of("captions.csv.gz"), kind_of("notes.txt")
    ('parquet', 'csv', None)
    """
    return next((kind for kind, suffixes in SUFFIXES.items() if name.lower().endswith(suffixes)), None)


def is_dataset(source: object) -> bool:
    """Return whether an object is a ``datasets.Dataset`` whose rows are its columns, without a custom transform."""
    datasets = sys.modules.get("datasets.arrow_dataset")
    return datasets is not None and isinstance(source, datasets.Dataset) and source.format["type"] != "custom"


def pyarrow(purpose: str = "reading a table") -> Any:
    """Return pyarrow with the modules used here. Raises `ExtraMissingError` if it is not installed."""
    for name in ("compute", "csv", "ipc", "parquet"):
        extra(f"pyarrow.{name}", "tables", purpose)
    return extra("pyarrow", "tables", purpose)


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


def open_table(
    source: Any,
    *,
    kind: Kind | None = None,
    label: str = "",
    on_error: Literal["raise", "skip"] = "raise",
    scratch: Path | None = None,
) -> Table:
    """Open a table.

    Args:
        source: the path of a file, a list of Parquet or Arrow files with the same columns, or a ``Dataset``.
        kind: of the files; by default their suffix says it.
        label: the name of the table in messages; by default its path.
        on_error: ``"skip"`` leaves out rows of text files that cannot be parsed, and lists them in ``bad_rows``.
        scratch: folder for the temporary copy of a text file.

    Raises:
        SourceError: a file does not hold what its kind says, or two columns have the same name.
        ExtraMissingError: pyarrow is not installed.
        FileNotFoundError: a file does not exist.
    """
    table: Table
    if is_dataset(source):
        table = DatasetTable(source, label or "the Dataset")
    else:
        paths = [Path(path) for path in ([source] if isinstance(source, (str, Path)) else source)]
        kind, label = kind or kind_of(paths[0].name), label or str(paths[0])
        if kind is None:
            endings = ", ".join(itertools.chain(*SUFFIXES.values()))
            raise SourceError(f"{label} is not a table: its name must end in {endings}")
        for path in paths:
            check_readable(path)
        scratch = scratch if scratch is not None and scratch.is_dir() else None
        with reading(label):
            if kind == "parquet":
                table = _parquet(paths, label)
            elif kind == "arrow":
                table = _arrow(paths, label)
            elif kind == "jsonl":
                table = _json_lines(paths[0], label, on_error == "skip", scratch)
            else:
                table = _csv(paths[0], label, "," if kind == "csv" else "\t", on_error == "skip", scratch)
    _check_names(table.schema.names, table.label)
    return table


class _Group(NamedTuple):
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

    def __init__(self, label: str, schema: Any, groups: Sequence[_Group], bad: Mapping[int, str] | None = None) -> None:
        self.label, self.schema, self._groups = label, schema, groups
        self.bad_rows = tuple(sorted((bad or {}).items()))
        """Skipped rows of a CSV or JSON Lines file: their number, as `row_name` counts, and the reason."""
        self.starts: Int64s = np.cumsum([0, *(group.num_rows for group in groups)]).astype(np.int64)
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

    def take(self, rows: Int64s, columns: Sequence[str] | None = None) -> Any:
        """Return some rows as a ``pyarrow.Table``, in the given order; a row may come several times."""
        names = self.schema.names if columns is None else list(columns)
        groups = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(groups, kind="stable")
        parts = [self.schema.empty_table().select(names)]
        with reading(self.label):
            for group in np.unique(groups).tolist():
                numbers = rows[order][groups[order] == group] - self.starts[group]
                parts.append(self._read(group, names).take(pyarrow().array(numbers)))
            return pyarrow().concat_tables(parts).take(pyarrow().array(np.argsort(order, kind="stable")))

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
        if key not in self._kept:
            pa, read, fields = pyarrow(), self._groups[group].read(names), [self.schema.field(name) for name in names]
            columns = [
                pa.nulls(len(read)) if pa.types.is_null(field.type) else read.column(field.name).cast(field.type)
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


class DatasetTable(Table):
    """The rows that a ``Dataset`` selects; its files are not opened here, as its rows may lie in memory alone."""

    def __init__(self, dataset: Any, label: str) -> None:
        self._dataset = dataset.with_format("arrow")
        firsts = range(0, len(dataset), _DATASET_ROWS)
        groups = [_Group(label, first, min(_DATASET_ROWS, len(dataset) - first)) for first in firsts]
        super().__init__(label, self._dataset[:0].schema, groups)

    def take(self, rows: Int64s, columns: Sequence[str] | None = None) -> Any:
        names = self.schema.names if columns is None else list(columns)
        return self._dataset.select_columns(names)[rows.tolist()].select(names)

    def _read(self, group: int, names: list[str]) -> Any:  # keeps nothing: the table travels to other processes
        first, last = self.starts[group : group + 2].tolist()
        return self._dataset.select_columns(names)[first:last].select(names)


def _parquet(paths: list[Path], label: str) -> Table:
    files = [pyarrow().parquet.ParquetFile(path, memory_map=True, pre_buffer=False) for path in paths]
    groups = []
    for path, file in zip(paths, files, strict=True):
        first = 0
        for number in range(file.num_row_groups):
            # One thread: several processes read at once.
            read = functools.partial(file.read_row_group, number, use_threads=False)
            groups.append(_Group(path, first, file.metadata.row_group(number).num_rows, read))
            first += groups[-1].num_rows
        if first != file.metadata.num_rows:
            raise SourceError(f"{path} is damaged: its groups of rows have {first:,} rows: fetch it again")
    return Table(label, _schema_of([file.schema_arrow for file in files], paths), groups)


def _arrow(paths: list[Path], label: str) -> Table:
    """Open Arrow files or streams, mapped."""
    pa, schemas, groups = pyarrow(), [], list[_Group]()
    for path in paths:
        content = pa.memory_map(str(path)).read_buffer()
        if content.slice(0, 6).to_pybytes() == b"ARROW1":
            file = pa.ipc.open_file(pa.BufferReader(content))
            batches = [file.get_batch(number) for number in range(file.num_record_batches)]
        else:
            # A stream that is cut between two batches looks like a shorter one.
            if content.slice(max(0, content.size - len(_STREAM_END))).to_pybytes() != _STREAM_END:
                raise SourceError(
                    f"{path} lacks the end of an Arrow stream, so rows are missing: fetch or write it again"
                )
            file = pa.ipc.open_stream(content)
            batches = list(file)
        schemas.append(file.schema)
        groups += _groups_of(batches, path)
    return Table(label, _schema_of(schemas, paths), groups)


def _groups_of(batches: Iterable[Any], file: object, first: int = 0) -> Iterator[_Group]:
    """Yield record batches as groups of rows of a file, whose first row has the number ``first`` in messages."""
    for batch in batches:
        yield _Group(file, first, len(batch), pyarrow().Table.from_batches([batch]).select)
        first += len(batch)


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


def _check_names(names: Sequence[str], label: str) -> None:
    for name, count in Counter(names).items():
        if name and count > 1:
            raise SourceError(f"{label} has two columns with the name {name!r}: rename one")


# Text files


def _unpacked(path: Path) -> Any:
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")


def _mapped(schema: Any, batches: Iterable[Any], scratch: Path | None) -> list[Any]:
    """Write batches into a temporary file, and return them mapped."""
    pa = pyarrow()
    with tempfile.TemporaryFile(dir=scratch) as file:  # without a name: a killed process leaves nothing
        with pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.flush()
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(content)))
    return [reader.get_batch(number) for number in range(reader.num_record_batches)]


class _Continued:
    """A stream with some bytes after its end."""

    closed = False

    def __init__(self, stream: Any, end: bytes) -> None:
        self._stream, self._end = stream, end

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        if not data:
            data, self._end = self._end[:size], self._end[size:]
        return data


def _csv(path: Path, label: str, delimiter: str, skips: bool, scratch: Path | None) -> Table:
    """Read a CSV or TSV file, whose first row names the columns; an empty field is missing."""
    pa, bad = pyarrow(), dict[int, str]()

    def skip(row: Any) -> str:
        if row.number is None:
            return "error"
        bad[row.number] = f"it has {row.actual_columns:,} fields, and the header {row.expected_columns:,}"
        return "skip"

    def opened(stream: Any, convert: Any) -> Any:
        reads = pa.csv.ReadOptions(block_size=_BLOCK, use_threads=False)
        handler = skip if skips else None
        parses = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=handler)
        return pa.csv.open_csv(stream, reads, parses, convert)

    with _unpacked(path) as stream:
        names = opened(stream, None).schema.names
        _check_names(names, label)
        stream.seek(0)
        last = f"\n{delimiter.join([_LAST] * len(names))}\n"
        types = dict.fromkeys(names, pa.string())
        converts = pa.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
        reader = opened(_Continued(stream, last.encode()), converts)
        strings = [batch for batch in _mapped(reader.schema, reader, scratch) if len(batch)]
    if not strings or any(column[-1].as_py() != _LAST for column in strings[-1].columns):
        raise SourceError(f"{label} ends within quotes, or is cut: fetch it again, or close the quotes")
    strings[-1] = strings[-1].slice(0, len(strings[-1]) - 1)
    columns = {name: [batch.column(name) for batch in strings] for name in names if name}
    schema = pa.schema([pa.field(name, _csv_type(parts)) for name, parts in columns.items()])
    return Table(label, schema, [*_groups_of(strings, label, first=2)], bad)


def _csv_type(parts: list[Any]) -> Any:
    """Return the type of the strings of a column."""
    pa, compute = pyarrow(), pyarrow().compute

    def fits(strings: Any, kind: str) -> bool:
        try:
            strings.cast(kind)
        except pa.ArrowInvalid:  # such as 19 digits that 64 bits do not hold
            return False
        return compute.all(compute.match_substring_regex(strings, _CSV_TYPES[kind])).as_py() is not False

    if all(strings.null_count == len(strings) for strings in parts):
        return pa.null()
    return next((kind for kind in _CSV_TYPES if all(fits(strings, kind) for strings in parts)), "string")


def _json_lines(path: Path, label: str, skips: bool, scratch: Path | None) -> Table:
    """Read a JSON Lines file: an object on each line, whose names are columns.

    A column whose values are nested, or of several types, has strings of JSON (`JSON_TEXT`). Python's `json` parses the
    lines: pyarrow takes strings for times, and gives objects the keys of other rows.
    """
    pa, bad, types = pyarrow(), dict[int, str](), dict[str, set[type]]()

    def values(row: dict[str, Any], field: Any) -> Any:
        if field.metadata != JSON_TEXT:
            return row.get(field.name)
        return json.dumps(row[field.name], ensure_ascii=False) if field.name in row else None

    with _unpacked(path) as stream:
        for row in _objects(stream, label, bad if skips else None):
            for name, value in row.items():
                is_large = type(value) is int and not -(2**63) <= value < 2**63
                types.setdefault(name, set()).add(object if is_large else type(value))
        fields = []
        for name, kinds in types.items():
            kinds = kinds - {type(None)}
            kind = _JSON_TYPES.get(next(iter(kinds))) if len(kinds) == 1 else None if kinds else "null"
            fields.append(pa.field(name, kind) if kind else pa.field(name, "string", metadata=JSON_TEXT))
        schema = pa.schema(fields)
        stream.seek(0)
        rows = _objects(stream, label, bad if skips else None)
        batches = (
            pa.record_batch([[values(row, field) for row in part] for field in fields], schema=schema)
            for part in iter(lambda: list(itertools.islice(rows, _ROWS)), [])
        )
        return Table(label, schema, [*_groups_of(_mapped(schema, batches, scratch), label, first=1)], bad)


def _objects(stream: Any, label: str, bad: dict[int, str] | None) -> Iterator[dict[str, Any]]:
    """Yield the objects on the lines of a stream.

    A line that holds no object comes into ``bad``, by its number; it is a `SourceError` without ``bad``.
    """
    number = 0
    for line in stream:
        content = line.removeprefix(codecs.BOM_UTF8) if not number else line
        if not content.strip():
            continue
        number += 1
        try:
            string = content.decode()
            row = json.loads(string)
            if not isinstance(row, dict):
                raise ValueError(f"it holds a {type(row).__name__}")
            if "\\u" in string:  # may escape half a character, which no column of strings holds
                json.dumps(row, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            reason = f"it is not a JSON object: {error}"
            if bad is None:
                advice = "write one object on each line, as `jq -c '.[]'` does for a list"
                raise SourceError(f"{label}, row {number:,}: {reason}; {advice}") from None
            bad[number] = reason
            continue
        yield row
