"""Text files as tables: CSV, TSV and JSON Lines.

They become temporary Arrow files, as only all values of a column together say its type. A column of a CSV has integers
only if they keep all that is written: codes such as ``007`` stay strings, and so do integers of more than 64 bits,
dates and times. Decimals become the nearest floats, ``1.10`` is 1.1, and ``true`` and ``false`` booleans.
"""

from __future__ import annotations

import codecs
import gzip
import itertools
import json
import mmap
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from wdsdist._util.arrow import pyarrow
from wdsdist._util.host import temporary_dir
from wdsdist.errors import SourceError

JSON_TEXT = {b"json": b"text"}
"""Metadata of a field whose strings are JSON: nested values, and values of several types in one column."""

_ROWS = 65_536
_BLOCK = 16 << 20
"""Bytes of a CSV that are parsed together, and the most that a row can have."""
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


def _unpacked(path: Path) -> Any:
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")


def _mapped(schema: Any, batches: Iterable[Any]) -> list[Any]:
    """Write batches into a temporary file, and return them mapped."""
    pa = pyarrow()
    with tempfile.TemporaryFile(dir=temporary_dir()) as file:  # without a name: a killed process leaves nothing
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


def csv(path: Path, label: str, bad: dict[int, str] | None, delimiter: str = ",") -> tuple[Any, list[Any]]:
    """Read a CSV or TSV file, whose first row names the columns; an empty field is missing.

    Returns the schema, and the rows as record batches of strings. Rows of another length come into ``bad``, by their
    number; they are an error without ``bad``.
    """
    pa = pyarrow()

    def skip(row: Any) -> str:
        if row.number is None or bad is None:
            return "error"
        bad[row.number] = f"it has {row.actual_columns:,} fields, and the header {row.expected_columns:,}"
        return "skip"

    def opened(stream: Any, convert: Any) -> Any:
        reads = pa.csv.ReadOptions(block_size=_BLOCK, use_threads=False)
        handler = None if bad is None else skip
        parses = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=handler)
        return pa.csv.open_csv(stream, reads, parses, convert)

    with _unpacked(path) as stream:
        names = opened(stream, None).schema.names
        stream.seek(0)
        last = f"\n{delimiter.join([_LAST] * len(names))}\n"
        types = dict.fromkeys(names, pa.string())
        converts = pa.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
        reader = opened(_Continued(stream, last.encode()), converts)
        strings = [batch for batch in _mapped(reader.schema, reader) if len(batch)]
    if not strings or any(column[-1].as_py() != _LAST for column in strings[-1].columns):
        raise SourceError(f"{label} ends within quotes, or is cut: fetch it again, or close the quotes")
    strings[-1] = strings[-1].slice(0, len(strings[-1]) - 1)
    columns = zip(names, zip(*(batch.columns for batch in strings), strict=True), strict=True)
    schema = pa.schema([pa.field(name, _csv_type(parts)) for name, parts in columns if name])
    return schema, strings


def _csv_type(parts: Iterable[Any]) -> Any:
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


def json_lines(path: Path, label: str, bad: dict[int, str] | None) -> tuple[Any, list[Any]]:
    """Read a JSON Lines file: an object on each line, whose names are columns; return its schema and record batches.

    A line that holds no object comes into ``bad``, by its number; it is a `SourceError` without ``bad``. A column whose
    values are nested, or of several types, has strings of JSON (`JSON_TEXT`). Python's `json` parses the lines: pyarrow
    takes strings for times, and gives objects the keys of other rows.
    """
    pa, types = pyarrow(), dict[str, set[type]]()

    def values(row: dict[str, Any], field: Any) -> Any:
        if field.metadata != JSON_TEXT:
            return row.get(field.name)
        return json.dumps(row[field.name], ensure_ascii=False) if field.name in row else None

    with _unpacked(path) as stream:
        for row in _objects(stream, label, bad):
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
        rows = _objects(stream, label, bad)
        batches = (
            pa.record_batch([[values(row, field) for row in part] for field in fields], schema=schema)
            for part in iter(lambda: list(itertools.islice(rows, _ROWS)), [])
        )
        return schema, _mapped(schema, batches)


def _objects(stream: Any, label: str, bad: dict[int, str] | None) -> Iterator[dict[str, Any]]:
    """Yield the objects on the lines of a stream; a line that holds none comes into ``bad``, or is a `SourceError`."""
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
