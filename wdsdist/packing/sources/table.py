"""Tables whose rows are samples: CSV, TSV, JSON Lines, Parquet and Arrow files, and folders that ``datasets`` saved."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wdsdist._util.array_types import Int64s
from wdsdist._util.files import read_file
from wdsdist.errors import SourceError
from wdsdist.packing.sources.arrow_files import ArrowFile, ArrowTable, readable
from wdsdist.packing.sources.columns import Layout, check_columns, choose
from wdsdist.packing.sources.hf_dataset import DatasetTable
from wdsdist.packing.sources.listing import FILE, LINK
from wdsdist.packing.sources.source import Candidate, Contents, FileStamp, Source, SourceOptions
from wdsdist.packing.sources.table_rows import Finder, Row, RowSamples, TableListing, named_in
from wdsdist.packing.sources.text_files import TextTable

_OTHER_SEPARATORS = {"csv": ";\t|", "tsv": ";,|"}
_SUFFIXES = {
    "parquet": (".parquet", ".pq"), "arrow": (".arrow", ".feather", ".ipc"),
    "csv": (".csv",), "tsv": (".tsv", ".tab"), "jsonl": (".jsonl", ".ndjson"),
}  # fmt: skip
"""What the names of files of each kind end in."""

PARQUET = _SUFFIXES["parquet"]
SEVERAL = (*PARQUET, *_SUFFIXES["arrow"])
"""What those of the kinds end in of which several files are one table."""

_BESIDE = (".md", ".txt", ".json", ".yaml", ".yml", ".crc")  # notes that lie beside tables and are no samples
_SPLIT = re.compile(r"(?:^|[-_.])(train|test|validation|valid|val|dev)(?=[-_.])")
_MOST_CLASSES = 65_536
"""Different texts that are numbered as classes: more are no classes, but texts."""
STATE, _DICT = "state.json", "dataset_dict.json"


def find(candidate: Candidate, options: SourceOptions) -> Source | None:
    """List the rows of a file or, of Parquet and Arrow, of those in a folder or of a pattern; else return ``None``."""
    path = candidate.path
    if path is None:
        return None
    is_file, is_pattern = path.is_file(), re.search(r"[*?\[]", path.name) is not None
    for kind, suffixes in _SUFFIXES.items():
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
    """List the rows of a folder that ``save_to_disk`` of ``datasets`` wrote; return ``None`` for what is none."""
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

    Paths in it start from the current folder, unless ``root=`` names another.
    """
    table = DatasetTable(dataset, label, has_root=options.root is not None)
    return _listed("hf", label, Path.cwd(), table, options)


def _in_folder(candidate: Candidate, suffixes: tuple[str, ...], *, forced: bool) -> list[Path]:
    """Return the tables in a folder; none where there are files that are neither tables nor notes beside them."""
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
        match = _SPLIT.search(name)
        if match:
            splits.setdefault(match[1], name)
    if len(splits) > 1:
        first = next(iter(splits))
        pattern = splits[first].partition(first)[0] + first + "*" + Path(splits[first]).suffix
        raise SourceError(f"{label} holds files of {' and '.join(splits)}: name those of one, as in '{root}/{pattern}'")


def _source(kind: str, location: Path, home: Path, paths: list[Path], options: SourceOptions) -> Source:
    for path in paths:
        if not path.is_file():
            raise SourceError(f"{path} does not exist, but {location} names it: fetch it again")
    with readable(str(location)):
        if kind in ("csv", "tsv", "jsonl"):
            table: ArrowTable = TextTable(paths[0], kind, options.scratch, options.on_error)
        else:
            stamps = tuple(map(FileStamp.of, paths))
            table = ArrowTable(stamps, [ArrowFile(stamp.path) for stamp in stamps])
    return _listed(kind, str(location), home, table, options)


def _listed(kind: str, label: str, home: Path, table: ArrowTable, options: SourceOptions) -> Source:
    """List the rows of a table; ``home`` is the folder that paths start from by default."""
    wanted = check_columns(options.columns)
    finder = Finder.of(home, options.root, allow_outside=options.allow_outside)
    with readable(label):
        if not table.starts[-1]:
            bad = "".join(f", such as {one.key}: {one.reason}" for one in table.left_out()[:1])
            raise SourceError(f"{label} holds no row that could be a sample{bad}: is it the right file?")
        separators = _OTHER_SEPARATORS.get(kind, "")
        layout = _numbered(choose(table.columns(finder.root), wanted, label, separators), table, label, wanted)
        listing = TableListing(layout, finder, table.place, options.on_error)
        rows = functools.partial(table.rows, layout.used(), layout.columns)
        listing.add(rows())
        if len(listing.sizes) != table.starts[-1]:
            raise SourceError(
                f"{label} gives {len(listing.sizes):,} rows, but its metadata tells of {table.starts[-1]:,}: fetch it "
                f"again"
            )
        listing.finish(rows)
    return Source(kind, label, _fingerprint(kind, str(home), table, listing), lambda _: _contents(table, listing))


def _numbered(layout: Layout, table: ArrowTable, label: str, wanted: Mapping[str, str]) -> Layout:
    """Return a layout with its texts of classes numbered, for which all of them are read once.

    Raises `SourceError` for integers among them, which would be other classes, unless ``wanted`` maps the column.
    """
    place = layout.texts_of_classes()
    if place is None:
        return layout
    name, texts = layout.columns[place].name, set[str]()
    for row in table.rows([place], layout.columns):
        if row[place] is not None:
            texts.add(str(row[place]))
        if len(texts) > _MOST_CLASSES:
            raise SourceError(
                f"column {name!r} of {label} holds more than {_MOST_CLASSES:,} different texts, too many for classes: "
                f"map it, as in columns={{{name!r}: 'txt'}} (--column {name}=txt)"
            )
    ordered = sorted(texts)
    integers = [text for text in ordered if re.fullmatch(r"[-+]?[0-9]+", text.strip())]
    if integers and name not in wanted and integers != list(map(str, range(len(ordered)))):
        others = sorted(texts.difference(integers))
        advice = f"; where a text such as {others[-1]!r:.100} stands for no value, leave it empty" if others else ""
        raise SourceError(
            f"column {name!r} of {label} holds integers as texts, such as {integers[0]!r:.100}, which would be "
            f"numbered in the order of all texts: keep them by columns={{{name!r}: 'index'}} (--column {name}=index), "
            f"or number them by 'cls'{advice}"
        )
    return layout.with_classes(place, texts)


def _contents(table: ArrowTable, listing: TableListing) -> Contents:
    layout, kept, used = listing.layout, listing.kept, listing.layout.used()
    finder = Finder(listing.finder.root, listing.finder.allow_outside)  # without the folders that the other resolved

    def take(rows: Int64s) -> RowSamples:
        return RowSamples(table.take(rows, used), layout, finder, rows, listing.file_sizes(rows))

    def origins() -> Iterator[tuple[str, str]]:
        no_rows: Iterable[Row] = itertools.repeat([], len(listing.sizes))
        rows = no_rows if layout.key is None else table.rows([layout.key], layout.columns)
        return (("", key) for key in listing.row_keys(rows))

    contents = Contents(
        sizes=listing.stored_sizes(),
        take=take,
        origins=origins,
        has_exact_sizes=table.has_exact_sizes(used, layout.columns),
        notes={**({} if layout.classes is None else {"classes": list(layout.classes)}), "columns": layout.notes()},
        left_out=(*table.left_out(), *listing.left_out()),
        blocks=table.blocks(),
    )
    return contents if kept is None else contents.only(kept)


def _fingerprint(kind: str, home: str, table: ArrowTable, listing: TableListing) -> str:
    notes, classes, digest = listing.layout.notes(), listing.layout.classes, listing.state.hexdigest()
    state = hashlib.sha256(f"{kind}\0{notes}\0{classes}\0{digest}\n".encode("utf-8", "surrogatepass"))
    for file in table.stamps:
        name = os.path.relpath(file.path, home)
        state.update(f"{name}\0{file.size}\0{file.mtime_ns}\n".encode("utf-8", "surrogatepass"))
    state.update(table.digest.encode())
    for one in (*table.left_out(), *listing.left_out()):
        state.update(f"{one.key}\0{one.reason}\n".encode("utf-8", "surrogatepass"))
    return state.hexdigest()


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_file(path))
    except (ValueError, RecursionError, OSError) as error:
        raise SourceError(f"{path} cannot be read as JSON ({error}): fetch it again") from error
    if not isinstance(found, dict):
        raise SourceError(f"{path} holds no JSON object: fetch it again")
    return found
