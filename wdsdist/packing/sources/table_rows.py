"""Rows of a table as samples: members and keys of a row, the files that rows name, and what is wrong with a row.

A first pass over all rows lists their sizes and keys. The rows of a shard are read again where they are written.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import os
import stat
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.file_types import last_part
from wdsdist.curation import tables
from wdsdist.curation.tables import Table
from wdsdist.errors import ArgumentError, SampleError, SourceError
from wdsdist.packing.contents import check_key
from wdsdist.packing.payloads import FilePayload, Payload, numbered
from wdsdist.packing.sources.columns import Column, Layout, suffix
from wdsdist.packing.sources.source import LeftOut, key_digest, repeated
from wdsdist.samples.encoders import encode
from wdsdist.shards.tar.writer import stored_size

_BATCH_BYTES = 32 << 20
_SAMPLED = 64
"""One row in so many identifies a ``Dataset`` object by all bytes in it; the others count by their lengths."""
_ADVICE = "leave such rows out with on_error='skip', or map columns otherwise with columns="


class RowError(Exception):
    """What is wrong with a row; the caller adds where the row stands."""


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
        folder, _, name = path.rpartition("/")
        # Beyond a folder that does not exist, ".." still leads on; and `islink` says no of what comes after.
        is_plain = name not in ("", ".") and "/.." not in path and not os.path.islink(path)  # noqa: PTH114 - as above
        real = self._real_folder(folder) + name if is_plain else os.path.realpath(path)
        return path if real.startswith(self._real_folder(self.root)) else None

    def _real_folder(self, folder: str) -> str:
        """Return a folder without links, with a slash at its end."""
        real = self._real.get(folder)
        if real is None:
            real = self._real[folder] = os.path.join(os.path.realpath(folder or "/"), "")  # noqa: PTH118
        return real


def _status(path: str) -> os.stat_result:
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


class Rows:
    """Some rows of a table, and the key and members of each.

    Args:
        layout: how columns become members.
        finder: finds the files that rows name.
        arrays: the Arrow arrays of the columns that the layout uses, in their order.
    """

    def __init__(self, layout: Layout, finder: Finder, arrays: Sequence[Any]) -> None:
        self._layout, self._finder = layout, finder
        self._arrays = dict(zip(layout.used(), arrays, strict=True))
        of_bytes = {number for number in self._arrays if layout.columns[number].content == "bytes"}
        # A whole column becomes Python's values at a third of the cost of one value at a time.
        self._values = {
            number: array.to_pylist()
            for number, array in self._arrays.items()
            if number not in of_bytes and not is_numbers(array.type)
        }

    def members(self, row: int) -> list[tuple[str, Payload]]:
        """Return the members of a row; a file has no size yet. Raises `RowError` for a row that cannot be a sample."""
        return list(self._members(row))

    def key(self, row: int, number: int, members: list[tuple[str, Any]]) -> str:
        """Return the key of a row, so that readers find it and its members; ``number`` is the row's in the table."""
        if not members:
            raise RowError("all values that could be a member are missing: remove the row")
        if self._layout.key is None:
            return numbered(number)
        key, column = self.string_key(row), self._layout.columns[self._layout.key].name
        try:
            check_key(key)
        except SourceError as error:
            raise RowError(
                f"column {column!r} holds what cannot be a key: {error}. Leave such rows out with on_error='skip', or "
                f"the column with columns={{{column!r}: ''}}"
            ) from error
        return key

    def string_key(self, row: int) -> str:
        """Return the value of the key column, or an empty string."""
        value = None if self._layout.key is None else self._values[self._layout.key][row]
        return "" if value is None else str(value)

    def _value(self, number: int, row: int) -> Any:
        values, column = self._values.get(number), self._layout.columns[number]
        value = numbers_at(self._arrays[number], row) if values is None else values[row]
        return json.loads(value) if column.is_json and value is not None else value

    def _members(self, row: int) -> Iterator[tuple[str, Payload]]:
        for member in self._layout.members:
            number = member.columns[0]
            column = self._layout.columns[number]
            if member.form == "object":
                values = [(self._layout.columns[index], self._value(index, row)) for index in member.columns]
                content = {part.name: _plain(part, value) for part, value in values}
                yield member.extension, _encoded("json", content, column)
            elif column.content == "bytes":
                if (data := self._bytes(number, row, column)) is not None:
                    yield member.extension, data
            elif (value := self._value(number, row)) is None:
                continue
            elif member.form == "file":
                own = suffix(value) if isinstance(value, str) else ""
                if not own and member.extension.endswith("*"):
                    raise RowError(
                        f"column {column.name!r} holds {value!r:.100}, a path without an extension: {_ADVICE}"
                    )
                yield member.extension.replace("*", own), self._file(value, column)
            else:
                yield member.extension, _encoded(member.extension, _plain(column, value), column)

    def _bytes(self, number: int, row: int, column: Column) -> Payload | None:
        """Return the bytes in a column, or the file that a struct of ``bytes`` and ``path`` names."""
        value = self._arrays[number][row].as_py()
        if not isinstance(value, dict):
            return value  # type: ignore[no-any-return]
        data, path = value.get("bytes"), value.get("path")
        return self._file(path, column) if data is None and path is not None else data

    def _file(self, value: Any, column: Column) -> FilePayload:
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
        return FilePayload(path, -1)


def _plain(column: Column, value: Any) -> Any:
    """Return a value as JSON or an array can hold it."""
    if column.classes is not None and isinstance(value, str):
        return _numbers(column.classes)[value]
    if value is None or isinstance(value, (str, int, float, np.ndarray)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(column, item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(column, item) for name, item in value.items()}
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
    last = last_part(extension)
    if last in ("txt", "text", "transcript") and isinstance(value, (int, float)):
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


class Listed(NamedTuple):
    """What is known of the rows of a table once all have been read."""

    sizes: Int64s
    """int64 [rows]: bytes that each row takes in a tar."""
    file_sizes: Int64s
    """int64 [rows, members that may be files]: bytes of each file that a row names, then -1."""
    weights: Int64s
    """int64 [groups]: bytes of memory of each group of rows."""
    layouts: Counter[tuple[str, ...]]
    """The number of rows by their members."""
    wrong: dict[int, LeftOut]
    """The rows that are left out, by their numbers."""
    digest: str
    """A digest of the files that the rows name, and of the values if they are digested."""


def list_rows(table: Table, layout: Layout, finder: Finder, on_error: str, *, digests: bool) -> Listed:
    """Read all rows of a table; ``digests`` says to digest the values, if no file's stamp identifies the rows.

    Raises `SourceError` for the first row that cannot be a sample, unless such are left out; if no row can be one; and
    for a table that gives fewer rows than it lists.
    """
    state, values, wrong = hashlib.sha256(), dict[str, Any](), dict[int, LeftOut]()
    sizes, file_sizes, keys, layouts = array("q"), array("q"), array("Q"), Counter[tuple[str, ...]]()
    weights, above = np.zeros(len(table.starts) - 1, np.int64), finder.root + os.sep
    most_files = sum(
        member.form == "file" or layout.columns[member.columns[0]].content == "bytes" for member in layout.members
    )

    def leave_out(number: int, key: str, error: SourceError) -> None:
        if on_error == "raise":
            raise error
        wrong[number] = LeftOut(key.encode("utf-8", "backslashreplace").decode(), str(error).replace(above, ""))

    def size_of(data: Payload, files: list[int]) -> int:
        if isinstance(data, bytes):
            state.update(b"%d " % len(data) if digests else b"")
            return len(data)
        assert isinstance(data, FilePayload)
        status = _status(data.path)
        relative = os.path.relpath(data.path, above) if data.path.startswith(above) else data.path
        state.update(f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogatepass"))
        files.append(status.st_size)
        return status.st_size

    names = [layout.columns[number].name for number in layout.used()]
    rows = 4096
    if any(column.content == "bytes" for column in layout.columns):  # few such rows fit in memory together
        first = next(table.batches(names, rows=1), None)
        rows = max(1, min(1024, _BATCH_BYTES // max(1, first.nbytes))) if first is not None else 1
    for batch in table.batches(names, rows=rows):
        start = len(sizes)
        weights[int(np.searchsorted(table.starts, start, side="right")) - 1] += batch.nbytes
        for name, column in zip(names, batch.columns, strict=True) if digests else ():
            if is_bytes(column.type):
                column = column.take(np.arange(-start % _SAMPLED, len(column), _SAMPLED))
            values.setdefault(name, hashlib.sha256()).update(_written(column))
        parsed = Rows(layout, finder, batch.columns)
        for row in range(batch.num_rows):
            number, files = start + row, list[int]()
            try:
                members = [(extension, size_of(data, files)) for extension, data in parsed.members(row)]
                key = parsed.key(row, number, members)
            except RowError as error:
                reason = SourceError(f"{table.row_name(number)}: {error}")
                leave_out(number, parsed.string_key(row) or numbered(number), reason)
                key, members, files = f"{number}\0", [], []
            file_sizes.extend(files + [-1] * (most_files - len(files)))  # a row may lack some
            sizes.append(sum(stored_size(f"{key}.{extension}", size) for extension, size in members))
            if members:
                layouts[tuple(sorted(extension for extension, _ in members))] += 1
            if layout.key is not None:
                keys.append(key_digest(key))
    if len(sizes) != table.num_rows:
        raise SourceError(
            f"{table.label} gives {len(sizes):,} rows, but its metadata lists {table.num_rows:,}: fetch it again"
        )
    for first, number in repeated(keys):
        key = str(table.take(np.array([number]), [layout.columns[layout.key or 0].name]).column(0)[0].as_py())
        leave_out(number, key, SourceError(
            f"{table.row_name(number)}: the key {key!r} stands in {table.row_name(first)} already: leave such rows out "
            f"with on_error='skip', or map columns otherwise with columns= so that another column, or none, gives the "
            f"key"
        ))  # fmt: skip
    if len(wrong) == len(sizes):
        raise SourceError(f"no row of {table.label} can be packed, for instance: {wrong[0].reason}")
    for digest in values.values():
        state.update(digest.digest())
    measured = np.frombuffer(file_sizes, np.int64).reshape(len(sizes), most_files)
    return Listed(np.frombuffer(sizes, np.int64), measured, weights, layouts, wrong, state.hexdigest())


def _written(values: Any) -> bytes:
    """Return the values of an array as bytes, the same however they lie in batches."""
    return "".join(f"{value!r}\n" for value in values.to_pylist()).encode("utf-8", "surrogatepass")


# Values of Arrow arrays


def is_bytes(kind: Any) -> bool:
    """Return whether values of an Arrow type are bytes, or structs of bytes and a path as ``datasets`` has them."""
    if tables.pyarrow().types.is_struct(kind):
        types = {field.name: field.type for field in kind}
        return set(types) == {"bytes", "path"} and is_bytes(types["bytes"])
    return str(kind).partition("[")[0] in ("binary", "large_binary", "binary_view", "fixed_size_binary")


@functools.lru_cache(maxsize=256)  # it is asked for each value
def is_numbers(kind: Any) -> bool:
    """Return whether values of an Arrow type are lists of numbers."""
    types = tables.pyarrow().types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)))


def numbers_at(column: Any, row: int) -> Any:
    """Return one value of an Arrow array of lists of numbers: a NumPy array, unless whole numbers are missing."""
    value = column[row]
    if not value.is_valid or (value.values.null_count and tables.pyarrow().types.is_integer(value.values.type)):
        return value.as_py()  # as floats, with NaN for missing ones, large ones would change
    return value.values.to_numpy(zero_copy_only=False)
