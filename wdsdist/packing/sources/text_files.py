"""CSV, TSV and JSON Lines files in UTF-8 as tables, read by pyarrow as a stream of batches.

A CSV or TSV starts with a row of names; fields may be quoted with ``"`` and then hold line breaks. Columns without a
name are left out. Values are read as texts, for only all of them together tell numbers from texts such as ``007``. A
JSON Lines file is read as one column of lines, each of which Python's `json` reads: pyarrow's own reader takes texts
for times and adds the keys of other rows to objects.

Rows of text have no place of their own in a file. Where samples are asked for, the texts are written once more, into a
temporary Arrow file that any row can be read from; the rows of a shard travel with it to whoever writes it.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SourceError
from wdsdist.packing.sources.arrow_files import LISTED_ROWS, pyarrow
from wdsdist.packing.sources.columns import Column, Content, paths_or_texts
from wdsdist.packing.sources.deferred import temporary_folder
from wdsdist.packing.sources.source import Blocks, FileStamp
from wdsdist.packing.sources.table_rows import Row, Rows

_DELIMITERS = {"csv": ",", "tsv": "\t", "jsonl": "\x1f"}  # the last is in no JSON
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_BLOCK = 16 << 20  # bytes that are parsed together, and the most that a row can have
_LAST = "(end of the table)"  # the fields of a row that is read behind the others: quotes that do not end swallow it
_BAD_ROW = re.compile(r"CSV parse error: Row #(\d+): (.*)")

_FIRST = 100  # texts that are looked up as paths
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
    texts: list[list[str | None]]

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[Row]:
        if self.names is None:
            yield from self.texts
            return
        for number, (line,) in enumerate(self.texts):
            found = _object(line or "", self.place(number))
            yield [found.get(name) for name in self.names]

    def place(self, number: int) -> str:
        return _place(self.path, self.numbers[number])


class TextTable:
    """One file of text as a table."""

    def __init__(self, path: Path, kind: str, scratch: Path | None) -> None:
        self.kind = kind
        self.path = str(path)
        self.stamps = (FileStamp.of(path),)
        self._is_json = kind == "jsonl"
        self._scratch = scratch
        self._starts: Int64s | None = None
        self._copy: Any = None
        with path.open("rb") as stream:
            if stream.read(2) in _UTF_16:
                raise SourceError(f"{path} is in UTF-16: convert it to UTF-8, as with `iconv -f UTF-16 -t UTF-8`")
        self._names = ["line"] if self._is_json else self._first_row()
        self._keys: tuple[str, ...] = ()

    def columns(self, root: str) -> list[Column]:
        """Say what each column holds, by all its values; paths are looked up under ``root``."""
        if self._is_json:
            of_objects = self._profiles_of_objects()
            self._keys, profiles = tuple(of_objects), list(of_objects.values())
        else:
            self._keys, profiles = tuple(self._names), self._profiles_of_fields()
        found = []
        for name, (content, values) in zip(self._keys, profiles, strict=True):
            if not name:  # such as the index of pandas, which is no data
                found.append(Column("", "empty"))
            else:
                is_text = content == "text"
                found.append(paths_or_texts(name, tuple(values), root) if is_text else Column(name, content))
        return found

    def rows(self, used: Sequence[int], columns: Sequence[Column]) -> Iterator[Row]:
        """Yield all rows; columns that are not used stay empty."""
        for _, parts in self._parts():
            if self._is_json:
                for line in parts[0].to_pylist():
                    found = json.loads(line)
                    yield [found.get(name) for name in self._keys]
            else:
                lists = (part.to_pylist() if place in used else repeat(None) for place, part in enumerate(parts))
                yield from map(list, zip(*lists))  # noqa: B905 - some repeat for ever
        self.stamps[0].check()

    def has_exact_sizes(self, used: Sequence[int], columns: Sequence[Column]) -> bool:
        """Whether `rows` gives the values themselves."""
        return True

    def blocks(self) -> Blocks | None:
        """Return nothing: any row is at hand."""
        return None

    def place(self, index: int) -> str:
        """Say where a row stands. Blank lines are not counted, the row of names is."""
        return _place(self.path, index + (1 if self._is_json else 2))

    def take(self, indices: Int64s, used: Sequence[int]) -> TextRows:
        """Return some rows."""
        self.stamps[0].check()
        if self._starts is None:
            self._starts = self._write_copy(used)
        at = np.searchsorted(self._starts, indices, side="right") - 1
        texts: list[list[str | None]] = [[]] * len(indices)
        for number in np.unique(at).tolist():
            places = np.flatnonzero(at == number)
            batch = self._copy.get_batch(number).take(pyarrow().array(indices[places] - self._starts[number]))
            lists: list[Iterable[str | None]] = [repeat(None)] * (1 if self._is_json else len(self._names))
            for place, column in zip([0] if self._is_json else used, batch.columns, strict=True):
                lists[place] = column.to_pylist()
            for place, row in zip(places.tolist(), zip(*lists), strict=True):  # noqa: B905 - some repeat for ever
                texts[place] = list(row)
        first = 1 if self._is_json else 2
        return TextRows(self.path, self._keys if self._is_json else None, (indices + first).tolist(), texts)

    def _write_copy(self, used: Sequence[int]) -> Int64s:
        """Write the columns that are used into an Arrow file; return where its batches start."""
        pa = pyarrow()
        folder, _ = temporary_folder(self, self._scratch)
        path = str(folder / "rows.arrow")
        kept = [0] if self._is_json else list(used)
        starts = array("q", [0])
        with pa.ipc.new_file(path, pa.schema([(str(place), pa.string()) for place in kept])) as writer:
            for columns in self._batches():
                batch = pa.RecordBatch.from_arrays([columns[place] for place in kept], names=list(map(str, kept)))
                writer.write_batch(batch)
                starts.append(starts[-1] + batch.num_rows)
        self._copy = pa.ipc.open_file(pa.memory_map(path))
        self.stamps[0].check()
        return np.array(starts, np.int64)

    def _first_row(self) -> list[str]:
        pa = pyarrow()
        with self._errors():
            read = pa.csv.ReadOptions(block_size=_BLOCK, use_threads=False)
            return list(pa.csv.open_csv(self.path, read, self._parsing()).schema.names)

    def _parsing(self) -> Any:
        return pyarrow().csv.ParseOptions(
            delimiter=_DELIMITERS[self.kind],
            quote_char=False if self._is_json else '"',
            newlines_in_values=not self._is_json,
        )

    def _batches(self) -> Iterator[list[Any]]:
        """Yield the columns of all rows, some rows at a time, as arrays of texts; an empty field of a CSV is a null."""
        pa = pyarrow()
        names = self._names
        read = pa.csv.ReadOptions(block_size=_BLOCK, use_threads=False, column_names=names if self._is_json else None)
        # Not as strings: which row is not UTF-8, only the bytes tell.
        convert = pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()), null_values=[""], strings_can_be_null=not self._is_json
        )
        last = _DELIMITERS[self.kind].join([_LAST] * len(names))
        rows, held = 0, None
        with self._errors(), _Lengthened(self.path, f"\n{last}\n".encode()) as stream:
            for batch in pa.csv.open_csv(stream, read, self._parsing(), convert):
                if held is not None:
                    yield self._texts(held, rows)
                    rows += held.num_rows
                held = batch
        if held is None or any(column[-1].as_py() != _LAST.encode() for column in held.columns):
            raise SourceError(f"{self.path} ends within quotes, or is cut: fetch it again, or close the quotes")
        if held.num_rows > 1:
            yield self._texts(held.slice(0, held.num_rows - 1), rows)

    def _texts(self, batch: Any, before: int) -> list[Any]:
        """Return the columns of a batch as texts; there are so many rows before it."""
        pa = pyarrow()
        try:
            columns = [column.cast(pa.string()) for column in batch.columns]
        except pa.ArrowInvalid as error:
            for number, row in enumerate(zip(*(column.to_pylist() for column in batch.columns), strict=True)):
                for name, value in zip(self._names, row, strict=True):
                    self._check_utf8(value or b"", f"{self.place(before + number)}, column {name!r}")
            raise SourceError(f"{self.path} is not UTF-8: {error}") from error
        if self._is_json:
            columns = [columns[0].filter(pa.compute.invert(pa.compute.utf8_is_space(columns[0])))]
        return columns

    def _check_utf8(self, value: bytes, place: str) -> None:
        try:
            value.decode()
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{place}: byte {error.start:,}, {value[error.start]:#04x}, is not UTF-8: convert the file, as with "
                f"`iconv -t UTF-8`"
            ) from error

    def _parts(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the columns of a few rows at a time, and the number of the first of these."""
        before = 0
        for columns in self._batches():
            for start in range(0, len(columns[0]), LISTED_ROWS):
                yield before + start, [column.slice(start, LISTED_ROWS) for column in columns]
            before += len(columns[0])

    def _profiles_of_fields(self) -> list[tuple[Content, list[str]]]:
        """Return what each column holds, and its first values."""
        profiles: list[tuple[Content, list[str]]] = [("empty", []) for _ in self._names]
        for columns in self._batches():
            for place, column in enumerate(columns):
                content, first = profiles[place]
                found = column.drop_null()
                first += found[: _FIRST - len(first)].to_pylist()
                profiles[place] = _joined(content, _written(found), "text"), first
        return profiles

    def _profiles_of_objects(self) -> dict[str, tuple[Content, list[str]]]:
        """Return what the values of each key are, in the order in which keys occur, and the first ones."""
        profiles: dict[str, tuple[Content, list[str]]] = {}
        for before, (lines,) in self._parts():
            for number, line in enumerate(lines.to_pylist(), before):
                for name, value in _object(line, self.place(number)).items():
                    if name not in profiles:
                        _check_name(name, self.place(number))
                        profiles[name] = "empty", []
                    content, first = profiles[name]
                    if value is not None:
                        profiles[name] = _joined(content, _told(value), "other"), first
                        if isinstance(value, str) and len(first) < _FIRST:
                            first.append(value)
        return profiles

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn what pyarrow raises into a `SourceError` that names the row."""
        pa = pyarrow()
        try:
            yield
        except SourceError:
            raise
        except OSError as error:
            raise SourceError(f"{self.path} cannot be read: {error.strerror or error}") from error
        except (pa.ArrowException, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())[:300]
            if "Empty CSV file" in reason:
                raise SourceError(f"{self.path} is empty: its first row must name its columns") from error
            if "straddling" in reason:
                raise SourceError(
                    f"{self.path} has a row of more than {_BLOCK:,} bytes, or quotes that do not end"
                ) from error
            match = _BAD_ROW.search(reason)
            if match is None:
                raise SourceError(f"{self.path} is no table that can be read: {reason}") from error
            if self._is_json:
                raise SourceError(f"{_place(self.path, int(match[1]))}: no JSON: a control character") from error
            raise SourceError(
                f"{_place(self.path, int(match[1]))}: {match[2]}: the first row names the columns, and fields "
                f"that hold separators or line breaks must be quoted"
            ) from error


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


def _place(path: str, row: int) -> str:
    return f"{path}, row {row:,}"


def _written(values: Any) -> Content:
    """Say what texts of a CSV, none of them missing, are written as."""
    if not len(values):
        return "empty"
    compute = pyarrow().compute
    return next(
        (what for what, form in _WRITTEN if compute.all(compute.match_substring_regex(values, form)).as_py()), "text"
    )


def _told(value: Any) -> Content:
    if isinstance(value, str):
        return "text"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "integer" if isinstance(value, int) else "number"
    return "other"


def _joined(one: Content, other: Content, mixed: Content) -> Content:
    """Say what a column holds that holds both."""
    if one == other or "empty" in (one, other):
        return other if one == "empty" else one
    return "number" if {one, other} == {"integer", "number"} else mixed


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{place}: no JSON: {error}") from error
    if not isinstance(found, dict):
        raise SourceError(f'{place}: holds a {type(found).__name__}, not an object such as {{"image": "0.jpg"}}')
    return found


def _check_name(name: str, place: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"{place}: the name {name!r:.100} is not valid Unicode") from error
