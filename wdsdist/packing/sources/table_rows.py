"""Rows of a table as samples: members and keys of a row, the files that rows name, and what is wrong with a row."""

from __future__ import annotations

import datetime
import functools
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist.curation import tables
from wdsdist.errors import ArgumentError, SampleError, SourceError
from wdsdist.packing.payloads import numbered
from wdsdist.packing.sources.columns import Column, Layout, suffix
from wdsdist.packing.sources.source import wrong_key
from wdsdist.samples.encoders import encode
from wdsdist.shards.tar.member_names import split_name

_IN_WORDS = frozenset(("txt", "text", "transcript"))
_ADVICE = "leave such rows out with on_error='skip', or map columns otherwise with columns="


class RowError(Exception):
    """What is wrong with a row; the caller adds where the row stands."""


class Length(int):
    """Stands for bytes of this length while samples are listed: only their sizes are needed."""


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that a row names, as a member."""

    path: str


Data = bytes | Length | NamedFile
"""The data of a member of a row, or its length, or its file."""


@dataclass(frozen=True, slots=True)
class Finder:
    """Finds the files that rows name: below one folder only.

    A table is data, which others may have written: a row that names ``/home/me/.ssh/id_rsa``, ``../../secrets`` or a
    link to them would put the file into the shards. Folders are resolved once for each finder: rows share few of them.
    """

    root: str
    """Where paths start."""
    _real: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, folder: str | os.PathLike[str], root: str | os.PathLike[str] | None) -> Finder:
        """Return the finder of a table's paths, which start from ``root=``, or else from the folder of the table.

        Raises `ArgumentError` for a root that is no local folder.
        """
        path = os.fspath(folder) if root is None else storage.normalise(root)
        if root is not None and (storage.is_remote(path) or not Path(path).is_dir()):
            raise ArgumentError(
                f"root is {storage.shown(path)}, which is no local folder: name the folder that paths in the table "
                f"start from",
                argument="root",
            )
        return cls(path)

    def path(self, value: str) -> str | None:
        """Return the path of a file that a row names, or ``None`` for a file outside the root.

        Links are followed, in folders and files alike. A file that does not exist is inside if its path is.
        """
        path = os.path.join(self.root, value)  # noqa: PTH118 - a Path for each of millions of files is slow
        return path if self._real_path(path).startswith(self._real_folder(self.root)) else None

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
    """Return the path that metadata of a folder names, inside that folder only.

    Raises `SourceError` for a path outside.
    """
    path = Path(os.path.normpath(folder / name))
    if folder not in path.parents:
        raise SourceError(f"{folder / note} names {name!r:.300}, which lies outside its folder: fetch the folder again")
    return path


def status_of(path: str) -> os.stat_result:
    """Return the status of a file. Raises `RowError` if it does not exist or is no file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - as above
    except FileNotFoundError as error:
        raise RowError(f"{path} does not exist: leave such rows out with on_error='skip', or fetch it") from error
    except (OSError, ValueError) as error:
        raise RowError(f"{path!r:.200} cannot be looked up: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise RowError(f"{path} is no file")
    return status


class Columns:
    """The columns of some rows, by which members and keys of each are made.

    Args:
        layout: how columns become members.
        finder: finds the files that rows name.
        arrays: the Arrow arrays of the columns that the layout uses, in their order.
        measures: whether bytes are asked for their lengths alone.
    """

    def __init__(self, layout: Layout, finder: Finder, arrays: Sequence[Any], *, measures: bool = False) -> None:
        self._layout, self._finder = layout, finder
        self._arrays = dict(zip(layout.used(), arrays, strict=True))
        of_bytes = {place for place in self._arrays if layout.columns[place].content == "bytes"}
        # A whole column becomes Python's values at a third of the cost of one value at a time.
        self._values = {
            place: array.to_pylist()
            for place, array in self._arrays.items()
            if place not in of_bytes and not is_numbers(array.type)
        }
        self._lengths = {place: lengths(self._arrays[place]).to_pylist() if measures else None for place in of_bytes}

    def members(self, row: int) -> list[tuple[str, Data]]:
        """Return the members of a row. Raises `RowError` for a row that cannot be a sample."""
        return list(self._members(row))

    def key(self, row: int, number: int, members: list[tuple[str, Any]]) -> str:
        """Return the key of a row, so that readers find it and its members; ``number`` is the row's in the table."""
        if not members:
            raise RowError("all values that could be a member are missing: remove the row")
        if len(members) > 1 and len({extension for extension, _ in members}) < len(members):
            names = ", ".join(extension for extension, _ in members)
            raise RowError(f"two members have one extension, of {names}: {_ADVICE}")
        place = self._layout.key
        if place is None:
            return numbered(number)
        key, column = self.text_key(row), self._layout.columns[place].name
        why = wrong_key(key)
        if why is None and any(split_name(f"{key}.{extension}") != (key, extension) for extension, _ in members):
            why = "readers pass over a file with such a name"
        if why is not None:
            raise RowError(
                f"column {column!r} holds {key!r:.100}, which cannot be a key: {why}. Leave such rows out with "
                f"on_error='skip', or the column with columns={{{column!r}: ''}}"
            )
        return key

    def text_key(self, row: int) -> str:
        """Return what the key column holds, or an empty string."""
        value = None if self._layout.key is None else self._values[self._layout.key][row]
        return "" if value is None else str(value)

    def _value(self, place: int, row: int) -> Any:
        values, column = self._values.get(place), self._layout.columns[place]
        value = value_at(self._arrays[place], row) if values is None else values[row]
        return json.loads(value) if column.is_json and value is not None else value

    def _members(self, row: int) -> Iterator[tuple[str, Data]]:
        for member in self._layout.members:
            place = member.columns[0]
            column = self._layout.columns[place]
            if member.form == "object":
                names = [(self._layout.columns[at], self._value(at, row)) for at in member.columns]
                content = {one.name: _plain(one, value) for one, value in names}
                yield member.extension, _encoded("json", content, column)
            elif column.content == "bytes":
                yield from self._media(member.extension, place, row, column)
            elif (value := self._value(place, row)) is None:
                continue
            elif member.form == "file":
                yield _own(member.extension, value, column), NamedFile(self._path(value, column))
            else:
                yield member.extension, _encoded(member.extension, _plain(column, value), column)

    def _media(self, extension: str, place: int, row: int, column: Column) -> Iterator[tuple[str, Data]]:
        """Yield the bytes of a column, or their length, or the file that a struct of ``bytes`` and ``path`` names."""
        array, sizes = self._arrays[place], self._lengths[place]
        if sizes is not None:
            if (size := sizes[row]) is not None:
                yield extension, Length(size)
                return
            data = None
        value = array[row].as_py() if sizes is None or is_struct(array.type) else None
        data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if data is not None:
            yield extension, data
        elif path is not None:
            yield extension, NamedFile(self._path(path, column))

    def _path(self, value: Any, column: Column) -> str:
        if not isinstance(value, str) or "\0" in value:
            raise RowError(f"column {column.name!r} holds {value!r:.100}, which is no path: {_ADVICE}")
        if storage.is_remote(value):
            raise RowError(
                f"column {column.name!r} names {storage.shown(value)!r:.300}, and nothing is downloaded: download the "
                f"files, as img2dataset does, and name them in its place"
            )
        path = self._finder.path(value)
        if path is None:
            raise RowError(
                f"column {column.name!r} names {value!r:.300}, which lies outside the folder that paths start from, or "
                f"is a link to such a file: name the folder that holds all files with root="
            )
        return path


def _plain(column: Column, value: Any) -> Any:
    """Return a value as JSON or an array can hold it."""
    if column.classes is not None and isinstance(value, str):
        return _numbers(column.classes)[value]
    if value is None or isinstance(value, (str, int, float, np.ndarray)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(column, one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(column, one) for name, one in value.items()}
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        raise RowError(
            f"column {column.name!r} holds bytes in a list or an object, which no member can hold: leave it out with "
            f"columns={{{column.name!r}: ''}}, or pack the rows from Python with encode=, a function that gives each "
            f"of its parts a member of its own"
        )
    return str(value)


@functools.lru_cache(maxsize=8)
def _numbers(classes: tuple[str, ...]) -> dict[str, int]:
    """Return the number of each class."""
    return {name: number for number, name in enumerate(classes)}


def _encoded(extension: str, value: Any, column: Column) -> bytes:
    last = extension.lower().rpartition(".")[2]
    if last in _IN_WORDS and isinstance(value, (int, float)):
        value = str(value)
    if last == "cls" and isinstance(value, bool):
        value = int(value)
    try:
        return encode(extension, value)
    except SampleError as error:
        advice = _ADVICE
        if isinstance(value, list) and extension.endswith("npy"):  # whole numbers, some of them missing, or uneven
            other = f"{extension.removesuffix('npy')}json"
            advice = f"map it to JSON, as in columns={{{column.name!r}: {other!r}}}"
        raise RowError(f"column {column.name!r}: {error}: {advice}") from error


def _own(extension: str, value: Any, column: Column) -> str:
    if not extension.endswith("*"):
        return extension
    own = suffix(value) if isinstance(value, str) else ""
    if not own:
        raise RowError(f"column {column.name!r} holds {value!r:.100}, a path without an extension: {_ADVICE}")
    return extension[:-1] + own


# Values of Arrow arrays


def is_struct(kind: Any) -> bool:
    """Return whether values of an Arrow type are structs."""
    return bool(tables.pyarrow().types.is_struct(kind))


def is_bytes(kind: Any) -> bool:
    """Return whether values of an Arrow type are bytes, or structs of bytes and a path as ``datasets`` has them."""
    types = tables.pyarrow().types
    if types.is_struct(kind):
        names = {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}
        return set(names) == {"bytes", "path"} and is_bytes(names["bytes"])
    is_plain = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return bool(is_plain or str(kind) == "binary_view")


@functools.lru_cache(maxsize=256)  # it is asked for each value
def is_numbers(kind: Any) -> bool:
    """Return whether values of an Arrow type are lists of numbers."""
    types = tables.pyarrow().types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)))


def lengths(column: Any) -> Any:
    """Return the lengths of the bytes of an Arrow array, without a copy of the bytes; null if there are none."""
    pa = tables.pyarrow()
    if is_struct(column.type):
        return lengths(pa.compute.struct_field(column, "bytes"))
    if str(column.type) == "binary_view":  # which `binary_length` of older versions does not know
        found = np.frombuffer(column.buffers()[1], np.int32)[::4]  # of each view, 16 bytes, the first four
        return pa.array(found[column.offset : column.offset + len(column)], mask=np.array(column.is_null()))
    if pa.types.is_fixed_size_binary(column.type):
        return pa.array(np.full(len(column), column.type.byte_width), mask=np.array(column.is_null()))
    return pa.compute.binary_length(column)


def value_at(column: Any, row: int) -> Any:
    """Return one value of an Arrow array: a list of numbers as a NumPy array, all else as Python has it."""
    value = column[row]
    if not is_numbers(column.type) or not value.is_valid:
        return value.as_py()
    if value.values.null_count and tables.pyarrow().types.is_integer(value.values.type):
        return value.as_py()  # as floats, with NaN for missing ones, large ones would change
    return value.values.to_numpy(zero_copy_only=False)
