"""Parquet and Arrow files, and folders that ``datasets`` saved, as tables whose rows are samples.

Sizes are exact, but for the columns of bytes in Parquet files: to know those, all data would have to be decoded, so the
mean of each row group stands for them.
"""

from __future__ import annotations

import functools
import json
import os
import re
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SourceError
from wdsdist.packing.sources.arrow import KEPT_BYTES, ArrowFile, ArrowRows, is_bytes, is_numbers, pyarrow, readable
from wdsdist.packing.sources.base import Blocks, OnError, Source
from wdsdist.packing.sources.kinds import SourceOptions
from wdsdist.packing.sources.mapping import Column, Layout, check_columns, choose, suffix
from wdsdist.packing.sources.media import extension_of
from wdsdist.packing.sources.paths import Root, lies_below
from wdsdist.packing.sources.profile import paths_or_texts
from wdsdist.packing.sources.rows import Listing, Row
from wdsdist.packing.sources.table import Stamp, TableSource, listed

SUFFIXES = {"parquet": (".parquet", ".pq"), "arrow": (".arrow", ".feather", ".ipc")}
"""The kinds, and what the names of their files end in."""

_BESIDE = (".md", ".txt", ".json", ".yaml", ".yml", ".crc")  # notes that lie beside tables and are no samples
_SPLIT = re.compile(r"(?:^|[-_.])(train|test|validation|valid|val|dev)(?=[-_.])")
_STATE, _DICT = "state.json", "dataset_dict.json"
_FIRST = 100  # texts that are looked up as paths


class _Groups(NamedTuple):
    """All groups of some files, in order."""

    starts: Int64s
    """int64 [groups + 1]: number of the first row of each, and of all rows."""
    files: Int64s
    """int64 [groups]: number of the file of each."""
    numbers: Int64s
    """int64 [groups]: number of each in its file."""


def find(path: Path, options: SourceOptions, *, kind: str) -> Source | None:
    """List the rows of a file, of the files in a folder or of those that a pattern matches; else return ``None``."""
    suffixes = SUFFIXES[kind]
    if path.is_file():
        fits = options.kind == kind or path.name.lower().endswith(suffixes)
        return _source(kind, path, path.parent, [path], options) if fits else None
    if path.is_dir():
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name.lower()
                if name.startswith((".", "_")):
                    continue
                if options.kind != kind and not (entry.is_file() and name.endswith((*suffixes, *_BESIDE))):
                    return None
                if name.endswith(suffixes):
                    found.append(path / entry.name)
    elif re.search(r"[*?\[]", path.name) and path.name.lower().endswith(suffixes):
        found = list(path.parent.glob(path.name))
    else:
        return None
    return _of_one_split(kind, path, sorted(found, key=os.fsencode), options)


def find_saved(path: Path, options: SourceOptions) -> Source | None:
    """List the rows of a folder that ``save_to_disk`` of ``datasets`` wrote; return ``None`` for what is none."""
    if (path / _DICT).is_file():
        splits = _json(path / _DICT).get("splits")
        if not isinstance(splits, list) or not splits or not all(isinstance(name, str) for name in splits):
            raise SourceError(f"{path / _DICT} names no splits: is the folder whole?")
        if len(splits) > 1:
            raise SourceError(f"{path} holds the splits {', '.join(splits)}: name one, for instance {path / splits[0]}")
        path = _inside(path, splits[0], _DICT)
    if not (path / _STATE).is_file():
        return None
    state = _json(path / _STATE)
    files = state.get("_data_files")
    names = [file.get("filename") for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    paths = [_inside(path, name, _STATE) for name in names if isinstance(name, str)]
    if not paths or len(paths) < len(names):
        raise SourceError(f"{path / _STATE} names no data files: is the folder whole?")
    if state.get("_indices_data_files"):
        raise SourceError(
            f"{path} holds a selection of its rows: call flatten_indices() before save_to_disk(), with datasets"
        )
    return _source("hf", path, path, paths, options)


def _inside(folder: Path, name: str, note: str) -> Path:
    """Return what a note of a folder names, which must be in it: ``save_to_disk`` names nothing else."""
    path = os.path.normpath(folder / name)
    if not lies_below(str(folder), path):
        raise SourceError(f"{folder / note} names {name!r:.300}, which lies outside its folder: save the data set anew")
    return Path(path)


def _of_one_split(kind: str, path: Path, files: list[Path], options: SourceOptions) -> Source | None:
    """Refuse files that are a training set and its test set together."""
    splits: dict[str, Path] = {}
    for file in files:
        match = _SPLIT.search(file.name)
        if match:
            splits.setdefault(match[1], file)
    if len(splits) > 1:
        first = next(iter(splits))
        pattern = splits[first].name.partition(first)[0] + first + "*" + SUFFIXES[kind][0]
        folder = path if path.is_dir() else path.parent
        raise SourceError(
            f"{path} holds files of {' and '.join(splits)}: name those of one, as in '{folder / pattern}'"
        )
    return _source(kind, path, path if path.is_dir() else path.parent, files, options) if files else None


def _source(kind: str, location: Path, home: Path, paths: list[Path], options: SourceOptions) -> TableSource:
    wanted = check_columns(options.columns)
    root = Root.of(home, options.root, allow_outside=options.allow_outside)
    for path in paths:
        if not path.is_file():
            raise SourceError(f"{path} does not exist, but {location} names it: fetch it again")
    with readable(str(location)):
        stamps = tuple(map(Stamp.of, paths))
        files = [ArrowFile(stamp.path) for stamp in stamps]
        _check_schemas(files)
        layout = choose(_columns(files, root.folder), wanted, str(location))
        return _listed(kind, location, home, root, layout, stamps, files, _all_groups(files), options.on_error)


def _listed(
    kind: str,
    location: Path,
    home: Path,
    root: Root,
    layout: Layout,
    stamps: tuple[Stamp, ...],
    files: list[ArrowFile],
    groups: _Groups,
    on_error: OnError,
) -> TableSource:
    used = tuple(layout.used())
    byte_columns = tuple(place for place in used if layout.columns[place].content == "bytes")
    estimated = byte_columns if any(file.is_parquet for file in files) else ()
    listing = Listing(layout, root, on_error)
    weights = array("q", bytes(8 * len(groups.files)))

    def place(index: int) -> str:
        if index >= groups.starts[-1]:
            return str(location)
        return ArrowRows(stamps, _located(groups, np.array([index])), used, 0).place(0)

    def rows() -> Iterator[Row]:
        for group, (file, number) in enumerate(zip(groups.files.tolist(), groups.numbers.tolist(), strict=True)):
            weights[group] = 0
            with readable(files[file].path):
                for part, weight in files[file].listing(number, used, estimated if files[file].is_parquet else ()):
                    weights[group] += weight
                    yield from part

    listing.add(rows(), place)
    listed(listing, rows, place)
    sizes, file_sizes = listing.arrays()
    is_parquet = any(file.is_parquet for file in files)
    return TableSource(
        kind=kind,
        location=str(location),
        home=str(home),
        root=root,
        layout=layout,
        files=stamps,
        digest=listing.state.hexdigest(),
        sizes=sizes,
        file_sizes=file_sizes,
        take_rows=functools.partial(_take, stamps, groups, used, len(layout.columns)),
        kept=listing.kept(),
        left_out=listing.left_out(),
        has_exact_sizes=not estimated,
        groups=Blocks(groups.starts, np.array(weights, np.int64), KEPT_BYTES) if is_parquet else None,
    )


def _take(stamps: tuple[Stamp, ...], groups: _Groups, used: tuple[int, ...], width: int, indices: Int64s) -> ArrowRows:
    located = _located(groups, indices)
    needed, located[:, 0] = np.unique(located[:, 0], return_inverse=True)
    return ArrowRows(tuple(stamps[number] for number in needed.tolist()), located, used, width)


def _located(groups: _Groups, indices: Int64s) -> Int64s:
    """Return int64 [rows, 3]: file, group of the file, row of the group."""
    at = np.searchsorted(groups.starts, indices, side="right") - 1
    return np.stack((groups.files[at], groups.numbers[at], indices - groups.starts[at]), axis=1)


def _all_groups(files: list[ArrowFile]) -> _Groups:
    lengths = [file.lengths for file in files]
    return _Groups(
        np.concatenate(([0], np.cumsum([length for of_file in lengths for length in of_file]))).astype(np.int64),
        np.repeat(np.arange(len(files)), [len(of_file) for of_file in lengths]),
        np.concatenate([np.arange(len(of_file)) for of_file in lengths]),
    )


def _check_schemas(files: list[ArrowFile]) -> None:
    for file in files[1:]:
        if not file.schema.equals(files[0].schema):
            raise SourceError(
                f"{file.path} has other columns than {files[0].path}: {_shown(file)}, not {_shown(files[0])}"
            )


def _shown(file: ArrowFile) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in file.schema)


def _columns(files: list[ArrowFile], root: str) -> list[Column]:
    classes = _classes(files[0].schema.metadata or {})
    return [
        replace(_column(files, place, root), classes=classes.get(name))
        for place, name in enumerate(files[0].schema.names)
    ]


def _column(files: list[ArrowFile], place: int, root: str) -> Column:
    types = pyarrow().types
    name, kind = files[0].schema.names[place], files[0].schema.types[place]
    value = kind.value_type if types.is_dictionary(kind) else kind
    if is_bytes(kind):
        return Column(name, "bytes", _extension(next(iter(_first(files, place, 1)), None)))
    if types.is_string(value) or types.is_large_string(value):
        return paths_or_texts(name, tuple(_first(files, place, _FIRST)), root)
    if types.is_integer(value):
        return Column(name, "integer")
    if types.is_floating(value):
        return Column(name, "number")
    return Column(name, "list" if is_numbers(kind) else "empty" if types.is_null(kind) else "other")


def _first(files: list[ArrowFile], place: int, most: int) -> list[Any]:
    for file in files:
        with readable(file.path):
            found = file.first(place, most)
        if found:
            return found
    return []


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


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise SourceError(f"{path} cannot be read as JSON ({error}): fetch it again") from error
    if not isinstance(found, dict):
        raise SourceError(f"{path} holds no JSON object: fetch it again")
    return found
