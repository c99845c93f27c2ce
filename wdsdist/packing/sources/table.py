"""Tables whose rows are samples: CSV, TSV, JSON Lines, Parquet and Arrow files, and ``Dataset`` objects.

A first pass over the rows lists their sizes and keys, and the files that they name. The rows of a shard are read again
where they are written.
"""

from __future__ import annotations

import datetime
import fnmatch
import functools
import hashlib
import itertools
import json
import os
import re
import stat
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s, runs
from wdsdist._util.arrow import pyarrow
from wdsdist._util.file_types import last_part
from wdsdist._util.files import check_readable
from wdsdist._util.pools import Carried
from wdsdist.errors import ArgumentError, SampleError, SourceError, given
from wdsdist.packing.members import (
    FilePayload,
    LeftOut,
    Payload,
    Sample,
    Samples,
    broken,
    check_key,
    numbered,
    or_skip,
    sample_size,
)
from wdsdist.packing.options import Options
from wdsdist.packing.sources.columns import KEY, Column, check_columns, columns_of, is_numbers, suffix
from wdsdist.packing.sources.source import Blocks, Candidate, Contents, FileStamp, Source, key_digest, repeated
from wdsdist.packing.tables.table import NOTES, SUFFIXES, Kind, Table, kind_of, open_table, reading
from wdsdist.samples.encoders import encode

_SPLIT = re.compile(r"(?:^|[-_.])(train|test|validation|valid|val|dev)(?=[-_.])")
STATE = "state.json"

_BLOCK_BYTES = 256 << 20
"""Memory for the decoded row groups of Parquet that are read in turn."""
_SAMPLED, _SMALL = 64, 4096
"""Members of a ``Dataset`` object with more bytes than the latter are compared by their lengths, but in one row in
so many."""
_AT_ONCE = 256
"""Rows that are taken together where they are written."""


def find(candidate: Candidate, options: Options) -> Source | None:
    """List the rows of a file, or of the Parquet or Arrow files of a folder or a pattern; else return ``None``.

    Such a folder may be what ``save_to_disk`` of ``datasets`` wrote.
    """
    path, names = candidate.path, candidate.names or ()
    if path.is_file():
        kind = options.kind or kind_of(path.name)
        return _listed(kind, path, path.parent, [path], options) if kind in SUFFIXES else None
    pattern = path.name if candidate.names is None else ""
    folder = path.parent if pattern else path
    if pattern and re.search(r"[*?\[]", pattern) and folder.is_dir():
        names = tuple(os.listdir(folder))  # noqa: PTH208 - names alone
    elif STATE in names:
        names = _saved(path, names)
    table = together(str(path), str(folder), names, pattern, options.kind)
    if table is None or not all((folder / name).is_file() for name in table[1]):  # Spark writes folders of such names
        return None
    source = _listed(table[0], path, folder, [folder / name for name in table[1]], options)
    return source if pattern or STATE in (candidate.names or ()) else replace(source, root=str(folder))


def _saved(folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the data files that ``save_to_disk`` of ``datasets`` wrote to a folder.

    Raises `SourceError` if they are not among its ``names``, or hold more rows than the data set.
    """
    try:
        check_readable(folder / STATE)
        state = json.loads((folder / STATE).read_bytes())
        files = tuple(file["filename"] for file in state["_data_files"])
        if not files or not all(file in names for file in files):
            raise ValueError("the folder does not hold them")
        if state.get("_indices_data_files"):
            raise ValueError("rows are selected from them: call flatten_indices() before save_to_disk()")
    except (ValueError, RecursionError, OSError, LookupError, TypeError, AttributeError) as error:
        raise SourceError(f"{folder / STATE} names no data files that can be read ({error}): fetch it again") from error
    return files


def of_dataset(dataset: Any, label: str, options: Options) -> Source:
    """List the rows of a ``Dataset`` object of ``datasets``, as of a folder that its ``save_to_disk`` wrote.

    Paths in it start from the current folder, if ``root=`` names it; else strings are not paths.
    """
    return _listed("arrow", label, Path.cwd(), Carried(open_table(dataset, label=label)), options)


def together(
    label: str, folder: str, names: Iterable[str], pattern: str = "", kind: str | None = None
) -> tuple[Kind, list[str]] | None:
    """Return the kind and the names of the files in a folder that are one table; ``None`` if they are not.

    That is what matches a pattern, or all files of a folder that holds nothing but tables and notes.

    Raises `SourceError` for the files of a training set and its test set together.
    """
    visible = sorted(name for name in names if not name.startswith((".", "_")))
    several: Kind
    for several in ("parquet", "arrow"):
        suffixes = SUFFIXES[several]
        chosen = [name for name in visible if "/" not in name and name.lower().endswith(suffixes)]
        chosen = [name for name in chosen if fnmatch.fnmatchcase(name, pattern)] if pattern else chosen
        is_alone = all(name.lower().endswith((*suffixes, *NOTES)) for name in visible)
        if not chosen or kind not in (None, several) or not (pattern or kind or is_alone):
            continue
        splits = sorted({match[1] for name in chosen if (match := _SPLIT.search(name))})
        if len(splits) > 1:
            example = f"{folder}/*{splits[0]}*{Path(chosen[0]).suffix}"
            raise SourceError(f"{label} holds files of {' and '.join(splits)}: name one split, as in '{example}'")
        return several, chosen
    return None


def _listed(
    kind: Kind, location: str | Path, home: Path, given: list[Path] | Carried[Table], options: Options
) -> Source:
    """List the rows of files or of a ``Dataset`` object; ``home`` is the folder that paths start from by default.

    Raises `ArgumentError` for a ``root=`` that is not a local folder.
    """
    mapped, label, root = check_columns(options.columns), str(location), storage.normalise(options.root or home)
    if storage.is_remote(root) or not Path(root).is_dir():
        problem = f"root is {storage.shown(root)}, which is not a local folder"
        raise ArgumentError(f"{problem}: name the folder that paths in the table start from", argument="root")
    source: _TableFiles | Carried[Table]
    stamps: tuple[FileStamp, ...] = ()
    if isinstance(given, Carried):
        source, table = given, given.value
    else:
        stamps = tuple(map(FileStamp.of, given))
        source = _TableFiles(stamps, kind)
        table = open_table(given, kind=kind, label=label, skips=options.on_error == "skip")
    bad = [LeftOut(f"row {number:,}", reason) for number, reason in table.bad_rows]
    if not table.num_rows:
        why = f", such as {bad[0].key}: {bad[0].reason}" if bad else ""
        raise SourceError(f"{label} holds no row that could be a sample{why}: is it the right file?")
    with reading(label):
        has_paths = stamps or options.root is not None  # the current folder may hold anything
        columns = columns_of(table, mapped, root if has_paths else os.devnull, is_text=kind in ("csv", "tsv"))
        used = tuple(column for column in columns if column.member)
        contents, digest = _contents(source, table, used, Finder(root), options)
    classes = next((column.classes for column in used if column.is_label), None)
    notes: dict[str, Any] = {} if classes is None else {"classes": list(classes)}
    notes["columns"] = {column.name: column.member for column in columns if column.name}
    contents = replace(contents, notes=notes, left_out=(*bad, *contents.left_out))
    files = [(os.path.relpath(stamp.path, home), *stamp[1:]) for stamp in stamps]
    return Source(kind, label, f"{notes}\0{digest}\0{files}\0{contents.left_out}", lambda: contents)


def _skip_or_map() -> str:
    return f"{or_skip()}map columns otherwise with {given('columns')}"


class Finder:
    """Finds the files that rows name: below one folder only, the ``root``, where paths start.

    A table is data, which others may have written: a row that names ``/home/me/.ssh/id_rsa``, ``../../secrets`` or a
    link to them would put the file into the shards. Folders are resolved once for each finder: rows share few of them.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._real = functools.cache(lambda folder: os.path.join(os.path.realpath(folder), ""))  # noqa: PTH118

    def path(self, column: str, value: object) -> str:
        """Return the path of the file that a value of a column names.

        Links are followed, in folders and files alike. A file that does not exist is inside the root if its path is.
        Raises `SourceError` for a file outside, and for what is not a path.
        """
        if not isinstance(value, str) or "\0" in value:
            raise SourceError(f"column {column!r} holds {value!r:.100}, which is not a path: {_skip_or_map()}")
        if storage.is_remote(value):
            raise SourceError(
                f"column {column!r} names {storage.shown(value)!r:.300}, and nothing is downloaded: download the "
                f"files, as img2dataset does, and name them in its place"
            )
        path = os.path.join(self.root, value)  # noqa: PTH118 - a Path for each of millions of files is slow
        folder, _, name = path.rpartition("/")
        # Beyond a folder that does not exist, ".." still leads on; and `islink` says no of what comes after.
        is_plain = name not in ("", ".") and "/.." not in path and not os.path.islink(path)  # noqa: PTH114 - as above
        real = self._real(folder or "/") + name if is_plain else os.path.realpath(path)
        if not real.startswith(self._real(self.root)):
            raise SourceError(
                f"column {column!r} names {value!r:.300}, which lies outside the folder that paths start from, or is a "
                f"link to such a file: name the folder that holds all files with {given('root')}"
            )
        return path


def _row_samples(
    columns: Sequence[Column],
    finder: Finder,
    batches: Iterable[Any],
    rows: Iterable[int],
    size_of: Callable[[str], int],
) -> Iterator[Sample]:
    """Yield the sample of each row; a row that cannot be a sample is a `broken` one.

    Args:
        columns: the columns that become something.
        finder: finds the files that rows name.
        batches: the rows as Arrow record batches of these columns, in their order.
        rows: the number of each row in the table.
        size_of: returns the bytes of a file by its path, once for each file of each row.
    """
    numbers, key_position = iter(rows), next((n for n, column in enumerate(columns) if column.member == KEY), None)
    entries = [(position, column) for position, column in enumerate(columns) if column.is_entry]
    own = [
        (position, column, column.member, column.is_file)
        for position, column in enumerate(columns)
        if position != key_position and not column.is_entry
    ]
    for batch in batches:
        values = [_values(column, arrow) for column, arrow in zip(columns, batch.columns, strict=True)]
        for row, number in zip(zip(*values, strict=False), numbers, strict=False):
            key = "" if key_position is None or row[key_position] is None else str(row[key_position])
            try:
                members: list[tuple[str, Payload]] = []
                for position, column, extension, is_file in own:
                    value = row[position]
                    if isinstance(value, dict) and column.content == "bytes":  # as `datasets` has them
                        is_file = value["bytes"] is None
                        value = value["path" if is_file else "bytes"]
                    if value is None:
                        continue
                    if is_file:
                        path = finder.path(column.name, value)
                        own_extension = suffix(path)
                        if not own_extension and extension.endswith("*"):
                            raise SourceError(
                                f"column {column.name!r} holds {value!r:.100}, a path without an extension: "
                                f"{_skip_or_map()}"
                            )
                        extension = extension.replace("*", own_extension)
                        members.append((extension, FilePayload(path, size_of(path))))
                    elif column.content == "bytes":
                        members.append((extension, value))
                    else:
                        members.append((extension, _encoded(extension, _plain(column, value), column)))
                if entries:
                    content = {column.name: _plain(column, row[position]) for position, column in entries}
                    members.append(("json", _encoded("json", content, entries[0][1])))
                if not members:
                    raise SourceError("all values that could be a member are missing: remove the row")
                if key_position is not None:
                    try:
                        check_key(key)
                    except SourceError as error:
                        name = columns[key_position].name
                        raise SourceError(
                            f"column {name!r} holds what cannot be a key: {error}: {or_skip()}leave out the column "
                            f"with {given('columns', {name: ''})}"
                        ) from error
            except SourceError as error:
                yield broken(key or numbered(number), error)
            else:
                yield numbered(number) if key_position is None else key, sorted(members, key=lambda member: member[0])


def _values(column: Column, arrow: Any) -> Iterable[Any]:
    """Return the values of an Arrow array: arrays of numbers, and bytes one at a time, for they may be large."""
    if column.content == "bytes":
        return (value.as_py() for value in arrow)
    if is_numbers(arrow.type):  # as arrays, unless whole numbers are missing: as floats, large ones would change
        is_integer = pyarrow().types.is_integer(arrow.type.value_type)
        return (
            value.values.to_numpy(zero_copy_only=False)
            if value.is_valid and not (is_integer and value.values.null_count) else value.as_py()
            for value in arrow
        )  # fmt: skip
    values: list[Any] = arrow.to_pylist()  # at a third of the cost of one value at a time
    if column.is_json:
        return (value if value is None else json.loads(value) for value in values)
    if column.content == "text" and column.classes is not None:
        return map({name: number for number, name in enumerate(column.classes)}.get, values)
    return values


def _plain(column: Column, value: Any) -> Any:
    """Return a value as JSON or an array can hold it."""
    if value is None or isinstance(value, (str, int, float, np.ndarray)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(column, item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(column, item) for name, item in value.items()}
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        raise SourceError(
            f"column {column.name!r} holds bytes in a list or an object, which no member can hold: leave it out with "
            f"{given('columns', {column.name: ''})}, or pack the rows from Python with encode="
        )
    return str(value)


def _encoded(extension: str, value: Any, column: Column) -> bytes:
    last = last_part(extension)
    if last in ("txt", "text", "transcript") and isinstance(value, (int, float)):
        value = str(value)
    if last == "cls" and isinstance(value, bool):
        value = int(value)
    try:
        return encode(extension, value)
    except SampleError as error:
        advice = _skip_or_map()
        if isinstance(value, list) and extension.endswith("npy"):  # whole numbers, some of them missing, or uneven
            other = f"{extension.removesuffix('npy')}json"
            advice = f"map it to JSON, as in {given('columns', {column.name: other})}"
        raise SourceError(f"column {column.name!r}: {error}: {advice}") from error


class _TableFiles(NamedTuple):
    """The files of a table as they travel to the processes that write, which open them once each."""

    stamps: tuple[FileStamp, ...]
    kind: Kind

    @property
    def value(self) -> Table:
        self.check()
        return _opened(self)

    def check(self) -> None:
        for stamp in self.stamps:
            stamp.check()


@functools.lru_cache(maxsize=4)
def _opened(files: _TableFiles) -> Table:
    return open_table([Path(stamp.path) for stamp in files.stamps], kind=files.kind)


def _samples(
    source: Any, columns: Sequence[Column], root: str, rows: Int64s, file_sizes: list[int]
) -> Iterator[Sample]:
    """Yield some rows of a table as samples.

    Args:
        source: `_TableFiles`, a carried ``Dataset``, or the rows of a text file, which other processes cannot read.
        columns: the columns that become something.
        root: the folder that paths start from.
        rows: int64: numbers of the rows in the table.
        file_sizes: bytes that each file had when it was listed, in the order in which the rows name them.
    """
    parts, sizes = iter([source]), iter(file_sizes)
    if isinstance(source, (_TableFiles, Carried)):
        table, used, starts = source.value, [column.name for column in columns], range(0, len(rows), _AT_ONCE)
        parts = (table.take(rows[start : start + _AT_ONCE], used) for start in starts)
    # Rows of chunked arrays would be searched chunk by chunk.
    batches = (batch for part in parts for batch in part.combine_chunks().to_batches(max_chunksize=_AT_ONCE))
    yield from _row_samples(columns, Finder(root), batches, rows.tolist(), lambda _: next(sizes))


def _contents(
    source: _TableFiles | Carried[Table], table: Table, columns: Sequence[Column], finder: Finder, options: Options
) -> tuple[Contents, str]:
    """Read all rows of a table; return its samples, and a digest of the files that the rows name.

    ``source`` is what the processes that write read: files; or a ``Dataset``, whose values are digested too. Raises
    `SourceError` for the first row that cannot be a sample, unless such are left out; if no row can be one; and for a
    table that gives fewer rows than it lists.
    """
    state, wrong, counted = hashlib.sha256(), dict[int, LeftOut](), Counter[str]()
    sizes, keys, file_sizes, file_starts = array("q"), array("Q"), array("q"), array("q", [0])
    weights, above, names = np.zeros(len(table.starts) - 1, np.int64), finder.root + os.sep, [c.name for c in columns]
    key_name = next((column.name for column in columns if column.member == KEY), None)

    def leave_out(number: int, key: str, problem: str) -> None:
        reason = f"{table.row_name(number)}: {problem}"
        if options.on_error == "raise":
            raise SourceError(reason)
        wrong[number] = LeftOut.of(key, reason, above)

    def batches() -> Iterator[Any]:
        first = 0
        for batch in table.batches(names, rows=4096):
            weights[int(np.searchsorted(table.starts, first, side="right")) - 1] += batch.nbytes
            first += len(batch)
            yield batch

    def size_of(path: str) -> int:
        try:
            status = os.stat(path)  # noqa: PTH116 - a Path for each of millions of files is slow
        except FileNotFoundError as error:
            raise SourceError(f"{path} does not exist: {or_skip()}fetch it") from error
        except (OSError, ValueError) as error:
            raise SourceError(f"{path!r:.200} cannot be looked up: {error}") from error
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{path} is not a file")
        relative = os.path.relpath(path, above) if path.startswith(above) else path
        state.update(f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogatepass"))
        file_sizes.append(status.st_size)
        return status.st_size

    samples = _row_samples(columns, finder, batches(), itertools.count(), size_of)
    for number, (key, members) in enumerate(samples):
        if isinstance(error := members[0][1], SourceError):
            leave_out(number, key, str(error))
            key, members = f"{number}\0", []
            del file_sizes[file_starts[-1] :]
        else:
            counted.update(extension.lower() for extension, _ in members)
        for extension, data in members if isinstance(source, Carried) else ():
            content = data if isinstance(data, bytes) else b""  # of a file, the stamp is digested
            is_whole = len(content) <= _SMALL or number % _SAMPLED == 0
            state.update(f"{key}.{extension} {len(content)}\n".encode("utf-8", "surrogatepass"))
            state.update(content if is_whole else b"")
        file_starts.append(len(file_sizes))
        sizes.append(sample_size((key, members)))
        if key_name is not None:
            keys.append(key_digest(key))
    if len(sizes) != table.num_rows:
        raise SourceError(
            f"{table.label} gives {len(sizes):,} rows, but its metadata lists {table.num_rows:,}: fetch it again"
        )
    for first, number in repeated(keys):
        key = str(table.take(np.array([number]), [str(key_name)]).column(0)[0].as_py())
        leave_out(
            number,
            key,
            f"the key {key!r} stands in {table.row_name(first)} already: {_skip_or_map()} "
            f"so that another column, or none, gives the key",
        )
    if len(wrong) == len(sizes):
        raise SourceError(f"no row of {table.label} can be packed, for instance: {wrong[0].reason}")
    kept = np.delete(np.arange(len(sizes)), list(wrong))

    def take(indices: Int64s) -> Samples:
        rows, read_from = kept[indices], cast("Any", source)
        if isinstance(source, _TableFiles) and source.kind in ("csv", "tsv", "jsonl"):
            source.check()
            read_from = table.take(rows, names)
        files, _ = runs(np.frombuffer(file_starts, np.int64), rows)
        return Samples(
            _samples, (read_from, columns, finder.root, rows, np.frombuffer(file_sizes, np.int64)[files].tolist())
        )

    is_parquet = isinstance(source, _TableFiles) and source.kind == "parquet"  # whose groups are decoded as a whole
    contents = Contents(
        sizes=np.frombuffer(sizes, np.int64)[kept],
        take=take,
        left_out=tuple(wrong[number] for number in sorted(wrong)),
        blocks=Blocks(np.searchsorted(kept, table.starts), weights, _BLOCK_BYTES) if is_parquet else None,
        members=counted,
    )
    return contents, state.hexdigest()
