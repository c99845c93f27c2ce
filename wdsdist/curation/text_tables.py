"""CSV, TSV and JSON Lines files in UTF-8 as tables.

pyarrow splits a CSV into strings, which are written into a temporary Arrow file: only all values of a column together
say its type. A column has numbers only if they keep everything that is written: codes such as ``007`` stay strings, and
so do integers of more than 64 bits, dates and times. The lines of a JSON Lines file are written in the same way, and
parsed by Python's `json`: pyarrow's reader takes strings for times and gives objects the keys of other rows.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import mmap
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from wdsdist.curation.arrow_tables import JSON_TEXT, ArrowTable, pyarrow, reading
from wdsdist.errors import SourceError

_DELIMITERS = {"csv": ",", "tsv": "\t", "jsonl": "\x1f"}  # the last is in no JSON
_BLOCK = 16 << 20  # bytes that are parsed together, and the most that a row can have
_LAST = b"(end of the table)"  # fields of a row behind the others: quotes that do not end swallow it
_BAD_ROW = re.compile(r"CSV parse error: Row #(\d+): (.*)")
_NO_VALUE = ("NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "None")
_EXACT = 2**53
"""Floats hold all integers up to this one."""
_TYPES = {
    "bool": r"^(?:true|True|TRUE|false|False|FALSE)$",
    "int64": r"^-?(?:0|[1-9][0-9]{0,18})$",
    "double": (
        r"^-?(?:0|[1-9][0-9]{0,15}|(?:0|[1-9][0-9]*)?\.[0-9]*|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?[eE][+-]?[0-9]{1,3})$"
    ),
}
"""What all values of a column of a CSV look like if it has that type; the first that fits."""


class TextTable(ArrowTable):
    """One text file as a table."""

    def __init__(
        self,
        path: Path,
        kind: str,
        label: str,
        *,
        flatten: bool,
        on_error: Literal["raise", "skip"],
        scratch: Path | None,
    ) -> None:
        pa = pyarrow()
        self._path, self._kind, self._flatten, self._skips = path, kind, flatten, on_error == "skip"
        self._bad: dict[int, str] = {}
        self.label = label
        with reading(label), self._stream() as stream:
            start = stream.read(64)
        if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in start.partition(b"\n")[0]:
            raise SourceError(f"{label} is in UTF-16: convert it to UTF-8, as with `iconv -f UTF-16 -t UTF-8`")
        self._names = ["line"] if kind == "jsonl" else self._header()
        schema = pa.schema([(str(place), pa.string()) for place in range(len(self._names))])
        self._types: dict[str, set[str]] = (
            {} if kind == "jsonl" else {name: set(_TYPES) for name in self._names if name}
        )
        self._filled: set[str] = set()
        try:
            folder = scratch if scratch is not None and scratch.is_dir() else None
            with tempfile.TemporaryFile(dir=folder) as file:  # without a name: a killed process leaves nothing
                with pa.ipc.new_file(pa.PythonFile(file, mode="w"), schema) as writer:
                    rows = 0
                    for columns in self._columns():
                        kept = self._profile_lines(columns[0], rows) if kind == "jsonl" else columns
                        if kind != "jsonl":
                            self._profile(columns)
                        writer.write_batch(pa.RecordBatch.from_arrays(kept, schema=schema))
                        rows += len(kept[0])
                file.flush()
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise SourceError(f"{label} cannot be copied to a temporary file: {error.strerror or error}") from error
        reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(content)))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        super().__init__([(schema, batches)], label, [label])
        self.schema = pa.schema(
            [self._json_field(name) if kind == "jsonl" else self._field(name) for name in self._types]
        )
        self.bad_rows = tuple(sorted(self._bad.items()))

    def row_name(self, row: int) -> str:
        """Return where a row stands: the header and skipped rows of a CSV count."""
        number = row + (1 if self._kind == "jsonl" else 2)
        for bad in sorted(self._bad):
            number += bad <= number
        return f"{self.label}, row {number:,}"

    def _group(self, group: int, columns: list[str], raw: bool) -> Any:
        pa, batch = pyarrow(), self._batches[group]
        fields = [self.schema.field(name) for name in columns]
        if self._kind == "jsonl":
            rows = [dict(self._values(json.loads(line))) for line in batch.column(0).to_pylist()]
            arrays = [_json_array([row.get(field.name, _ABSENT) for row in rows], field) for field in fields]
        else:
            arrays = [batch.column(self._names.index(name)) for name in columns]
            if not raw:
                arrays = [self._cast(array, field.type) for array, field in zip(arrays, fields, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=columns) if fields else batch.select([])

    # CSV and TSV

    def _cast(self, values: Any, kind: Any) -> Any:
        """Return strings as values of the type of their column; those that mean no value are missing."""
        compute = pyarrow().compute
        if pyarrow().types.is_null(kind):
            return pyarrow().nulls(len(values))
        if self._flatten and not pyarrow().types.is_string(kind):
            values = compute.if_else(compute.is_in(values, pyarrow().array(_NO_VALUE)), None, values)
        return values.cast(kind)

    def _profile(self, columns: list[Any]) -> None:
        """Rule out the types that values of a batch do not have."""
        pa, compute = pyarrow(), pyarrow().compute
        for name, values in zip(self._names, columns, strict=True):
            values = values.drop_null()
            if self._flatten:
                values = values.filter(compute.invert(compute.is_in(values, pa.array(_NO_VALUE))))
            if not name or not len(values):
                continue
            self._filled.add(name)
            for kind in [one for one in _TYPES if one in self._types[name]]:
                fits = compute.all(compute.match_substring_regex(values, _TYPES[kind])).as_py()
                try:
                    fits and values.cast(kind)
                except pa.ArrowInvalid:  # 19 digits that 64 bits do not hold
                    fits = False
                if not fits:
                    self._types[name].discard(kind)

    def _field(self, name: str) -> Any:
        pa = pyarrow()
        if name not in self._filled:
            return pa.field(name, pa.null())
        return pa.field(name, next((kind for kind in _TYPES if kind in self._types[name]), "string"))

    # JSON Lines

    def _profile_lines(self, lines: Any, before: int) -> list[Any]:
        """Note the types of the values in lines; return the lines that are rows."""
        good: list[int] = []
        for place, line in enumerate(lines.to_pylist()):
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f'it holds a {type(row).__name__}, not an object such as {{"image": "0.jpg"}}')
                values = list(self._values(row))
                if "\\u" in line:  # may escape half a character, which no column of strings holds
                    json.dumps(row, ensure_ascii=False).encode()
            except (ValueError, RecursionError) as error:
                number = before + len(good) + 1
                for bad in sorted(self._bad):
                    number += bad <= number
                advice = (
                    "; write each object of the list into a line, as with `jq -c '.[]'`" if line.strip() == "[" else ""
                )
                reason = f"it is not JSON: {error}{advice}" if "it holds" not in str(error) else str(error)
                if not self._skips:
                    raise SourceError(f"{self.label}, row {number:,}: {reason}") from None
                self._bad[number] = reason
                continue
            good.append(place)
            for name, value in values:
                self._types.setdefault(name, set()).add(_json_type(value))
        return [lines if len(good) == len(lines) else lines.take(pyarrow().array(good, "int64"))]

    def _values(self, row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Yield the values of a row under their names; if the table is flat, those of nested objects with dots."""
        for name, value in row.items():
            if self._flatten and isinstance(value, dict):
                yield from self._values(value, f"{prefix}{name}.")
            elif not (self._flatten and isinstance(value, list)):
                yield f"{prefix}{name}", value

    def _json_field(self, name: str) -> Any:
        """Return the field of a column: of the type that all its values have, else of strings."""
        pa, types = pyarrow(), self._types[name] - {"null"}
        if types <= {"int64", "large"}:
            return pa.field(name, "int64" if types else "null")
        if len(types) == 1 and not types & {"nested", "huge"}:
            return pa.field(name, types.pop())
        if self._flatten:
            return pa.field(name, "double" if types == {"int64", "double"} else "string")
        return pa.field(name, "string", metadata=JSON_TEXT)

    # Reading

    def _stream(self) -> Any:
        return pyarrow().input_stream(str(self._path), compression="detect" if self._path.suffix == ".gz" else None)

    def _header(self) -> list[str]:
        """Return the names of the columns of a CSV; an empty name is that of a column without one."""
        with self._errors(), self._stream() as stream:
            names = list(self._open(stream, None).schema.names)
        twice = next((name for name in names if name and names.count(name) > 1), None)
        if twice is not None:
            raise SourceError(f"{self.label} has two columns with the name {twice!r}: rename one")
        return names

    def _columns(self) -> Iterator[list[Any]]:
        """Yield the columns of all rows as arrays of strings, a batch at a time; an empty field of a CSV is missing."""
        pa, is_json = pyarrow(), self._kind == "jsonl"
        # As bytes first: only they say which row is not UTF-8.
        convert = pa.csv.ConvertOptions(
            column_types=dict.fromkeys(self._names, pa.binary()), null_values=[""], strings_can_be_null=not is_json
        )
        last = b"\n" + _DELIMITERS[self._kind].encode().join([_LAST] * len(self._names)) + b"\n"
        rows, held = 0, None
        with self._errors(), _Chained(self._stream(), last) as stream:
            for batch in itertools.chain(self._open(stream, convert), (None,)):
                if held is not None:
                    if batch is None:
                        if any(column[-1].as_py() != _LAST for column in held.columns):
                            break
                        held = held.slice(0, held.num_rows - 1)
                    columns = self._strings(held, rows)
                    if is_json:
                        columns = [columns[0].filter(pa.compute.invert(pa.compute.utf8_is_space(columns[0])))]
                    yield columns
                    rows += held.num_rows
                held = batch
            else:
                return
        raise SourceError(f"{self.label} ends within quotes, or is cut: fetch it again, or close the quotes")

    def _open(self, stream: Any, convert: Any) -> Any:
        csv, is_json = pyarrow().csv, self._kind == "jsonl"
        return csv.open_csv(
            stream,
            csv.ReadOptions(block_size=_BLOCK, use_threads=False, column_names=["line"] if is_json else None),
            csv.ParseOptions(
                delimiter=_DELIMITERS[self._kind],
                quote_char=False if is_json else '"',
                newlines_in_values=not is_json,
                invalid_row_handler=self._skip_row if self._skips else None,
            ),
            convert,
        )

    def _skip_row(self, row: Any) -> str:
        if row.number is None:
            return "error"
        self._bad[row.number] = f"it has {row.actual_columns:,} fields, and the header {row.expected_columns:,}"
        return "skip"

    def _strings(self, batch: Any, before: int) -> list[Any]:
        """Return the columns of a batch as strings. Raises `SourceError` with the row that is not UTF-8."""
        pa = pyarrow()
        arrays = []
        for name, column in zip(self._names, batch.columns, strict=True):
            try:
                arrays.append(column.cast(pa.string()))
            except pa.ArrowInvalid:
                for row, value in enumerate(column.to_pylist(), before):
                    try:
                        (value or b"").decode()
                    except UnicodeDecodeError as error:
                        raise SourceError(
                            f"{self.row_name(row)}, column {name!r}: byte {error.start:,}, {value[error.start]:#04x}, "
                            f"is not UTF-8: convert the file, as with `iconv -f LATIN1 -t UTF-8`"
                        ) from None
                raise
        return arrays

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the errors of pyarrow's CSV reader into a `SourceError` that names the row."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            whole = " whole" if self.label.endswith(".gz") else ""
            raise SourceError(f"{self.label} cannot be read{whole}: {error.strerror or error}") from error
        except (pyarrow().ArrowException, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())[:300]
            match = _BAD_ROW.search(reason)
            if "Empty CSV file" in reason:
                what = " is empty: its first row must name its columns"
            elif "straddling" in reason:
                what = f" has a row of more than {_BLOCK:,} bytes, or quotes that do not end"
            elif match is None:
                what = f" is not a table that can be read: {reason}"
            elif self._kind == "jsonl":
                what = f", row {match[1]}: it is not JSON: a control character"
            else:
                what = f", row {match[1]}: {match[2]}: quote fields that hold separators or line breaks"
            raise SourceError(f"{self.label}{what}") from error


class _Chained(io.RawIOBase):
    """A stream, and some bytes after its end."""

    def __init__(self, stream: Any, end: bytes) -> None:
        self._parts = [stream, io.BytesIO(end)]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._parts:
            data = self._parts[0].read(len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
            self._parts.pop(0).close()
        return 0

    def close(self) -> None:
        for part in self._parts:
            part.close()
        super().close()


_ABSENT = object()
"""The value of a name that a row of JSON Lines does not have."""


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int():
            return "int64" if abs(value) <= _EXACT else "large" if -(2**63) <= value < 2**63 else "huge"
        case float():
            return "double"
        case str():
            return "string"
    return "nested"


def _json_array(values: list[Any], field: Any) -> Any:
    """Return the values of a column as an array of its type."""
    pa = pyarrow()
    if field.metadata == JSON_TEXT:
        texts = [None if value is _ABSENT else json.dumps(value, ensure_ascii=False) for value in values]
        return pa.array(texts, "string")
    values = [None if value is _ABSENT else value for value in values]
    if pa.types.is_string(field.type):
        values = [None if value is None else str(value).encode("utf-8", "replace").decode() for value in values]
    return pa.array(values, field.type)
