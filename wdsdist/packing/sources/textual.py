"""Manifests in text: CSV, TSV and JSON Lines, in UTF-8, one sample a row.

A CSV or TSV starts with a row of names; fields may be quoted with ``"`` and then hold line breaks. Columns without a
name are left out. Only offsets are kept of the rows, and a row is parsed again where its sample is written.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SourceError
from wdsdist.packing.sources.base import Source
from wdsdist.packing.sources.kinds import SourceOptions
from wdsdist.packing.sources.mapping import check_columns, choose
from wdsdist.packing.sources.paths import Root
from wdsdist.packing.sources.profile import Profile
from wdsdist.packing.sources.rows import Listing, Row
from wdsdist.packing.sources.table import Stamp, TableSource, listed

SUFFIXES = {"csv": (".csv",), "tsv": (".tsv", ".tab"), "jsonl": (".jsonl", ".ndjson")}
"""The kinds, and what the names of their files end in."""

_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_LONGEST = 64 << 20  # bytes of a line: what has no line break may be any file

Record = tuple[int, int, Any]
"""Offset of a row's first byte, number of its last line, and the row: a list of fields, or a dict."""


@dataclass(frozen=True, slots=True)
class TextRows:
    """Some rows of a manifest."""

    file: Stamp
    kind: str
    names: tuple[str, ...]
    offsets: Int64s
    """int64 [rows, 2]: where each starts, and the next one."""

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[Row]:
        self.file.check()
        read = _reader(self.kind)
        with Path(self.file.path).open("rb", buffering=0) as stream:
            for start, stop in self.offsets.tolist():
                stream.seek(start)
                _, _, found = next(read(io.BytesIO(stream.read(stop - start)), self.file.path))
                yield _row(found, self.names)

    def place(self, number: int) -> str:
        """Say where a row stands; its line is not known here."""
        return f"{self.file.path}, the row at byte {int(self.offsets[number, 0]):,}"


def find(path: Path, options: SourceOptions, *, kind: str) -> Source | None:
    """List the rows of a manifest; return ``None`` for a file whose name is not that of one, unless it must be."""
    if not path.is_file() or (options.kind != kind and not path.name.lower().endswith(SUFFIXES[kind])):
        return None
    wanted = check_columns(options.columns)
    root = Root.of(path.parent, options.root, allow_outside=options.allow_outside)
    try:
        stamp = Stamp.of(path)
        manifest = _Manifest(str(path), kind)
        profiles = manifest.profiles()
        columns = [profile.column(root.folder) for profile in profiles]
        layout = choose(columns, wanted, str(path))
        names = tuple(profile.name for profile in profiles)
        listing = Listing(layout, root, options.on_error)
        starts = array("q")
        listing.add(manifest.rows(names, starts), manifest.place)
        listed(listing, functools.partial(manifest.rows, names), manifest.place)
        stamp.check()
    except OSError as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    starts.append(stamp.size)
    bounds = np.frombuffer(starts, np.int64)
    sizes, file_sizes = listing.arrays()
    return TableSource(
        kind=kind,
        location=str(path),
        home=str(path.parent),
        root=root,
        layout=layout,
        files=(stamp,),
        digest=listing.state.hexdigest(),
        sizes=sizes,
        file_sizes=file_sizes,
        take_rows=functools.partial(_take, stamp, kind, names, bounds),
        kept=listing.kept(),
        left_out=listing.left_out(),
    )


def _take(file: Stamp, kind: str, names: tuple[str, ...], bounds: Int64s, indices: Int64s) -> TextRows:
    return TextRows(file, kind, names, np.stack((bounds[indices], bounds[indices + 1]), axis=1))


class _Manifest:
    """A manifest, read from its start to its end as often as is asked for."""

    def __init__(self, path: str, kind: str) -> None:
        self.path = path
        self.kind = kind
        self._lines = array("q")  # of the rows that were read last

    def records(self) -> Iterator[Record]:
        """Yield each row; that of the names is the first of a CSV."""
        with Path(self.path).open("rb") as stream:
            start = stream.read(len(_BOM))
            if start[:2] in _UTF_16:
                raise SourceError(f"{self.path} is in UTF-16: convert it to UTF-8, as with `iconv -f UTF-16 -t UTF-8`")
            stream.seek(len(_BOM) if start == _BOM else 0)
            yield from _reader(self.kind)(stream, self.path)

    def rows(self, names: tuple[str, ...], starts: array[int] | None = None) -> Iterator[Row]:
        """Yield the rows, but for that of the names; note where they start."""
        self._lines = array("q")
        for offset, line, found in itertools.islice(self.records(), 0 if self.kind == "jsonl" else 1, None):
            self._lines.append(line)
            if starts is not None:
                starts.append(offset)
            yield _row(found, names)

    def place(self, number: int) -> str:
        """Say where a row stands that has been read."""
        return f"{self.path}, line {self._lines[number]:,}" if number < len(self._lines) else self.path

    def profiles(self) -> list[Profile]:
        """Return what each column holds."""
        return self._profiles_of_objects() if self.kind == "jsonl" else self._profiles_of_fields()

    def _profiles_of_objects(self) -> list[Profile]:
        profiles: dict[str, Profile] = {}
        for _, line, found in self.records():
            for name, value in found.items():
                if name not in profiles:
                    _check_name(name, f"{self.path}, line {line:,}")
                    profiles[name] = Profile(name)
                profiles[name].add(value)
        return list(profiles.values())

    def _profiles_of_fields(self) -> list[Profile]:
        records = self.records()
        _, _, names = next(records, (0, 0, []))
        if not names:
            raise SourceError(f"{self.path} is empty: its first row must name its columns")
        profiles = [Profile(name, written=True) for name in names]
        for _, line, found in records:
            if len(found) != len(names):
                raise SourceError(
                    f"{self.path}, line {line:,}: the row has {len(found):,} fields, but the first row names "
                    f"{len(names):,} columns: quote fields that hold separators or line breaks"
                )
            for profile, value in zip(profiles, found, strict=True):
                profile.add(value)
        return profiles


def _row(found: Any, names: tuple[str, ...]) -> Row:
    if isinstance(found, dict):
        return [found.get(name) for name in names]
    return [value or None for value in found]


def _reader(kind: str) -> Callable[[IO[bytes], str], Iterator[Record]]:
    if kind == "jsonl":
        return _objects
    return functools.partial(_fields, delimiter="\t" if kind == "tsv" else ",")


class _Lines:
    """The lines of a file as text, counted."""

    def __init__(self, stream: IO[bytes], path: str) -> None:
        self.stream = stream
        self.path = path
        self.number = 0
        self.offset = stream.tell()

    def __iter__(self) -> Iterator[str]:
        while line := self.stream.readline(_LONGEST + 1):
            self.number += 1
            if len(line) > _LONGEST:
                raise SourceError(f"{self.path}, line {self.number:,}: over {_LONGEST:,} bytes without a line break")
            self.offset += len(line)
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                raise SourceError(
                    f"{self.path}, line {self.number:,}: byte {error.start:,} of the line, {line[error.start]:#04x}, "
                    f"is not UTF-8: convert the file, as with `iconv -t UTF-8`"
                ) from error


def _fields(stream: IO[bytes], path: str, *, delimiter: str) -> Iterator[Record]:
    lines = _Lines(stream, path)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        start, first = lines.offset, lines.number + 1
        try:
            found = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            span = f"line {first:,}" if lines.number <= first else f"lines {first:,} to {lines.number:,}"
            raise SourceError(f"{path}, {span}: no row that can be read: {error}") from error
        if found:
            yield start, lines.number, found


def _objects(stream: IO[bytes], path: str) -> Iterator[Record]:
    lines = _Lines(stream, path)
    start = lines.offset
    for line in lines:
        if not line.isspace():
            yield start, lines.number, _object(line, f"{path}, line {lines.number:,}")
        start = lines.offset


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
