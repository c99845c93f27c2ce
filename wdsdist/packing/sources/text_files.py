"""CSV, TSV and JSON Lines files in UTF-8 as tables: listed once, row by row, and any row is read where it lies.

A CSV or TSV starts with a row of names; fields may be quoted with ``"`` and then hold line breaks. Columns without a
name are left out. Values are read as texts, for only all of them together tell numbers from texts such as ``007``.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SourceError
from wdsdist.packing.sources.columns import FIRST, Column, Content, paths_or_texts
from wdsdist.packing.sources.source import FileStamp, LeftOut, OnError
from wdsdist.packing.sources.table_rows import FileRows, FileTable, Row
from wdsdist.shards.tar import is_text

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_MOST_BYTES = 16 << 20  # of a row
_ADVICE = "quote fields that hold separators or line breaks"

_WRITTEN: tuple[tuple[Content, re.Pattern[str]], ...] = (
    ("integer", re.compile(r"-?(?:0|[1-9][0-9]{0,300})")),  # not 007, which is a text
    ("number", re.compile(r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?")),
)
"""What texts of a CSV are, where all of them look so; the first that fits."""


@dataclass(frozen=True, slots=True)
class _TextFile:
    """A file of text, as rows of it travel; a row lies at (start, bytes, number in messages)."""

    stamp: FileStamp
    delimiter: str | None
    """Between the fields of a row; ``None`` where each row is a line of JSON."""
    names: tuple[str, ...]

    def row(self, where: Sequence[int], used: tuple[int, ...]) -> Row:
        start, size, _ = where
        with Path(self.stamp.path).open("rb", buffering=0) as stream:
            stream.seek(start)
            return self.parsed(stream.read(size) or b"")

    def parsed(self, text: bytes) -> Row:
        """Return the values of a row: of a CSV texts, and ``None`` for an empty field."""
        if self.delimiter is not None:
            return [value or None for value in next(_fields([text.decode()], self.delimiter))]
        values = json.loads(text)  # which worked when it was listed
        return [values.get(name) for name in self.names]

    def place(self, where: Sequence[int]) -> str:
        return f"{self.stamp.path}, row {where[2]:,}"


class TextTable(FileTable):
    """One file of text as a table."""

    def __init__(self, path: Path, kind: str, on_error: OnError = "raise") -> None:
        self.path = str(path)
        self._on_error = on_error
        self._delimiter = _DELIMITERS.get(kind)
        self._left_out: list[LeftOut] = []
        self._starts, self._sizes, self._numbers = array("q"), array("I"), array("I")  # of all rows
        self._profiles: dict[tuple[int, str], _Profile] = {}  # of columns, by place and name; of JSON, the place is 0
        stamp = FileStamp.of(path)
        try:
            with (
                path.open("rb") as stream,
                io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="") as text,
            ):
                start = stream.peek()[: len(codecs.BOM_UTF8)]
                if start[:2] in _UTF_16:
                    raise SourceError(f"{path} is in UTF-16: convert it to UTF-8, as with `iconv -f UTF-16 -t UTF-8`")
                self._scan(_Lines(self.path, text, len(start) if start == codecs.BOM_UTF8 else 0))
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
        except csv.Error as error:
            raise SourceError(f"{path} is no table that can be read: {error}") from error
        stamp.check()
        self._file = _TextFile(stamp, self._delimiter, tuple(name for _, name in self._profiles))
        super().__init__(self.path, [self._file], [[len(self._starts)]])

    def columns(self, root: str) -> list[Column]:
        found = [
            Column("", "empty")  # such as the index of pandas, which is no data
            if not name
            else paths_or_texts(name, tuple(profile.first), root)
            if profile.content == "text"
            else Column(name, profile.content)
            for (_, name), profile in self._profiles.items()
        ]
        paths = () if self._delimiter is None else [one.name for one in found if one.content == "path"]
        data = next((name for name in paths if paths_or_texts("", (name,), root).content == "path"), None)
        if data is not None:
            raise SourceError(
                f"{self.path}: the first row holds {data!r}, a file like those of the rows below: add a row above it "
                f"that names the columns"
            )
        return found

    def rows(self, used: Sequence[int], columns: Sequence[Column]) -> Iterator[Row]:
        with Path(self.path).open("rb") as stream:
            for start, size in zip(self._starts, self._sizes, strict=True):
                stream.seek(start)
                yield self._file.parsed(stream.read(size))

    def take(self, indices: Int64s, used: Sequence[int]) -> FileRows:
        parts = [
            np.frombuffer(column, column.typecode)[indices] for column in (self._starts, self._sizes, self._numbers)
        ]
        return FileRows((self._file,), np.stack([np.zeros_like(indices), *parts], axis=1), ())

    def left_out(self) -> list[LeftOut]:
        """Return the rows that cannot be parsed, where these are left out."""
        return self._left_out

    def _scan(self, lines: _Lines) -> None:
        """Note where each row lies, and what the columns hold."""
        number = 0
        rows: Iterator[list[str]] = ([line] if line.strip() else [] for line in lines)
        if self._delimiter is not None:
            rows = _fields(lines, self._delimiter)
        for row in rows:
            start, lines.start = lines.start, lines.stop
            if lines.is_over:
                raise SourceError(f"{self.path} ends within quotes, or is cut: fetch it again, or close the quotes")
            if not row:
                continue
            number += 1
            if not lines.are_text:
                self._refuse_bytes(row, number)
            if number == 1 and self._delimiter is not None:
                self._profiles = {(place, name): _Profile() for place, name in enumerate(row)}
                continue
            try:
                self._look_at(row)
            except ValueError as error:
                if self._on_error == "raise":
                    advice = "" if self._delimiter is None else f": {_ADVICE}"
                    raise SourceError(f"{self.path}, row {number:,}: {error}{advice}") from error
                self._left_out.append(LeftOut(f"row {number:,}", str(error)))
                continue
            self._starts.append(start)
            self._sizes.append(lines.stop - start)
            self._numbers.append(number)
        if self._delimiter is not None and not number:
            raise SourceError(f"{self.path} is empty: its first row must name its columns")

    def _look_at(self, row: list[str]) -> None:
        """Note what the values of a row are. Raises ``ValueError`` for one that is none."""
        if self._delimiter is None:
            self._look_at_json(row[0])
            return
        if len(row) != len(self._profiles):
            raise ValueError(f"it has {len(row):,} fields, and the first row names {len(self._profiles):,}")
        for profile, value in zip(self._profiles.values(), row, strict=True):
            if value and not profile.is_known:
                found: Content = next((what for what, form in _WRITTEN if form.fullmatch(value)), "text")
                profile.add(found, value, "text")

    def _look_at_json(self, line: str) -> None:
        try:
            values = json.loads(line.rstrip("\r\n"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"no JSON: {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f'holds a {type(values).__name__}, not an object such as {{"image": "0.jpg"}}')
        for name in values:
            if (0, name) not in self._profiles and not is_text(name):
                raise ValueError(f"the name {name!r:.100} is not valid Unicode")
        for name, value in values.items():
            profile = self._profiles.setdefault((0, name), _Profile())
            profile.add(_told(value), value if isinstance(value, str) else None, "other")

    def _refuse_bytes(self, row: list[str], number: int) -> None:
        """Raise `SourceError` for the first value of a row that is not UTF-8."""
        names = ["line"] if self._delimiter is None else [name for _, name in self._profiles] or row
        for place, value in enumerate(row):
            data = value.encode("utf-8", "surrogateescape")
            try:
                data.decode()
            except UnicodeDecodeError as error:
                name = names[min(place, len(names) - 1)]
                raise SourceError(
                    f"{self.path}, row {number:,}, column {name!r}: byte {error.start:,}, {data[error.start]:#04x}, is "
                    f"not UTF-8: convert the file, as with `iconv -t UTF-8`"
                ) from error


class _Lines:
    """The lines of a file of text; bytes that are not UTF-8 are surrogates in them."""

    def __init__(self, path: str, text: IO[str], start: int) -> None:
        self.start = self.stop = start
        """The bytes before the row that is read, and before the next line."""
        self.is_over = False
        self.are_text = True
        self._path = path
        self._text = text

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(_MOST_BYTES + 1):
            self.stop += len(line) if line.isascii() else len(line.encode("utf-8", "surrogateescape"))
            self.are_text = self.are_text and (line.isascii() or is_text(line))
            if self.stop - self.start > _MOST_BYTES:
                raise SourceError(
                    f"{self._path} has a row of more than {_MOST_BYTES:,} bytes, or quotes that do not end"
                )
            yield line
        self.is_over = True


@dataclass(slots=True)
class _Profile:
    """What a column holds, as far as it has been read."""

    content: Content = "empty"
    first: list[str] = field(default_factory=list)
    """The first texts."""

    @property
    def is_known(self) -> bool:
        """Whether no further text of a CSV changes anything."""
        return self.content == "text" and len(self.first) == FIRST

    def add(self, content: Content, text: str | None, mixed: Content) -> None:
        """Look at a further value; ``mixed`` is what values of several sorts are together."""
        if text is not None and len(self.first) < FIRST:
            self.first.append(text)
        if self.content == "empty":
            self.content = content
        elif content not in (self.content, "empty"):
            self.content = "number" if {self.content, content} == {"integer", "number"} else mixed


def _fields(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """Yield the fields of the rows in some lines of a CSV."""
    if csv.field_size_limit() < _MOST_BYTES:  # one for the whole process; rows are limited by their lines
        csv.field_size_limit(_MOST_BYTES)
    return csv.reader(lines, delimiter=delimiter)


def _told(value: Any) -> Content:
    if value is None:
        return "empty"
    if isinstance(value, str):
        return "text"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "integer" if isinstance(value, int) else "number"
    return "other"
