"""Tables whose rows are samples: CSV, TSV, JSON Lines, Parquet and Arrow files, and ``Dataset`` objects.

All are read as Arrow by `wdsdist.curation.tables`. A first pass over the rows finds their sizes and keys, and the files
that they name; the rows of a shard are read again where they are written.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.file_types import extension_of
from wdsdist._util.files import read_file
from wdsdist._util.pools import Carried
from wdsdist.curation import tables
from wdsdist.curation.tables import JSON_TEXT, Kind, Table
from wdsdist.errors import ExtraMissingError, SourceError
from wdsdist.packing.payloads import FilePayload, Payload, Sample, broken, numbered
from wdsdist.packing.sources.columns import Column, Layout, check_columns, choose, paths_or_texts, suffix
from wdsdist.packing.sources.listing import FILE, LINK
from wdsdist.packing.sources.source import (
    Blocks,
    Candidate,
    Contents,
    FileStamp,
    LeftOut,
    Source,
    SourceOptions,
)
from wdsdist.packing.sources.table_listing import TableListing
from wdsdist.packing.sources.table_rows import (
    Columns,
    Finder,
    NamedFile,
    RowError,
    is_bytes,
    is_numbers,
    named_in,
)  # fmt: skip

_OTHER_SEPARATORS = {"csv": ";\t|", "tsv": ";,|"}
_TEXTS = ("csv", "tsv", "jsonl")
PARQUET = tables.SUFFIXES["parquet"]
SEVERAL = (*PARQUET, *tables.SUFFIXES["arrow"])
"""The suffixes of the kinds of which several files are one table."""

_BESIDE = (".md", ".txt", ".json", ".yaml", ".yml", ".crc")  # notes that lie beside tables and are no samples
_SPLIT = re.compile(r"(?:^|[-_.])(train|test|validation|valid|val|dev)(?=[-_.])")
_MOST_CLASSES = 65_536
"""Different texts that are numbered as classes: more are no classes, but texts."""
STATE, _DICT = "state.json", "dataset_dict.json"

_FIRST = 100
"""Texts of a column that are looked up as paths."""
_BLOCK_BYTES = 256 << 20
"""Memory for the decoded row groups of Parquet that are read in turn."""
_AT_ONCE = 256
"""Rows that are taken together where they are written."""


def find(candidate: Candidate, options: SourceOptions) -> Source | None:
    """List the rows of a file, or of Parquet and Arrow files of a folder or a pattern; else return ``None``."""
    path = candidate.path
    if path is None:
        return None
    is_file, is_pattern = path.is_file(), re.search(r"[*?\[]", path.name) is not None
    for kind, suffixes in tables.SUFFIXES.items():
        is_named = path.name.lower().endswith(suffixes)
        if options.kind not in (None, kind):
            continue
        if is_file and (options.kind == kind or is_named):
            return _source(kind, path, path.parent, [path], options)
        files: list[Path] = []
        if suffixes[0] in SEVERAL and candidate.entries is not None:
            files = _in_folder(candidate, suffixes, forced=options.kind == kind)
        elif suffixes[0] in SEVERAL and is_pattern and is_named and not is_file:
            files = list(path.parent.glob(path.name))
        if files:
            files.sort(key=os.fsencode)
            root = path if candidate.entries is not None else path.parent
            check_splits(str(path), str(root), [file.name for file in files])
            return _source(kind, path, root, files, options)
    return None


def find_saved(candidate: Candidate, options: SourceOptions) -> Source | None:
    """List the rows of a folder that ``save_to_disk`` of ``datasets`` wrote; return ``None`` for other folders."""
    path = candidate.path
    if path is None:
        return None
    if (path / _DICT).is_file():
        splits = _json(path / _DICT).get("splits")
        if not isinstance(splits, list) or not splits or not all(isinstance(name, str) for name in splits):
            raise SourceError(f"{path / _DICT} names no splits: is the folder whole?")
        if len(splits) > 1:
            raise SourceError(f"{path} holds the splits {', '.join(splits)}: name one, for instance {path / splits[0]}")
        path = named_in(path, _DICT, splits[0])
    if not (path / STATE).is_file():
        return None
    state = _json(path / STATE)
    files = state.get("_data_files")
    names = [file.get("filename") for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    paths = [named_in(path, STATE, name) for name in names if isinstance(name, str)]
    if not paths or len(paths) < len(names):
        raise SourceError(f"{path / STATE} names no data files: is the folder whole?")
    if state.get("_indices_data_files"):
        raise SourceError(
            f"{path} holds a selection of its rows: call flatten_indices() before save_to_disk(), with datasets"
        )
    return _source("hf", path, path, paths, options)


def of_dataset(dataset: Any, label: str, options: SourceOptions) -> Source:
    """List the rows of a ``Dataset`` object of ``datasets``, as of a folder that its ``save_to_disk`` wrote.

    Paths in it start from the current folder, if ``root=`` names it; else strings are no paths.
    """
    carried = Carried(tables.open_table(dataset, label=label))
    return _listed("hf", label, Path.cwd(), carried.value, (), options, lambda names: _OfDataset(carried, names))


def is_table(name: str, *, or_note: bool = False) -> bool:
    """Return whether a file is one of several that are a table together, by its name; or also a note beside such."""
    lower = name.lower()
    if or_note and (lower.endswith(_BESIDE) or lower.startswith((".", "_"))):
        return True
    return "/" not in name and not lower.startswith((".", "_")) and lower.endswith(SEVERAL)


def check_splits(label: str, root: str, names: Sequence[str]) -> None:
    """Raise `SourceError` for files in a folder that are a training set and its test set together."""
    splits: dict[str, str] = {}
    for name in names:
        if match := _SPLIT.search(name):
            splits.setdefault(match[1], name)
    if len(splits) > 1:
        first = next(iter(splits))
        pattern = splits[first].partition(first)[0] + first + "*" + Path(splits[first]).suffix
        raise SourceError(f"{label} holds files of {' and '.join(splits)}: name one split, as in '{root}/{pattern}'")


def _in_folder(candidate: Candidate, suffixes: tuple[str, ...], *, forced: bool) -> list[Path]:
    """Return the tables in a folder; none if there are files beside them that are neither tables nor notes."""
    found = []
    for name, kind in candidate.entries or ():
        lower = name.lower().decode("utf-8", "surrogateescape")
        if lower.startswith((".", "_")):
            continue
        if not forced and not (kind & ~LINK == FILE and lower.endswith((*suffixes, *_BESIDE))):
            return []
        if lower.endswith(suffixes) and candidate.path is not None:
            found.append(candidate.path / os.fsdecode(name))
    return found


def _source(kind: str, location: Path, home: Path, paths: list[Path], options: SourceOptions) -> Source:
    for path in paths:
        if not path.is_file():
            raise SourceError(f"{path} does not exist, but {location} names it: fetch it again")
    stamps = tuple(map(FileStamp.of, paths))
    opened_as = cast("Kind", "arrow" if kind == "hf" else kind)
    try:
        table = tables.open_table(paths, kind=opened_as, on_error=options.on_error, scratch=options.scratch)
    except OSError as error:
        raise SourceError(f"{location} cannot be read: {error.strerror or error}") from error
    except ExtraMissingError as error:
        raise SourceError(str(error)) from error

    def taker(names: list[str]) -> _OfText | _OfFiles:
        return _OfText(table, names) if kind in _TEXTS else _OfFiles(stamps, opened_as, names)

    return _listed(kind, str(location), home, table, stamps, options, taker)


# How rows of a shard travel to the process that writes them


@dataclass(frozen=True, slots=True, eq=False)
class _OfFiles:
    """Takes rows of Parquet or Arrow files, which each process opens once."""

    stamps: tuple[FileStamp, ...]
    kind: Kind
    names: list[str]

    def sent(self, rows: Int64s) -> Callable[[slice], Any]:
        """Return what a process calls to take some of the rows."""
        return functools.partial(_taken, self, rows)


def _taken(files: _OfFiles, rows: Int64s, some: slice) -> Any:
    for stamp in files.stamps:
        stamp.check()
    return _opened(files.stamps, files.kind).take(rows[some], files.names)


@functools.lru_cache(maxsize=4)
def _opened(stamps: tuple[FileStamp, ...], kind: Kind) -> Table:
    return tables.open_table([Path(stamp.path) for stamp in stamps], kind=kind)


@dataclass(frozen=True, slots=True, eq=False)
class _OfText:
    """Takes rows of a text: they travel themselves, as whoever writes them may not see the temporary copy."""

    table: Table
    names: list[str]

    def sent(self, rows: Int64s) -> Callable[[slice], Any]:
        """Return what a process calls to take some of the rows."""
        return functools.partial(_sliced, self.table.take(rows, self.names))


def _sliced(rows: Any, some: slice) -> Any:
    return rows.slice(some.start, some.stop - some.start)


@dataclass(frozen=True, slots=True, eq=False)
class _OfDataset:
    """Takes rows of a ``Dataset`` object, which goes to each process once."""

    table: Carried[Table]
    names: list[str]

    def sent(self, rows: Int64s) -> Callable[[slice], Any]:
        """Return what a process calls to take some of the rows."""
        return functools.partial(_of_dataset, self, rows)


def _of_dataset(dataset: _OfDataset, rows: Int64s, some: slice) -> Any:
    return dataset.table.value.take(rows[some], dataset.names)


@dataclass(frozen=True, slots=True)
class _RowSamples:
    """Some rows of a table as samples, read where they are written."""

    take: Callable[[slice], Any]
    layout: Layout
    root: str
    rows: Int64s
    """Numbers of the rows in the table."""
    where: list[str] | None
    """Where each row stands, if that is not its number in a file."""
    label: str
    file_sizes: Int64s
    """int64 [members that may be files, rows]: bytes of each file that a row had when it was listed, then -1."""

    def __iter__(self) -> Iterator[Sample]:
        finder = Finder(self.root)
        for start in range(0, len(self.rows), _AT_ONCE):
            part = self.take(slice(start, min(start + _AT_ONCE, len(self.rows))))
            columns = Columns(self.layout, finder, [_one_chunk(column) for column in part.columns])
            for row in range(part.num_rows):
                yield self._sample(columns, row, start + row)

    def _sample(self, columns: Columns, row: int, place: int) -> Sample:
        number, sizes = int(self.rows[place]), iter(self.file_sizes[:, place].tolist())
        try:
            members: list[tuple[str, Payload]] = [
                (extension, FilePayload(data.path, next(sizes)) if isinstance(data, NamedFile) else cast("bytes", data))
                for extension, data in columns.members(row)
            ]
            key = columns.key(row, number, members)
        except RowError as error:
            where = self.where[place] if self.where else f"{self.label}, row {number:,}"
            return broken(columns.text_key(row) or numbered(number), SourceError(f"{where}: {error}"))
        return key, sorted(members, key=lambda member: member[0])


def _one_chunk(column: Any) -> Any:
    """Return a column as one array; rows of chunked arrays would be searched chunk by chunk."""
    if not hasattr(column, "num_chunks"):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _listed(
    kind: str,
    label: str,
    home: Path,
    table: Table,
    stamps: tuple[FileStamp, ...],
    options: SourceOptions,
    taker: Callable[[list[str]], _OfFiles | _OfText | _OfDataset],
) -> Source:
    """List the rows of a table; ``home`` is the folder that paths start from by default."""
    wanted = check_columns(options.columns)
    finder = Finder.of(home, options.root)
    bad = [LeftOut(f"row {number:,}", reason) for number, reason in table.bad_rows]
    if not table.num_rows:
        why = f", such as {bad[0].key}: {bad[0].reason}" if bad else ""
        raise SourceError(f"{label} holds no row that could be a sample{why}: is it the right file?")
    has_paths = stamps or options.root is not None  # the current folder may hold anything
    with tables.reading(label):
        columns = _columns(table, finder.root if has_paths else os.devnull, is_text=kind in ("csv", "tsv"))
        layout = _numbered(choose(columns, wanted, label, _OTHER_SEPARATORS.get(kind, "")), table, label, wanted)
        listing = TableListing(table, layout, finder, options.on_error)
        listing.read(digests=not stamps)
    left_out = (*bad, *(listing.wrong[number] for number in sorted(listing.wrong)))
    notes = {**({} if layout.classes is None else {"classes": list(layout.classes)}), "columns": layout.notes()}
    state = hashlib.sha256(f"{kind}\0{notes}\0{listing.state.hexdigest()}\n".encode("utf-8", "surrogatepass"))
    for stamp in stamps:
        name = os.path.relpath(stamp.path, home)
        state.update(f"{name}\0{stamp.size}\0{stamp.mtime_ns}\n".encode("utf-8", "surrogatepass"))
    for one in left_out:
        state.update(f"{one.key}\0{one.reason}\n".encode("utf-8", "surrogatepass"))
    rows_of = taker([layout.columns[place].name for place in layout.used()])
    sizes, files = np.frombuffer(listing.sizes, np.int64), np.frombuffer(listing.files, np.int64)
    files = files.reshape(len(sizes), -1) if listing.most_files else np.zeros((len(sizes), 0), np.int64)
    is_parquet = isinstance(rows_of, _OfFiles) and rows_of.kind == "parquet"

    def take(rows: Int64s) -> _RowSamples:
        for stamp in stamps if kind in _TEXTS else ():
            stamp.check()
        where = None if kind == "hf" else [table.row_name(row) for row in rows.tolist()]
        own = np.ascontiguousarray(files[rows].T)
        return _RowSamples(rows_of.sent(rows), layout, finder.root, rows, where, label, own)

    contents = Contents(
        sizes=sizes,
        take=take,
        notes=notes,
        left_out=left_out,
        blocks=Blocks(table.starts, listing.weights, _BLOCK_BYTES) if is_parquet else None,
        layouts=listing.sorted_layouts,
    )
    kept = np.delete(np.arange(len(sizes)), list(listing.wrong)) if listing.wrong else None
    return Source(kind, label, state.hexdigest(), lambda _: contents if kept is None else contents.only(kept))


def _columns(table: Table, root: str, *, is_text: bool) -> list[Column]:
    """Return the contents of each column, by its type and first values; paths are looked up under ``root``."""
    types = tables.pyarrow().types
    classes, found = _class_names(table.schema.metadata or {}), []
    for one in table.schema:
        kind = one.type.value_type if types.is_dictionary(one.type) else one.type
        extension, content = "", "other"
        if one.metadata == JSON_TEXT:
            found.append(Column(one.name, "other", is_json=True))
            continue
        if not one.name:
            content = "empty"  # such as the index of pandas, which is no data
        elif is_bytes(one.type):
            content, extension = "bytes", _extension(next(iter(_first(table, one.name, 1)), None))
        elif types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
            column = paths_or_texts(one.name, tuple(_first(table, one.name, _FIRST)), root)
            if is_text and column.content == "path" and paths_or_texts("", (one.name,), root).content == "path":
                raise SourceError(
                    f"{table.label}: the first row holds {one.name!r}, a file like those of the rows below: add a row "
                    f"above it that names the columns"
                )
            found.append(column)
            continue
        elif types.is_integer(kind) or (types.is_boolean(kind) and one.name.lower() in ("label", "class", "cls")):
            content = "integer"
        elif types.is_floating(kind):
            content = "number"
        elif is_numbers(one.type) or types.is_null(one.type):
            content = "empty" if types.is_null(one.type) else "list"
        found.append(Column(one.name, content, extension, classes.get(one.name)))  # type: ignore[arg-type]
    return found


def _first(table: Table, name: str, most: int) -> list[Any]:
    """Return the first values of a column that are not missing."""
    found: list[Any] = []
    for batch in table.batches([name], rows=max(most, 16)):
        values = batch.column(0)[: max(most, 16)].to_pylist()
        found += [value for value in values if value is not None][: most - len(found)]
        if len(found) >= most:
            break
    return found


def _extension(value: Any) -> str:
    """Return the extension of bytes, or of a struct of bytes and a path, or an empty string."""
    data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
    return extension_of(data or b"") or (suffix(path) if path else "")


def _class_names(metadata: dict[bytes, bytes]) -> dict[str, tuple[str, ...]]:
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


def _numbered(layout: Layout, table: Table, label: str, wanted: Mapping[str, str]) -> Layout:
    """Return a layout with its texts of classes numbered, for which all of them are read once.

    Raises `SourceError` for integers among them, which would be other classes, unless ``wanted`` maps the column.
    """
    place = layout.texts_of_classes()
    if place is None:
        return layout
    name, texts = layout.columns[place].name, set[str]()
    for batch in table.batches([name]):
        texts.update(text for text in batch.column(0).unique().to_pylist() if text is not None)
        if len(texts) > _MOST_CLASSES:
            raise SourceError(
                f"column {name!r} of {label} holds more than {_MOST_CLASSES:,} different texts, too many for classes: "
                f"map it, as in columns={{{name!r}: 'txt'}}"
            )
    ordered = sorted(texts)
    integers = [text for text in ordered if re.fullmatch(r"[-+]?[0-9]+", text.strip())]
    if integers and name not in wanted and integers != list(map(str, range(len(ordered)))):
        others = sorted(texts.difference(integers))
        advice = f"; if a text such as {others[-1]!r:.100} stands for no value, leave it empty" if others else ""
        raise SourceError(
            f"column {name!r} of {label} holds integers as texts, such as {integers[0]!r:.100}, which would be "
            f"numbered in the order of all texts: keep them by columns={{{name!r}: 'index'}}, or number them by "
            f"'cls'{advice}"
        )
    return layout.with_classes(place, texts)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_file(path))
    except (ValueError, RecursionError, OSError) as error:
        raise SourceError(f"{path} cannot be read as JSON ({error}): fetch it again") from error
    if not isinstance(found, dict):
        raise SourceError(f"{path} holds no JSON object: fetch it again")
    return found
