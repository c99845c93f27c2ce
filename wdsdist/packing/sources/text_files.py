"""CSV, TSV and JSON Lines files in UTF-8 as tables, read once, by pyarrow, as a stream of batches.

A CSV or TSV starts with a row of names; fields may be quoted with ``"`` and then hold line breaks. Columns without a
name are left out. Values are read as texts, for only all of them together tell numbers from texts such as ``007``. A
JSON Lines file is read as one column of lines, each of which Python's `json` reads: pyarrow's own reader takes texts
for times and gives objects the keys of other rows.

Rows of text have no place of their own in a file, so the texts are written once more, into a temporary Arrow file that
any row can be read from. The rows of a shard travel with it to whoever writes it.
"""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SourceError
from wdsdist.packing.sources.arrow_files import FIRST, LISTED_ROWS, ArrowFile, ArrowTable, pyarrow
from wdsdist.packing.sources.columns import Column, Content, paths_or_texts
from wdsdist.packing.sources.source import FileStamp, LeftOut, OnError
from wdsdist.packing.sources.table_rows import Row, Rows
from wdsdist.shards.tar import is_text

_DELIMITERS = {"csv": ",", "tsv": "\t", "jsonl": "\x1f"}  # the last is in no JSON
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_BLOCK = 16 << 20  # bytes that are parsed together, and the most that a row can have
_LAST = "(end of the table)"  # the fields of a row that is read behind the others: quotes that do not end swallow it
_OF_A_LIST = ": the file seems to be one list, so write each of its objects into a line, as with `jq -c '.[]'`"
_BAD_ROW = re.compile(r"CSV parse error: Row #(\d+): (.*)")

_WRITTEN: tuple[tuple[Content, str], ...] = (
    ("integer", r"^-?(?:0|[1-9][0-9]{0,300})$"),  # not 007, which is a text
    ("number", r"^-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?$"),
)
"""What texts of a CSV are, where all of them look so; the first that fits."""


@dataclass(frozen=True, slots=True)
class TextRows(Rows):
    """Some rows of a file of text, themselves."""

    path: str
    names: tuple[str, ...] | None
    """Of the columns, where each row is a line of JSON."""
    numbers: list[int]
    """Of the rows, as messages count them."""
    texts: list[list[str]]

    def __iter__(self) -> Iterator[Row]:
        for row in self.texts:
            yield row if self.names is None else _values(row[0], self.names)

    def place(self, number: int) -> str:
        return f"{self.path}, row {self.numbers[number]:,}"


class TextTable(ArrowTable):
    """One file of text as a table of texts."""

    def __init__(self, path: Path, kind: str, scratch: Path | None, on_error: OnError = "raise") -> None:
        pa = pyarrow()
        self.path = str(path)
        self._on_error = on_error
        self._is_json = kind == "jsonl"
        self._delimiter = _DELIMITERS[kind]
        self._bad: dict[int, str] = {}
        """Rows that cannot be parsed, by their number in messages, and why; they are no rows of the table."""
        with path.open("rb") as stream:
            start = stream.read(64)
        if start.startswith(_UTF_16):
            raise SourceError(f"{path} is in UTF-16: convert it to UTF-8, as with `iconv -f UTF-16 -t UTF-8`")
        if b"\0" in start.partition(b"\n")[0]:
            raise SourceError(
                f"{path} begins with zero bytes between its letters, as UTF-16 without a mark does: convert it to "
                f"UTF-8, as with `iconv -f UTF-16LE -t UTF-8`"
            )
        with self._errors():
            self._columns = ["line"] if self._is_json else list(self._open(self.path, None).schema.names)
        self._profiles = (
            {} if self._is_json else {(place, name): _Profile() for place, name in enumerate(self._columns)}
        )
        schema = pa.schema([(str(place), pa.string()) for place in range(len(self._columns))])
        stamp, rows = FileStamp.of(path), 0
        with _temporary_file(scratch) as stream:
            with pa.ipc.new_file(pa.PythonFile(stream, mode="w"), schema) as writer:
                for columns in self._batches():
                    columns = self._look(columns, rows)
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
                    rows += len(columns[0])
            stream.flush()
            copy = pa.BufferReader(pa.py_buffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)))
        stamp.check()
        super().__init__((stamp,), [ArrowFile(self.path, copy)])
        self._names = tuple(name for _, name in self._profiles)

    def columns(self, root: str) -> list[Column]:
        found = [
            Column("", "empty")  # such as the index of pandas, which is no data
            if not name
            else paths_or_texts(name, tuple(profile.first), root)
            if profile.content == "text"
            else Column(name, profile.content)
            for (_, name), profile in self._profiles.items()
        ]
        paths = () if self._is_json else [one.name for one in found if one.content == "path"]
        data = next((name for name in paths if paths_or_texts("", (name,), root).content == "path"), None)
        if data is not None:
            raise SourceError(
                f"{self.path}: the first row holds {data!r}, a file like those of the rows below: add a row above it "
                f"that names the columns"
            )
        return found

    def rows(self, used: Sequence[int], columns: Sequence[Column]) -> Iterator[Row]:
        if not self._is_json:
            yield from super().rows(used, columns)
            return
        for (line,) in super().rows([0], columns):
            yield _values(line, self._names)

    def place(self, index: int) -> str:
        """Say where a row stands."""
        return f"{self.path}, row {self._numbers(np.array([index]))[0]:,}"

    def take(self, indices: Int64s, used: Sequence[int]) -> TextRows:
        """Return some rows themselves: whoever writes them may not see the temporary file."""
        self.stamps[0].check()
        at = np.searchsorted(self.starts, indices, side="right") - 1
        texts: list[list[str]] = [[]] * len(indices)
        for number in np.unique(at).tolist():
            places = np.flatnonzero(at == number)
            batch = self.files[0].batch(number).take(pyarrow().array(indices[places] - self.starts[number]))
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            for place, row in zip(places.tolist(), rows, strict=True):
                texts[place] = list(row)
        names = self._names if self._is_json else None
        return TextRows(self.stamps[0].path, names, self._numbers(indices), texts)

    def left_out(self) -> list[LeftOut]:
        """Return the rows that cannot be parsed, where these are left out."""
        return [LeftOut(f"row {number:,}", reason) for number, reason in sorted(self._bad.items())]

    def _look(self, columns: list[Any], before: int) -> list[Any]:
        """Note what columns hold, and return those of the rows that can be parsed; there are so many rows before."""
        if not self._is_json:
            for profile, column in zip(self._profiles.values(), columns, strict=True):
                values = column.drop_null()
                profile.add(_written(values), values[: FIRST - len(profile.first)].to_pylist(), "text")
            return columns
        good: list[int] = []
        for start in range(0, len(columns[0]), LISTED_ROWS):
            for place, line in enumerate(columns[0].slice(start, LISTED_ROWS).to_pylist(), start):
                try:
                    self._look_at(line)
                except ValueError as error:
                    (number,) = self._numbers(np.array([before + len(good)]))
                    if self._on_error == "raise":
                        raise SourceError(f"{self.path}, row {number:,}: {error}") from error
                    self._bad[number] = str(error)
                else:
                    good.append(place)
        return columns if len(good) == len(columns[0]) else [columns[0].take(pyarrow().array(good, "int64"))]

    def _look_at(self, line: str) -> None:
        """Parse a line of JSON Lines and record its columns. Raises ``ValueError`` for one that is no row."""
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            advice = _OF_A_LIST if line.strip() == "[" else ""
            raise ValueError(f"no JSON: {error}{advice}") from error
        if not isinstance(row, dict):
            raise ValueError(f'holds a {type(row).__name__}, not an object such as {{"image": "0.jpg"}}')
        for name in row:
            if (0, name) not in self._profiles and not is_text(name):
                raise ValueError(f"the name {name!r:.100} is not valid Unicode")
        for name, value in row.items():
            profile = self._profiles.setdefault((0, name), _Profile())
            profile.add(_told(value), [value] if isinstance(value, str) else [], "other")

    def _numbers(self, indices: Int64s) -> list[int]:
        """Return the numbers of rows in messages: a CSV's row of names and bad rows count, blank ones do not."""
        numbers = indices + (1 if self._is_json else 2)
        before = np.array(sorted(self._bad), np.int64) - np.arange(len(self._bad))
        found: list[int] = (numbers + np.searchsorted(before, numbers, side="right")).tolist()
        return found

    def _leave_out(self, row: Any) -> str:
        """Return ``"skip"`` for a CSV row with too few or too many fields, which is noted, as pyarrow's handler."""
        if row.number is None:
            return "error"
        self._bad[row.number] = (
            f"it has {row.actual_columns:,} fields, and the first row names {row.expected_columns:,}"
        )
        return "skip"

    def _batches(self) -> Iterator[list[Any]]:
        """Yield the columns of all rows, some rows at a time, as arrays of texts; an empty field of a CSV is a null."""
        pa = pyarrow()
        # Not as strings: which row is not UTF-8, only the bytes tell.
        convert = pa.csv.ConvertOptions(
            column_types=dict.fromkeys(self._columns, pa.binary()),
            null_values=[""],
            strings_can_be_null=not self._is_json,
        )
        last = self._delimiter.join([_LAST] * len(self._columns))
        rows, held = 0, None
        with self._errors(), _Lengthened(self.path, f"\n{last}\n".encode()) as stream:
            for batch in self._open(stream, convert):
                if held is not None:
                    yield self._texts(held, rows)
                    rows += held.num_rows
                held = batch
        if held is None or any(column[-1].as_py() != _LAST.encode() for column in held.columns):
            raise SourceError(f"{self.path} ends within quotes, or is cut: fetch it again, or close the quotes")
        yield self._texts(held.slice(0, held.num_rows - 1), rows)

    def _open(self, source: Any, convert: Any) -> Any:
        """Open a stream of batches; each is read by one thread, as there is a process for each core."""
        csv = pyarrow().csv
        names = ["line"] if self._is_json else None
        read = csv.ReadOptions(block_size=_BLOCK, use_threads=False, column_names=names)
        quote = False if self._is_json else '"'
        parse = csv.ParseOptions(
            delimiter=self._delimiter,
            quote_char=quote,
            newlines_in_values=not self._is_json,
            invalid_row_handler=None if self._on_error == "raise" else self._leave_out,
        )
        return csv.open_csv(source, read, parse, convert)

    def _texts(self, batch: Any, before: int) -> list[Any]:
        """Return the columns of a batch as texts; there are so many rows before it."""
        pa = pyarrow()
        try:
            columns = [column.cast(pa.string()) for column in batch.columns]
        except pa.ArrowInvalid as error:
            for number, row in enumerate(zip(*(column.to_pylist() for column in batch.columns), strict=True), before):
                for name, value in zip(self._columns, row, strict=True):
                    _check_utf8(value or b"", f"{self.place(number)}, column {name!r}")
            raise SourceError(f"{self.path} is not UTF-8: {error}") from error
        if self._is_json:
            columns = [columns[0].filter(pa.compute.invert(pa.compute.utf8_is_space(columns[0])))]
        return columns

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what pyarrow raises into a `SourceError` that names the row."""
        try:
            yield
        except OSError as error:
            raise SourceError(f"{self.path} cannot be read: {error.strerror or error}") from error
        except (pyarrow().ArrowException, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())[:300]
            match = _BAD_ROW.search(reason)
            if "Empty CSV file" in reason:
                what = " is empty: its first row must name its columns"
            elif "straddling" in reason:
                what = f" has a row of more than {_BLOCK:,} bytes, or quotes that do not end"
            elif match is None:
                what = f" is no table that can be read: {reason}"
            elif self._is_json:
                what = f", row {match[1]}: no JSON: a control character"
            else:
                advice = "the first row names the columns; quote fields that hold separators or line breaks"
                what = f", row {match[1]}: {match[2]}: {advice}"
            raise SourceError(f"{self.path}{what}") from error


class _Lengthened(io.RawIOBase):
    """A file with some bytes behind its end."""

    def __init__(self, path: str, end: bytes) -> None:
        self._parts = [Path(path).open("rb"), io.BytesIO(end)]  # noqa: SIM115 - closed with this one

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._parts:
            count = self._parts[0].readinto(buffer)
            if count:
                return count
            self._parts.pop(0).close()
        return 0

    def close(self) -> None:
        for part in self._parts:
            part.close()
        super().close()


@dataclass(slots=True)
class _Profile:
    """What a column holds, as far as it has been read."""

    content: Content = "empty"
    first: list[str] = field(default_factory=list)
    """The first texts."""

    def add(self, content: Content, texts: list[str], mixed: Content) -> None:
        """Look at further values; ``mixed`` is what values of several sorts are together."""
        self.first += texts[: FIRST - len(self.first)]
        if self.content == "empty":
            self.content = content
        elif content not in (self.content, "empty"):
            self.content = "number" if {self.content, content} == {"integer", "number"} else mixed


def _temporary_file(scratch: Path | None) -> IO[bytes]:
    """Open a file without a name, which even a killed process leaves nothing of; beside the shards where that works."""
    for folder in (scratch, scratch and scratch.parent):
        if folder is not None:
            with contextlib.suppress(OSError):
                return tempfile.TemporaryFile(dir=folder)
    return tempfile.TemporaryFile()


def _written(values: Any) -> Content:
    """Say what texts of a CSV, none of them missing, are written as."""
    if not len(values):
        return "empty"
    compute = pyarrow().compute
    return next(
        (what for what, form in _WRITTEN if compute.all(compute.match_substring_regex(values, form)).as_py()), "text"
    )


def _told(value: Any) -> Content:
    if value is None:
        return "empty"
    if isinstance(value, str):
        return "text"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "integer" if isinstance(value, int) else "number"
    return "other"


def _values(line: str, names: tuple[str, ...]) -> Row:
    found = json.loads(line)  # which worked when it was listed
    return [found.get(name) for name in names]


def _check_utf8(value: bytes, place: str) -> None:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{place}: byte {error.start:,}, {value[error.start]:#04x}, is not UTF-8: convert the file, as with "
            f"`iconv -t UTF-8`"
        ) from error
