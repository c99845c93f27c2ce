"""Parquet and Arrow files as tables: groups of rows that are read together, by several processes, with bounded memory.

A group is a row group of a Parquet file or a record batch of an Arrow file. Uncompressed Arrow files are mapped, so any
row of them is at hand; a group of Parquet is decoded as a whole, and each process keeps the last ones that it decoded.

Sizes are exact, but for the columns of bytes in Parquet files: to know those, all data would have to be decoded, so the
mean of each row group stands for them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wdsdist.errors import SourceError
from wdsdist.packing.sources.columns import Column, extension_of, paths_or_texts, suffix
from wdsdist.packing.sources.source import Blocks, FileStamp
from wdsdist.packing.sources.table_rows import FileTable, Length, Row

KEPT_BYTES = 256 << 20
"""Of decoded groups that each process keeps."""

LISTED_ROWS = 4096
"""Rows that are Python objects together while a table is listed."""
FIRST = 100
"""Texts of a column that are looked up as paths."""
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream that is whole
_BYTES_VIEW = "binary_view"
"""The type of bytes that Polars writes, by its name: older versions of pyarrow have no function that knows it."""
_INSTALL = "reading tables (CSV, TSV, JSON Lines, Parquet, Arrow) needs a package: pip install 'wdsdist[tables]'"


def pyarrow() -> Any:
    """Return the package with its parts; raise `SourceError` where it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise SourceError(_INSTALL) from error
    return pyarrow


class ArrowTable(FileTable):
    """Parquet or Arrow files with the same columns, as one table: its rows in order, and any of its rows."""

    def __init__(self, stamps: tuple[FileStamp, ...], files: list[ArrowFile]) -> None:
        self.files = files
        self.schema = self.files[0].schema
        for file in self.files[1:]:
            if not file.schema.equals(self.schema):
                first = self.files[0]
                raise SourceError(
                    f"{file.path} has other columns than {first.path}: {_shown(file)}, not {_shown(first)}"
                )
        parts = [_ArrowPart(stamp, len(self.schema.names)) for stamp in stamps]
        super().__init__(stamps[0].path, parts, [file.lengths for file in files])
        self._weights = array("q", bytes(8 * len(self.groups)))
        self._is_parquet = any(file.is_parquet for file in self.files)

    def columns(self, root: str) -> list[Column]:
        """Say what each column holds, by its type and its first values; paths are looked up under ``root``."""
        classes = _classes(self.schema.metadata or {})
        return [
            replace(self._column(place, root), classes=classes.get(name))
            for place, name in enumerate(self.schema.names)
        ]

    def rows(self, used: Sequence[int], columns: Sequence[Column]) -> Iterator[Row]:
        """Yield all rows with the lengths of bytes in place of the bytes; columns that are not used stay empty."""
        estimated = self._estimated(used, columns)
        for group, (file, number) in enumerate(self.groups.tolist()):
            self._weights[group] = 0
            with readable(self.files[file].path):
                for part, weight in self.files[file].listing(number, used, estimated):
                    self._weights[group] += weight
                    yield from part

    def has_exact_sizes(self, used: Sequence[int], columns: Sequence[Column]) -> bool:
        """Whether `rows` gives the length of each of the bytes, and not a mean."""
        return not self._estimated(used, columns)

    def blocks(self) -> Blocks | None:
        """Return the groups where they are decoded as a whole, once all rows were listed."""
        if not self._is_parquet:
            return None
        return Blocks(self.starts, np.array(self._weights, np.int64), KEPT_BYTES)

    def _estimated(self, used: Sequence[int], columns: Sequence[Column]) -> tuple[int, ...]:
        return tuple(place for place in used if columns[place].content == "bytes") if self._is_parquet else ()

    def _column(self, place: int, root: str) -> Column:
        types = pyarrow().types
        name, kind = self.schema.names[place], self.schema.types[place]
        value = kind.value_type if types.is_dictionary(kind) else kind
        if is_bytes(kind):
            return Column(name, "bytes", _extension(next(iter(self._first(place, 1)), None)))
        if types.is_string(value) or types.is_large_string(value) or str(value) == "string_view":
            return paths_or_texts(name, tuple(self._first(place, FIRST)), root)
        if types.is_integer(value):
            return Column(name, "integer")
        if types.is_floating(value):
            return Column(name, "number")
        return Column(name, "list" if is_numbers(kind) else "empty" if types.is_null(kind) else "other")

    def _first(self, place: int, most: int) -> list[Any]:
        for file in self.files:
            with readable(file.path):
                found = file.first(place, most)
            if found:
                return found
        return []


@dataclass(frozen=True, slots=True)
class _ArrowPart:
    """A Parquet or Arrow file, as rows of it travel."""

    stamp: FileStamp
    width: int
    """Columns of a row."""

    def row(self, group: int, number: int, used: tuple[int, ...]) -> Row:
        row: Row = [None] * self.width
        with readable(self.stamp.path):
            for at, column in zip(used, _decoded.get(self.stamp, group, used), strict=True):
                row[at] = value_at(column, number)
        return row

    def place(self, group: int, number: int) -> str:
        return f"{self.stamp.path}, row {number:,} of group {group:,}"


class ArrowFile:
    """A Parquet or Arrow file, open."""

    def __init__(self, path: str, content: Any = None) -> None:
        """Open a file; ``content``, as pyarrow reads it, stands in its place."""
        pa = pyarrow()
        self.path = path
        self._batches: list[Any] = []
        with readable(path):
            content = content or pa.memory_map(path)
            start = content.read(6)
            content.seek(0)
            self.is_parquet = start[:4] == b"PAR1"
            if self.is_parquet:
                self.parquet = pa.parquet.ParquetFile(path, pre_buffer=False)
                self.schema = self.parquet.schema_arrow
            elif start == b"ARROW1":
                self._file = pa.ipc.open_file(content)
                self.schema = self._file.schema
            else:
                self._stream(pa, path, content)
            self.schema.names  # noqa: B018 - are decoded here, and may be no text

    @functools.cached_property
    def lengths(self) -> list[int]:
        """Rows of each group."""
        if self.is_parquet:
            metadata = self.parquet.metadata
            found = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            if sum(found) != metadata.num_rows:
                raise SourceError(
                    f"{self.path} is damaged: its groups have {sum(found):,} rows, and the file {metadata.num_rows:,}; "
                    f"fetch it again"
                )
            return found
        return [self.batch(number).num_rows for number in range(len(self._batches) or self._file.num_record_batches)]

    def batch(self, number: int) -> Any:
        """Return a record batch of an Arrow file."""
        return self._batches[number] if self._batches else self._file.get_batch(number)

    def group(self, number: int, used: tuple[int, ...]) -> Any:
        """Return some columns of a group, as a table or a record batch."""
        names = [self.schema.names[place] for place in used]
        if not self.is_parquet:
            return self.batch(number).select(names)
        # One thread: there is a process for each core already. In one chunk a column finds its rows fastest.
        return self.parquet.read_row_group(number, columns=names, use_threads=False).select(names)

    def listing(self, number: int, used: Sequence[int], estimated: Sequence[int]) -> Iterator[tuple[list[Row], int]]:
        """Yield the rows of a group with the lengths of bytes in place of the bytes, some at a time.

        The columns in ``estimated`` are not read: each value has the mean length. With each part of the rows comes what
        the group takes in memory for them.
        """
        width = len(self.schema.names)
        read = tuple(place for place in used if place not in estimated)
        names = [self.schema.names[place] for place in read]
        means = {place: Length(self._mean(number, place)) for place in estimated}
        for batch in self._parts(number, names):
            # Offsets that point elsewhere would be followed, out of the file. Once is enough: files are at rest.
            batch.validate(full=True)
            rows = listed_rows(batch, read, width)
            for row in rows:
                for place, mean in means.items():
                    row[place] = mean
            yield rows, batch.nbytes + len(rows) * sum(means.values())

    def first(self, place: int, most: int) -> list[Any]:
        """Return the first values of a column that are not missing; only the start of each group is looked at."""
        found: list[Any] = []
        for number in range(len(self.lengths)):
            part = next(self._parts(number, [self.schema.names[place]], rows=most), None)
            if part is not None:
                part.validate(full=True)
                values = (value for value in part.column(0).to_pylist() if value is not None)
                found += itertools.islice(values, most - len(found))
            if len(found) >= most:
                break
        return found

    def _parts(self, number: int, names: list[str], rows: int = LISTED_ROWS) -> Iterator[Any]:
        if self.is_parquet and names:
            yield from self.parquet.iter_batches(rows, row_groups=[number], columns=names, use_threads=False)
            return
        whole = pyarrow().RecordBatch.from_pydict({"": np.zeros(self.lengths[number], np.bool_)}).select([])
        whole = whole if self.is_parquet else self.batch(number).select(names)
        for start in range(0, self.lengths[number], rows):
            yield whole.slice(start, rows)

    def _mean(self, number: int, place: int) -> int:
        group = self.parquet.metadata.row_group(number)
        leaves = self._leaves(self.schema.names[place])
        size = sum(int(group.column(leaf).total_uncompressed_size) for leaf in leaves)
        return max(0, size) // max(1, int(group.num_rows))

    def _leaves(self, name: str) -> list[int]:
        """Return the columns of a Parquet file that a column of the table is stored as."""
        # By the schema: to ask a row group for a column whose statistics are damaged ends the process (pyarrow 26).
        paths = (self.parquet.schema.column(leaf).path for leaf in range(len(self.parquet.schema)))
        return [leaf for leaf, path in enumerate(paths) if path == name or path.startswith(f"{name}.")]

    def _stream(self, pa: Any, path: str, content: Any) -> None:
        whole = content.read_buffer()
        reader = pa.ipc.open_stream(whole)
        # Without it, a stream cut between two batches looks like a shorter one.
        if whole.slice(max(0, whole.size - len(_END))).to_pybytes() != _END:
            raise SourceError(f"{path} lacks the end of an Arrow stream, so rows are missing: fetch or write it again")
        self.schema = reader.schema
        self._batches = list(reader)
        if not self._batches:
            self._batches = [pa.RecordBatch.from_pylist([], self.schema)]
        buffers = (buffer for column in self._batches[0].columns for buffer in column.buffers() if buffer)
        if any(buffer.size and not whole.address <= buffer.address < whole.address + whole.size for buffer in buffers):
            raise SourceError(
                f"{path} is a compressed Arrow stream, which has to be read as a whole: write it without compression, "
                f"or as Parquet"
            )


class DecodedGroups:
    """The groups that this process decoded last, of so many bytes at most; one that is larger is kept alone."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self.num_bytes = 0
        self._kept: OrderedDict[tuple[FileStamp, int, tuple[int, ...]], tuple[list[Any], int]] = OrderedDict()
        self._lock = threading.Lock()  # packing in a thread may share the process with another packing

    def get(self, file: FileStamp, number: int, used: tuple[int, ...]) -> list[Any]:
        """Return some columns of a group, each in one chunk."""
        key = file, number, used
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
            group = opened(file).group(number, used)
            columns = [_one_chunk(column) for column in group.columns]
            size = group.nbytes if opened(file).is_parquet else 0
            self._kept[key] = columns, size
            self.num_bytes += size
            while len(self._kept) > 1 and (self.num_bytes > self._limit or len(self._kept) > 4096):
                self.num_bytes -= self._kept.popitem(last=False)[1][1]
            return columns


_decoded = DecodedGroups()


@functools.lru_cache(maxsize=64)
def opened(file: FileStamp) -> ArrowFile:
    """Return a file of this process, open; it stays open for the next rows."""
    return ArrowFile(file.path)


def value_at(column: Any, place: int) -> Any:
    """Return one value of an Arrow array: a list of numbers as a NumPy array, all else as Python has it."""
    value = column[place]
    if not is_numbers(column.type) or not value.is_valid:
        return value.as_py()
    if value.values.null_count and pyarrow().types.is_integer(value.values.type):
        return value.as_py()  # as floats, with NaN for those that are missing, large ones would be others
    return value.values.to_numpy(zero_copy_only=False)


@functools.lru_cache(maxsize=256)  # it is asked of each value
def is_numbers(kind: Any) -> bool:
    """Say whether values of an Arrow type are lists of numbers."""
    types = pyarrow().types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)))


def is_bytes(kind: Any) -> bool:
    """Say whether values of an Arrow type are bytes, or structs of bytes and a path as ``datasets`` has them."""
    types = pyarrow().types
    if types.is_struct(kind):
        names = {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}
        return set(names) == {"bytes", "path"} and _is_plain_bytes(names["bytes"])
    return _is_plain_bytes(kind)


def listed_rows(batch: Any, used: Sequence[int], width: int) -> list[Row]:
    """Return the rows of a record batch or table, of the columns at the places ``used``, with lengths for bytes."""
    rows: list[Row] = [[None] * width for _ in range(batch.num_rows)]
    for place, column in zip(used, batch.columns, strict=True):
        for row, value in zip(rows, sized(column), strict=True):
            row[place] = value
    return rows


def sized(column: Any) -> Iterator[Any]:
    """Yield the values of an Arrow array, but of bytes their lengths, which takes no copy of the bytes."""
    types = pyarrow().types
    if types.is_struct(column.type) and is_bytes(column.type):
        parts = dict(zip((field.name for field in column.type), column.flatten(), strict=True))  # nulls of both levels
        for data, path in zip(sized(parts["bytes"]), parts["path"].to_pylist(), strict=True):
            yield None if data is None and path is None else {"bytes": data, "path": path}
    elif str(column.type) == _BYTES_VIEW:
        lengths = np.frombuffer(column.buffers()[1], np.int32)[::4]  # of each view, 16 bytes, the first four
        of_rows = lengths[column.offset : column.offset + len(column)].tolist()
        for length, is_there in zip(of_rows, column.is_valid().to_pylist(), strict=True):
            yield Length(length) if is_there else None
    elif _is_plain_bytes(column.type):
        for length in pyarrow().compute.binary_length(column).to_pylist():
            yield None if length is None else Length(length)
    elif is_numbers(column.type):
        for place in range(len(column)):
            yield value_at(column, place)
    else:
        yield from column.to_pylist()


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn what pyarrow raises for a damaged file into a `SourceError` that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(f"{path} has vanished since it was listed: pack again once it is back") from error
    except (pyarrow().ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise SourceError(f"{path} cannot be read as a table ({reason}): fetch it again") from error


def _is_plain_bytes(kind: Any) -> bool:
    types = pyarrow().types
    is_plain = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return bool(is_plain or str(kind) == _BYTES_VIEW)


def _one_chunk(column: Any) -> Any:
    """Return a column as one array; rows of arrays in chunks would be looked for chunk by chunk."""
    if not hasattr(column, "num_chunks"):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _shown(file: ArrowFile) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in file.schema)


def _extension(value: Any) -> str:
    """Return the extension of bytes, or of a struct of bytes and a path, or ``""`` where nothing tells it."""
    data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
    return extension_of(data or b"") or (suffix(path) if path else "")


def _classes(metadata: dict[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """Return the names of the classes that each column numbers, as ``datasets`` notes them in a schema."""
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        return {
            str(name): tuple(map(str, feature["names"]))
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
        }
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {}  # a note of some other tool, under the same name
