"""CSV, TSV and JSON Lines files in UTF-8 as tables.

The strings of a file are kept in a temporary Arrow file, as only all values of a column together say its type. A column
of a CSV has numbers only if they keep all that is written: codes such as ``007`` stay strings, and so do integers of
more than 64 bits, dates and times. Python's `json` parses JSON Lines: pyarrow takes strings for times, and gives
objects the keys of other rows.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import mmap
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from wdsdist.curation.tables import JSON_TEXT, ROWS, Table, pyarrow
from wdsdist.errors import SourceError

_BLOCK = 16 << 20  # bytes that are parsed together, and the most that a row can have
_LAST = b"(end of the table)"  # each field of a row that follows the last one: quotes that do not end swallow it
_TYPES = {
    "bool": r"^(?:true|True|TRUE|false|False|FALSE)$",
    "int64": r"^-?(?:0|[1-9][0-9]{0,18})$",
    "double": (
        r"^-?(?:0|[1-9][0-9]{0,15}|(?:0|[1-9][0-9]*)?\.[0-9]*|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?[eE][+-]?[0-9]{1,3})$"
    ),
}
"""What all values of a column of a CSV look like if it has that type; the first that fits counts."""
_JSON_TYPES = {bool: "bool", int: "int64", float: "double", str: "string"}


class TextTable(Table):
    """The rows of a CSV, TSV or JSON Lines file, as strings."""

    first_row = 1
    """The number of the first row, for messages."""

    def __init__(self, path: Path, label: str, *, skips: bool, scratch: Path | None) -> None:
        self.label, self._skips = label, skips
        self._bad: dict[int, str] = {}
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            start = stream.read(64)
            stream.seek(0)
            if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in start.partition(b"\n")[0]:
                raise SourceError(f"{label} is in UTF-16: convert it to UTF-8, as with `iconv -f UTF-16 -t UTF-8`")
            schema, batches = self._read(stream)
            self._batches = _kept(schema, batches, scratch)
        self.bad_rows = tuple(sorted(self._bad.items()))
        super().__init__(label, pyarrow().schema(self._fields()), [batch.num_rows for batch in self._batches])

    def row_name(self, row: int) -> str:
        """Return the place of a row: the header and skipped rows count."""
        number = row + self.first_row
        for bad in sorted(self._bad):
            number += bad <= number
        return f"{self.label}, row {number:,}"

    def _read(self, stream: Any) -> tuple[Any, Iterator[Any]]:
        """Return the schema of the strings of a file, and an iterator over their batches."""
        raise NotImplementedError

    def _fields(self) -> Iterable[Any]:
        """Yield the columns, with their types."""
        raise NotImplementedError


def _kept(schema: Any, batches: Iterable[Any], scratch: Path | None) -> list[Any]:
    """Write batches into a temporary file, and return them mapped."""
    pa = pyarrow()
    folder = scratch if scratch is not None and scratch.is_dir() else None
    with tempfile.TemporaryFile(dir=folder) as file:  # without a name: a killed process leaves nothing
        with pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.flush()
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(content)))
    return [reader.get_batch(number) for number in range(reader.num_record_batches)]


class CsvTable(TextTable):
    """A CSV or TSV file, whose first row names the columns; an empty field is missing."""

    first_row = 2

    def __init__(self, path: Path, label: str, delimiter: str, **options: Any) -> None:
        self._delimiter = delimiter
        super().__init__(path, label, **options)

    def _read(self, stream: Any) -> tuple[Any, Iterator[Any]]:
        pa = pyarrow()
        names = self._open(stream, None).schema.names
        twice = next((name for name in names if name and names.count(name) > 1), None)
        if twice is not None:
            raise SourceError(f"{self.label} has two columns with the name {twice!r}: rename one")
        stream.seek(0)
        last = b"\n" + self._delimiter.encode().join([_LAST] * len(names)) + b"\n"
        strings = pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True
        )
        reader = self._open(io.BufferedReader(_Extended(stream, last)), strings)
        return reader.schema, self._rows(reader)

    def _open(self, stream: Any, convert: Any) -> Any:
        csv = pyarrow().csv
        return csv.open_csv(
            stream,
            csv.ReadOptions(block_size=_BLOCK, use_threads=False),
            csv.ParseOptions(
                delimiter=self._delimiter,
                newlines_in_values=True,
                invalid_row_handler=self._skip_row if self._skips else None,
            ),
            convert,
        )

    def _skip_row(self, row: Any) -> str:
        if row.number is None:
            return "error"
        self._bad[row.number] = f"it has {row.actual_columns:,} fields, and the header {row.expected_columns:,}"
        return "skip"

    def _rows(self, reader: Any) -> Iterator[Any]:
        """Yield the rows before the last one, which marks the end."""
        held = reader.read_next_batch()
        for batch in reader:
            if held.num_rows:
                yield held
            held = batch
        if not held.num_rows or any(column[-1].as_py() != _LAST.decode() for column in held.columns):
            raise SourceError(f"{self.label} ends within quotes, or is cut: fetch it again, or close the quotes")
        yield held.slice(0, held.num_rows - 1)

    def _fields(self) -> Iterator[Any]:
        pa, compute = pyarrow(), pyarrow().compute

        def fits(values: Any, kind: str) -> bool:
            try:
                values.cast(kind)
            except pa.ArrowInvalid:  # such as 19 digits that 64 bits do not hold
                return False
            return compute.all(compute.match_substring_regex(values, _TYPES[kind])).as_py() is not False

        for name in filter(None, self._batches[0].schema.names if self._batches else ()):
            columns = [batch.column(name) for batch in self._batches]
            if all(values.null_count == len(values) for values in columns):
                yield pa.field(name, pa.null())
                continue
            kinds = (kind for kind in _TYPES if all(fits(values, kind) for values in columns))
            yield pa.field(name, next(kinds, "string"))

    def _group(self, group: int, columns: list[str]) -> Any:
        batch, pa = self._batches[group], pyarrow()
        kinds = [self.schema.field(name).type for name in columns]
        arrays = [
            pa.nulls(batch.num_rows) if pa.types.is_null(kind) else batch.column(name).cast(kind)
            for name, kind in zip(columns, kinds, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, names=columns) if columns else batch.select([])


class _Extended(io.RawIOBase):
    """A stream with some bytes after its end."""

    def __init__(self, stream: Any, end: bytes) -> None:
        self._stream, self._end = stream, end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        if not data:
            data, self._end = self._end[: len(buffer)], self._end[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


class JsonLinesTable(TextTable):
    """A JSON Lines file: an object on each line, whose names are columns.

    A column whose values are nested, or of several types, has strings of JSON (`JSON_TEXT`).
    """

    def _read(self, stream: Any) -> tuple[Any, Iterator[Any]]:
        self._types: dict[str, set[type]] = {}
        schema = pyarrow().schema([("line", pyarrow().string())])
        return schema, self._rows(stream, schema)

    def _rows(self, stream: Any, schema: Any) -> Iterator[Any]:
        pa, lines, number = pyarrow(), list[str](), 0
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
                self._bad[number] = f"it is not a JSON object: {error}"
                if not self._skips:
                    raise SourceError(
                        f"{self.label}, row {number:,}: {self._bad[number]}; write one object on each line, as "
                        f"`jq -c '.[]'` does for a list"
                    ) from None
                continue
            for name, value in row.items():
                is_large = type(value) is int and not -(2**63) <= value < 2**63
                self._types.setdefault(name, set()).add(object if is_large else type(value))
            lines.append(string)
            if len(lines) == ROWS:
                yield pa.record_batch([lines], schema=schema)
                lines = []
        if lines:
            yield pa.record_batch([lines], schema=schema)

    def _fields(self) -> Iterator[Any]:
        pa = pyarrow()
        for name, types in self._types.items():
            kinds = types - {type(None)}
            kind = _JSON_TYPES.get(next(iter(kinds))) if len(kinds) == 1 else None
            if kinds and kind is None:
                yield pa.field(name, "string", metadata=JSON_TEXT)
            else:
                yield pa.field(name, kind or "null")

    def _group(self, group: int, columns: list[str]) -> Any:
        pa, lines = pyarrow(), self._batches[group]
        rows, arrays = [json.loads(line) for line in lines.column(0).to_pylist()], []
        for field in map(self.schema.field, columns):
            values = [row.get(field.name) for row in rows]
            if field.metadata == JSON_TEXT:
                values = [
                    json.dumps(row[field.name], ensure_ascii=False) if field.name in row else None for row in rows
                ]
            arrays.append(pa.array(values, field.type))
        return pa.RecordBatch.from_arrays(arrays, names=columns) if columns else lines.select([])
