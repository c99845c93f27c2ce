"""CSV, TSV and JSON Lines files in UTF-8 as tables, read once, as a stream of rows.

A CSV or TSV starts with a row of names; fields may be quoted with ``"`` and then hold line breaks. Columns without a
name are left out. Values are read as texts, for only all of them together tell numbers from texts such as ``007``.

Rows of text have no place of their own in a file, so the texts are written once more, into a temporary Arrow file that
any row can be read from. The rows of a shard travel with it to whoever writes it.
"""

from __future__ import annotations

import contextlib
import csv
import json
import mmap
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SourceError
from wdsdist.packing.sources.arrow_files import FIRST, ArrowFile, ArrowTable, pyarrow
from wdsdist.packing.sources.columns import Column, Content, paths_or_texts
from wdsdist.packing.sources.source import FileStamp, LeftOut, OnError
from wdsdist.packing.sources.table_rows import Row, Rows
from wdsdist.shards.tar import is_text

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_LONGEST = 16 << 20  # characters of a field of a CSV, or of a line of JSON: quotes that do not end are found by it
_BATCH, _MOST_ROWS = 16 << 20, 1 << 16  # characters and rows of a record batch of the temporary file, at most

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
        self._bad: dict[int, str] = {}
        """Rows that cannot be parsed, by their number in messages, and why; they are no rows of the table."""
        self._profiles: dict[tuple[int, str], _Profile] = {}
        """Of each column, by its place in a CSV and its name."""
        stamp = FileStamp.of(path)
        with path.open("rb") as stream:
            if stream.read(2) in _UTF_16:
                raise SourceError(f"{path} is in UTF-16: convert it to UTF-8, as with `iconv -f UTF-16 -t UTF-8`")
        with _temporary_file(scratch) as stream:
            # What is no UTF-8 is found by its row, once that is known.
            with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as texts:
                rows = self._lines(texts) if self._is_json else self._fields(texts, "\t" if kind == "tsv" else ",")
                schema = pa.schema([(str(place), pa.string()) for place in range(len(next(rows)))])
                with pa.ipc.new_file(pa.PythonFile(stream, mode="w"), schema) as writer:
                    before = 0
                    for batch in _batches(rows):
                        writer.write_batch(pa.RecordBatch.from_arrays(self._columns(batch, before), schema=schema))
                        before += len(batch)
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

    def _fields(self, stream: IO[str], delimiter: str) -> Iterator[list[str | None]]:
        """Yield the names of a CSV's columns, then its rows; an empty field is missing."""
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        limit, number = csv.field_size_limit(_LONGEST), 0
        try:
            for number, row in enumerate(filter(None, reader), 1):
                if number == 1:
                    self._refuse_bytes(row, number)
                    self._profiles = {(place, name): _Profile() for place, name in enumerate(row)}
                elif len(row) != len(self._profiles):
                    names = f"the first row names {len(self._profiles):,}"
                    advice = "quote fields that hold separators or line breaks"
                    self._leave_out(number, f"it has {len(row):,} fields, and {names}: {advice}")
                    continue
                yield [value or None for value in row]
        except csv.Error as error:
            raise SourceError(
                f"{self.path}, row {number + 1:,}: {error}: close the quotes, or fetch the file again if it is cut"
            ) from error
        finally:
            csv.field_size_limit(limit)
        if not number:
            raise SourceError(f"{self.path} is empty: its first row must name its columns")

    def _lines(self, stream: IO[str]) -> Iterator[list[str | None]]:
        """Yield one name, and then the lines of JSON Lines that are objects, whose columns are noted."""
        yield ["line"]
        number = 0
        while line := stream.readline(_LONGEST):
            if line.isspace():
                continue
            number += 1
            if len(line) == _LONGEST:
                raise SourceError(f"{self.path}, row {number:,} has more than {_LONGEST:,} characters")
            try:
                self._look_at(line)
            except ValueError as error:
                self._leave_out(number, str(error))
            else:
                yield [line]

    def _leave_out(self, number: int, reason: str) -> None:
        """Raise what is wrong with a row, or note it where such rows are left out."""
        if self._on_error == "raise":
            raise SourceError(f"{self.path}, row {number:,}: {reason}")
        self._bad[number] = reason

    def _look_at(self, line: str) -> None:
        """Parse a line of JSON Lines and record its columns. Raises ``ValueError`` for one that is no row."""
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"no JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f'holds a {type(row).__name__}, not an object such as {{"image": "0.jpg"}}')
        for name in row:
            if (0, name) not in self._profiles and not is_text(name):
                raise ValueError(f"the name {name!r:.100} is not valid Unicode")
        for name, value in row.items():
            profile = self._profiles.setdefault((0, name), _Profile())
            profile.add(_told(value), [value] if isinstance(value, str) else [], "other")

    def _columns(self, rows: list[list[str | None]], before: int) -> list[Any]:
        """Return the columns of some rows, and note what those of a CSV hold; there are so many rows before."""
        pa = pyarrow()
        try:
            columns = [pa.array(values, pa.string()) for values in zip(*rows, strict=True)]
        except UnicodeEncodeError:
            for number, row in zip(self._numbers(np.arange(before, before + len(rows))), rows, strict=True):
                self._refuse_bytes(row, number)
            raise
        if not self._is_json:
            for profile, column in zip(self._profiles.values(), columns, strict=True):
                values = column.drop_null()
                profile.add(_written(values), values[: FIRST - len(profile.first)].to_pylist(), "text")
        return columns

    def _refuse_bytes(self, row: Iterable[str | None], number: int) -> None:
        """Raise `SourceError` for a row that holds bytes that are no UTF-8, as surrogates."""
        for place, value in enumerate(row, 1):
            if value is not None and not is_text(value):
                raise SourceError(
                    f"{self.path}, row {number:,}, column {place:,}: {value!r:.100} is not UTF-8: convert the file, as "
                    f"with `iconv -t UTF-8`"
                )

    def _numbers(self, indices: Int64s) -> list[int]:
        """Return the numbers of rows in messages: a CSV's row of names and bad rows count, blank ones do not."""
        numbers = indices + (1 if self._is_json else 2)
        before = np.array(sorted(self._bad), np.int64) - np.arange(len(self._bad))
        found: list[int] = (numbers + np.searchsorted(before, numbers, side="right")).tolist()
        return found


def _batches(rows: Iterator[list[str | None]]) -> Iterator[list[list[str | None]]]:
    """Yield rows some at a time."""
    batch: list[list[str | None]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row if value)
        if size > _BATCH or len(batch) == _MOST_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


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
