"""Rows of a table as samples, whatever the table is a file of: members, keys, sizes, and what is wrong with a row."""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist.errors import ArgumentError, SampleError, SourceError
from wdsdist.packing.payloads import FilePayload, Payload, Sample, broken, numbered, payload_size
from wdsdist.packing.sources.columns import Column, Layout, suffix
from wdsdist.packing.sources.similar_paths import similar
from wdsdist.packing.sources.source import FileStamp, LeftOut, OnError, key_digest, wrong_key
from wdsdist.samples.encoders import encode
from wdsdist.shards.tar import split_name, stored_size

_IN_WORDS = frozenset(("txt", "text", "transcript"))
_ADVICE = "map columns otherwise with columns= (--column)"
_MOST_SIMILAR = 20
"""Rows that are left out for which a file of a similar name is looked for: that can take reading a whole folder."""

Row = list[Any]
"""The values of one row, by column; ``None`` where one is missing."""


class Length(int):
    """Stands in a row for bytes of this length, while samples are listed: their sizes are asked for, not the data."""


class _Loose(str):
    """A file path in a binary column of Parquet, whose size is unknown, as listing does not read the file."""

    __slots__ = ()


class Rows(Protocol):
    """Some rows of a table: small, and picklable."""

    def __iter__(self) -> Iterator[Row]: ...

    def place(self, number: int) -> str:
        """Say where the row with this number, among these, stands: ``"train.csv, row 7"``."""
        ...


class TableFile(Protocol):
    """One file of a table, whose rows lie in groups that are read together: small, and picklable."""

    @property
    def stamp(self) -> FileStamp: ...

    def row(self, group: int, number: int, used: tuple[int, ...]) -> Row:
        """Return one row; columns that are not used stay empty."""
        ...

    def place(self, group: int, number: int) -> str:
        """Say where a row stands."""
        ...


@dataclass(frozen=True, slots=True)
class FileRows(Rows):
    """Some rows of the files of a table."""

    files: tuple[TableFile, ...]
    """Those that the rows lie in."""
    located: Int64s
    """int64 [rows, 3]: number among ``files``, group of the file, row of the group."""
    used: tuple[int, ...]
    """Places of the columns that are read."""

    def __iter__(self) -> Iterator[Row]:
        for file in self.files:
            file.stamp.check()
        for at, group, number in self.located.tolist():
            yield self.files[at].row(group, number, self.used)

    def place(self, number: int) -> str:
        at, group, row = map(int, self.located[number])
        return self.files[at].place(group, row)


class FileTable:
    """Files with the same columns as one table: its rows in order, and any of its rows."""

    def __init__(self, label: str, files: Sequence[TableFile], lengths: Sequence[Sequence[int]]) -> None:
        self.label = label
        self._files = tuple(files)
        self.stamps = tuple(file.stamp for file in files)
        self.starts = np.cumsum([0, *(length for of_file in lengths for length in of_file)], dtype=np.int64)
        """int64 [groups + 1]: number of the first row of each, and of all rows."""
        self.groups = np.array(
            [(file, group) for file, of_file in enumerate(lengths) for group in range(len(of_file))], np.int64
        ).reshape(-1, 2)
        """int64 [groups, 2]: number of the file of each, and its own number there."""
        self.digest = ""
        """Of rows that no file tells apart, once all were listed."""

    def left_out(self) -> list[LeftOut]:
        """Return the rows that cannot be parsed: these files have none."""
        return []

    def place(self, index: int) -> str:
        """Say where a row stands."""
        return self.label if index >= self.starts[-1] else self.take(np.array([index]), ()).place(0)

    def take(self, indices: Int64s, used: Sequence[int]) -> Rows:
        """Return some rows, by their numbers, to be read where they are written."""
        at = np.searchsorted(self.starts, indices, side="right") - 1
        needed, files = np.unique(self.groups[at, 0], return_inverse=True)
        located = np.stack((files.reshape(-1), self.groups[at, 1], indices - self.starts[at]), axis=1)
        return FileRows(tuple(self._files[number] for number in needed.tolist()), located, tuple(used))


@dataclass(frozen=True, slots=True)
class Finder:
    """Looks up the files that rows name: those below one folder, unless the user says otherwise.

    A table is data, which others may have written: a row that names ``/home/me/.ssh/id_rsa``, ``../../secrets`` or a
    link to them would put the file into the shards. Folders are resolved once for each finder: rows share few of them.
    """

    root: str
    """Where paths start."""
    allow_outside: bool = False
    """Whether they may lead out of there."""
    _real: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, folder: str | os.PathLike[str], root: str | os.PathLike[str] | None, *, allow_outside: bool) -> Finder:
        """Return the finder of a table's paths, which start from ``root=``, or else from the folder of the table.

        Raises `ArgumentError` for a root that is no local folder.
        """
        path = os.fspath(folder) if root is None else storage.normalise(root)
        if root is not None and (storage.is_remote(path) or not Path(path).is_dir()):
            raise ArgumentError(
                f"root is {storage.shown(path)}, which is no local folder: name the folder that paths in the table "
                f"start from"
            )
        return cls(path, allow_outside)

    def path(self, value: str) -> str | None:
        """Return where a file lies that a row names, or ``None`` for one outside the root.

        Links are followed to where they lead, in folders and files alike. What does not exist is inside where its path
        is.
        """
        path = os.path.join(self.root, value)  # noqa: PTH118 - a Path for each of millions of files is slow
        if self.allow_outside or self._real_path(path).startswith(self._real_folder(self.root)):
            return path
        return None

    def _real_path(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        # Beyond a folder that does not exist, ".." still leads on; and `islink` says no of what comes after.
        if name in ("", ".") or "/.." in path or os.path.islink(path):  # noqa: PTH114 - as above
            return os.path.realpath(path)
        return self._real_folder(folder) + name

    def _real_folder(self, folder: str) -> str:
        """Return a folder without links, with a slash at its end."""
        found = self._real.get(folder)
        if found is None:
            found = self._real[folder] = os.path.join(os.path.realpath(folder or "/"), "")  # noqa: PTH118
        return found


def named_in(folder: Path, note: str, name: str) -> Path:
    """Return the path that metadata of a folder, such as its index, names: inside that folder only.

    Raises `SourceError` for what lies outside.
    """
    path = Path(os.path.normpath(folder / name))
    if folder not in path.parents:
        raise SourceError(f"{folder / note} names {name!r:.300}, which lies outside its folder: fetch the folder again")
    return path


class _RowError(Exception):
    """What is wrong with a row; where it stands is added by who knows."""


@dataclass(frozen=True, slots=True)
class RowSamples:
    """Some rows of a table as samples, read where they are written."""

    rows: Rows
    layout: Layout
    finder: Finder
    indices: Int64s
    """Numbers of the rows in the table."""
    file_sizes: Int64s
    """int64 [members that are files, rows]: bytes of each file that a row has when listed, then -1."""

    def __iter__(self) -> Iterator[Sample]:
        for number, (index, row) in enumerate(zip(self.indices.tolist(), self.rows, strict=True)):
            sizes = iter(self.file_sizes[:, number].tolist())
            try:
                members = [
                    (extension, self._payload(data, sizes))
                    for extension, data in _members(self.layout, row, self.finder)
                ]
                key = _key(self.layout, row, index, members)
            except _RowError as error:
                yield broken(_any_key(self.layout, row, index), SourceError(f"{self.rows.place(number)}: {error}"))
            else:
                yield key, sorted(members, key=lambda member: member[0])

    def _payload(self, data: bytes | str | Length, sizes: Iterator[int]) -> Payload:
        if isinstance(data, bytes):
            return data
        return FilePayload(str(data), _status(data).st_size if isinstance(data, _Loose) else next(sizes))


@dataclass
class TableListing:
    """What is known of the rows of a table once all have been looked at."""

    layout: Layout
    finder: Finder
    place: Callable[[int], str]
    """Says where a row stands, by its number in the table."""
    on_error: OnError
    wrong: dict[int, LeftOut] = field(default_factory=dict)
    """The rows that are left out, by their numbers."""
    state: Any = field(default_factory=hashlib.sha256)
    """A digest of the files that the rows name."""
    sizes: array[int] = field(default_factory=lambda: array("q"))
    files: array[int] = field(default_factory=lambda: array("q"))
    keys: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, rows: Iterable[Row]) -> None:
        """Look at all rows."""
        layout, finder = self.layout, self.finder
        of_files = sum(member.form == "file" for member in layout.members)
        for row in rows:
            index = len(self.sizes)
            try:
                sizes: list[int] = []
                members = [
                    (extension, self._looked_up(data, sizes)) for extension, data in _members(layout, row, finder)
                ]
                key = _key(layout, row, index, members)
            except _RowError as error:
                self._leave_out(index, row, SourceError(f"{self.place(index)}: {error}"))
                key, members, sizes = "", [], []
            self.files.extend(sizes + [-1] * (of_files - len(sizes)))  # a row may lack some
            self.sizes.append(
                sum(
                    stored_size(f"{key}.{extension}", data if isinstance(data, Length) else payload_size(data))
                    for extension, data in members
                )
            )
            if layout.key is not None:
                self.keys.append(key_digest(key))

    def stored_sizes(self) -> Int64s:
        """int64 [rows]: bytes that each takes in a tar."""
        return np.frombuffer(self.sizes, np.int64)

    def file_sizes(self, rows: Int64s) -> Int64s:
        """int64 [members that are files, rows]: as `RowSamples` has them, of some rows."""
        files = np.frombuffer(self.files, np.int64)
        return np.ascontiguousarray(files.reshape(len(self.sizes), -1)[rows].T)

    @functools.cached_property
    def kept(self) -> Int64s | None:
        """int64: the rows that are not left out; all where there is nothing."""
        if not self.wrong:
            return None
        return np.delete(np.arange(len(self.sizes)), list(self.wrong))

    def left_out(self) -> tuple[LeftOut, ...]:
        """Return what is noted of the rows that are left out, in their order."""
        return tuple(self.wrong[row] for row in sorted(self.wrong))

    def row_keys(self, rows: Iterable[Row]) -> Iterator[str]:
        """Yield the key of each row, of which only the column with keys is needed."""
        return (_any_key(self.layout, row, index) for index, row in enumerate(rows))

    def finish(self, again: Callable[[], Iterable[Row]]) -> None:
        """Check that keys differ and that there is something to pack; ``again`` reads all rows once more.

        Raises `SourceError` for a table without a row to pack, and for two rows with one key unless such are left out.
        """
        digests = np.frombuffer(self.keys, np.uint64)
        ordered = np.sort(digests)
        twice = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
        first: dict[str, int] = {}
        for index, row in enumerate(again() if twice else ()):
            key = _text_key(self.layout, row)
            if key_digest(key) not in twice or index in self.wrong:
                continue
            if key in first:
                error = SourceError(
                    f"{self.place(index)}: the key {key!r} stands in {self.place(first[key])} already: make keys "
                    f"unique, or {_ADVICE} so that another column, or none, gives the key"
                )
                self._leave_out(index, row, error)
            first.setdefault(key, index)
        if len(self.wrong) == len(self.sizes):
            why = self.wrong[0].reason
            raise SourceError(f"no row of the table in {self.finder.root} can be packed, for instance: {why}")

    def _leave_out(self, index: int, row: Row, error: SourceError) -> None:
        """Raise what is wrong with a row, or note it where such rows are left out."""
        if self.on_error == "raise":
            raise error
        key = _any_key(self.layout, row, index).encode("utf-8", "backslashreplace").decode()
        self.wrong[index] = LeftOut(key, str(error).replace(self.finder.root + os.sep, ""))

    def _looked_up(self, data: bytes | str | Length, sizes: list[int]) -> Payload | Length:
        """Return what is known of a member's data; the size of a file is noted in ``sizes`` too."""
        if not isinstance(data, str):
            return data
        status = _status(data, names_similar=len(self.wrong) < _MOST_SIMILAR)
        root = self.finder.root
        relative = os.path.relpath(data, root) if data.startswith(root + os.sep) else data
        self.state.update(f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogatepass"))
        if not isinstance(data, _Loose):
            sizes.append(status.st_size)
        return FilePayload(data, status.st_size)


def _members(layout: Layout, row: Row, finder: Finder) -> Iterator[tuple[str, bytes | str | Length]]:
    """Yield the members of a row: an extension, and data, or its length, or the path of a file."""
    for member in layout.members:
        place = member.columns[0]
        if member.form == "object":
            content = {layout.columns[at].name: _plain(layout.columns[at], row[at]) for at in member.columns}
            yield member.extension, _encoded("json", content, layout.columns[place])
            continue
        column, value = layout.columns[place], row[place]
        if value is None:
            continue
        if member.form == "file":
            yield _own(member.extension, value, column), _path(finder, value, column)
        elif isinstance(value, (bytes, Length)):
            yield member.extension, value
        elif column.content == "bytes":
            yield from _media(member.extension, value, finder, column)
        else:
            yield member.extension, _encoded(member.extension, _plain(column, value), column)


def _media(extension: str, value: Any, finder: Finder, column: Column) -> Iterator[tuple[str, bytes | str | Length]]:
    """Yield what a struct of ``bytes`` and ``path`` holds."""
    data, path = value.get("bytes"), value.get("path")
    if data is not None:
        yield extension, data
    elif path is not None:
        yield extension, _Loose(_path(finder, path, column))


def _plain(column: Column, value: Any) -> Any:
    """Return a value as what JSON or an array can hold; numbers of a CSV are texts until here."""
    if isinstance(value, str) and column.classes is not None:
        return _numbers(column.classes)[value]
    if isinstance(value, str) and column.content in ("integer", "number"):
        return int(value) if column.content == "integer" else float(value)
    if value is None or isinstance(value, (str, int, float, np.ndarray)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(column, one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(column, one) for name, one in value.items()}
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        raise _RowError(
            f"column {column.name!r} holds bytes in a list or an object, which no member can hold: leave it out with "
            f"columns={{{column.name!r}: ''}} (--column {column.name}=), or pack the rows from Python with encode=, a "
            f"function that gives each of its parts a member of its own"
        )
    return str(value)


@functools.lru_cache(maxsize=8)
def _numbers(classes: tuple[str, ...]) -> dict[str, int]:
    """Return the number of each class."""
    return {name: number for number, name in enumerate(classes)}


def _encoded(extension: str, value: Any, column: Column) -> bytes:
    if extension.lower().rpartition(".")[2] in _IN_WORDS and isinstance(value, (int, float)):
        value = str(value)
    try:
        return encode(extension, value)
    except SampleError as error:
        advice = _ADVICE
        if isinstance(value, list) and extension.endswith("npy"):  # whole numbers, of which some are missing, or uneven
            other = f"{extension.removesuffix('npy')}json"
            advice = f"map it to JSON, as in columns={{{column.name!r}: {other!r}}} (--column {column.name}={other})"
        raise _RowError(f"column {column.name!r}: {error}: {advice}") from error


def _path(finder: Finder, value: Any, column: Column) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise _RowError(f"column {column.name!r} holds {value!r:.100}, which is no path: {_ADVICE}")
    if storage.is_remote(value):
        raise _RowError(
            f"column {column.name!r} names {storage.shown(value)!r:.300}, and nothing is downloaded: download the "
            f"files, as img2dataset does, and name them in its place"
        )
    path = finder.path(value)
    if path is None:
        raise _RowError(
            f"column {column.name!r} names {value!r:.300}, which lies outside the folder that paths start from, or is "
            f"a link to what does: if the table can be trusted, pack with allow_outside=True (--allow-outside), or "
            f"name the folder that holds all files with root= (--root)"
        )
    return path


def _own(extension: str, value: Any, column: Column) -> str:
    if not extension.endswith("*"):
        return extension
    own = suffix(value) if isinstance(value, str) else ""
    if not own:
        raise _RowError(f"column {column.name!r} holds {value!r:.100}, a path without an extension: {_ADVICE}")
    return extension[:-1] + own


def _status(path: str, *, names_similar: bool = False) -> os.stat_result:
    """Return the status of a file; the error of a missing one can name the file that its path probably means."""
    try:
        status = os.stat(path)  # noqa: PTH116 - as in _path
    except FileNotFoundError as error:
        if names_similar and (found := similar(path)):
            raise _RowError(f"{path} does not exist, but {found}, does: name it so in the table") from error
        raise _RowError(f"{path} does not exist: fetch it, or remove the row") from error
    except (OSError, ValueError) as error:
        raise _RowError(f"{path!r:.200} cannot be looked up: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise _RowError(f"{path} is no file")
    return status


def _text_key(layout: Layout, row: Row) -> str:
    value = row[layout.key] if layout.key is not None else None
    return "" if value is None else str(value)


def _any_key(layout: Layout, row: Row, index: int) -> str:
    """Return the key of a row, or its number where it has none."""
    return _text_key(layout, row) or numbered(index)


def _key(layout: Layout, row: Row, index: int, members: list[tuple[str, Any]]) -> str:
    """Return the key of a row; make sure that readers will find this key and these members."""
    if not members:
        raise _RowError("all values that could be a member are missing: remove the row")
    if len(members) > 1 and len({extension for extension, _ in members}) < len(members):
        raise _RowError(
            f"two members have one extension, of {', '.join(extension for extension, _ in members)}: {_ADVICE}"
        )
    if layout.key is None:
        return numbered(index)
    key = _text_key(layout, row)
    column = layout.columns[layout.key].name
    why = wrong_key(key)
    if why is None and any(split_name(f"{key}.{extension}") != (key, extension) for extension, _ in members):
        why = "readers pass over a file with such a name"
    if why is not None:
        raise _RowError(
            f"column {column!r} holds {key!r:.100}, which can be no key: {why}. Leave the column out with "
            f"columns={{{column!r}: ''}} (--column {column}=), or map another one to __key__"
        )
    return key
