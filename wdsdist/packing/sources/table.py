"""Tables whose rows are samples: CSV, TSV, JSON Lines, Parquet and Arrow files, and ``Dataset`` objects.

All are read as Arrow by `wdsdist.packing.tables`. A first pass over the rows finds their sizes and keys, and the files
that they name; the rows of a shard are read again where they are written.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from wdsdist import storage
from wdsdist._util.file_types import extension_of
from wdsdist._util.files import read_file
from wdsdist._util.pools import Carried
from wdsdist.errors import ArgumentError, SourceError, given
from wdsdist.packing.members import LeftOut
from wdsdist.packing.options import Options
from wdsdist.packing.sources.columns import LABEL_NAMES, Column, Content, check_columns, choose, suffix
from wdsdist.packing.sources.source import Candidate, FileStamp, Source
from wdsdist.packing.sources.table_rows import Finder, TableFiles, is_bytes, is_numbers, list_rows
from wdsdist.packing.tables.arrays import JSON_TEXT, pyarrow
from wdsdist.packing.tables.open import SUFFIXES, Kind, kind_of, open_table
from wdsdist.packing.tables.table import Table, reading

_BESIDE = (".md", ".txt", ".json", ".yaml", ".yml", ".crc")  # notes that lie beside tables and are not samples
_SPLIT = re.compile(r"(?:^|[-_.])(train|test|validation|valid|val|dev)(?=[-_.])")
_MOST_CLASSES = 65_536
"""Different strings that are numbered as classes."""
STATE, _DICT = "state.json", "dataset_dict.json"

_FIRST = 100
"""Strings of a column that are looked up as paths."""
_BLOCK_BYTES = 256 << 20
"""Memory for the decoded row groups of Parquet that are read in turn."""


def find(candidate: Candidate, options: Options) -> Source | None:
    """List the rows of a file, or of Parquet and Arrow files of a folder or a pattern; else return ``None``."""
    path = candidate.path
    if path.is_file():
        kind = kind_of(path.name) if options.kind is None else options.kind
        return _listed(kind, path, path.parent, [path], options) if kind in SUFFIXES else None
    pattern = path.name if candidate.names is None else ""
    folder = path.parent if pattern else path
    names = candidate.names
    if pattern and re.search(r"[*?\[]", pattern) and folder.is_dir():
        names = tuple(os.listdir(folder))  # noqa: PTH208 - names alone
    table = together(str(path), str(folder), names or (), pattern, options.kind)
    if table is None or not all((folder / name).is_file() for name in table[1]):  # Spark writes folders of such names
        return None
    return _listed(table[0], path, folder, [folder / name for name in table[1]], options)


def find_saved(candidate: Candidate, options: Options) -> Source | None:
    """List the rows of a folder that ``save_to_disk`` of ``datasets`` wrote; return ``None`` for other folders."""
    path = candidate.path
    splits = sorted(state.parent.name for state in path.glob(f"*/{STATE}")) if (path / _DICT).is_file() else []
    if len(splits) > 1:
        raise SourceError(f"{path} holds the splits {', '.join(splits)}: name one, for instance {path / splits[0]}")
    path = path / splits[0] if splits else path
    if not (path / STATE).is_file():
        return None
    try:
        state = json.loads(read_file(path / STATE))
        names = sorted(file["filename"] for file in state["_data_files"])
        is_selection = bool(state.get("_indices_data_files"))
    except (ValueError, RecursionError, OSError, LookupError, TypeError, AttributeError) as error:
        raise SourceError(f"{path / STATE} names no data files ({error}): fetch it again") from error
    paths = sorted(path.glob("*.arrow"))
    if not paths or [file.name for file in paths] != names:
        raise SourceError(f"{path} does not hold the data files that its {STATE} names: fetch it again")
    if is_selection:
        raise SourceError(
            f"{path} holds a selection of its rows: call flatten_indices() before save_to_disk(), with datasets"
        )
    return _listed("hf", path, path, paths, options)


def of_dataset(dataset: Any, label: str, options: Options) -> Source:
    """List the rows of a ``Dataset`` object of ``datasets``, as of a folder that its ``save_to_disk`` wrote.

    Paths in it start from the current folder, if ``root=`` names it; else strings are not paths.
    """
    return _listed("hf", label, Path.cwd(), Carried(open_table(dataset, label=label)), options)


def together(
    label: str, folder: str, names: Iterable[str], pattern: str = "", kind: str | None = None
) -> tuple[str, list[str]] | None:
    """Return the kind and the names of the files in a folder that are one table; ``None`` if they are not.

    That is what matches a pattern, or all files of a folder that holds nothing but tables and notes.

    Raises `SourceError` for the files of a training set and its test set together.
    """
    visible = sorted(name for name in names if not name.startswith((".", "_")))
    for several in ("parquet", "arrow"):
        suffixes = SUFFIXES[several]
        chosen = [name for name in visible if "/" not in name and name.lower().endswith(suffixes)]
        chosen = [name for name in chosen if fnmatch.fnmatchcase(name, pattern)] if pattern else chosen
        is_alone = all(name.lower().endswith((*suffixes, *_BESIDE)) for name in visible)
        if not chosen or kind not in (None, several) or not (pattern or kind or is_alone):
            continue
        splits: dict[str, str] = {}
        for name in chosen:
            if match := _SPLIT.search(name):
                splits.setdefault(match[1], name)
        if len(splits) > 1:
            first = next(iter(splits))
            example = splits[first].partition(first)[0] + first + "*" + Path(splits[first]).suffix
            raise SourceError(
                f"{label} holds files of {' and '.join(splits)}: name one split, as in '{folder}/{example}'"
            )
        return several, chosen
    return None


def _listed(
    kind: str, location: str | Path, home: Path, given: list[Path] | Carried[Table], options: Options
) -> Source:
    """List the rows of files or of a ``Dataset`` object; ``home`` is the folder that paths start from by default.

    Raises `ArgumentError` for a ``root=`` that is not a local folder.
    """
    mapped, label, root = check_columns(options.columns), str(location), storage.normalise(options.root or home)
    if storage.is_remote(root) or not Path(root).is_dir():
        problem = f"root is {storage.shown(root)}, which is not a local folder"
        raise ArgumentError(f"{problem}: name the folder that paths in the table start from", argument="root")
    finder = Finder(root)
    source: TableFiles | Carried[Table]
    stamps: tuple[FileStamp, ...] = ()
    if isinstance(given, Carried):
        source, table = given, given.value
    else:
        stamps = tuple(map(FileStamp.of, given))
        source = TableFiles(stamps, cast("Kind", "arrow" if kind == "hf" else kind))
        table = open_table(given, kind=source.kind, label=label, on_error=options.on_error, scratch=options.scratch)
    has_paths = stamps or options.root is not None  # the current folder may hold anything
    bad = [LeftOut(f"row {number:,}", reason) for number, reason in table.bad_rows]
    if not table.num_rows:
        why = f", such as {bad[0].key}: {bad[0].reason}" if bad else ""
        raise SourceError(f"{label} holds no row that could be a sample{why}: is it the right file?")
    with reading(label):
        columns = _columns(table, mapped, finder.root if has_paths else os.devnull, is_text=kind in ("csv", "tsv"))
        columns = choose(columns, mapped, label)
        for number, column in enumerate(columns):
            if column.is_label and column.content == "text":
                columns[number] = replace(column, classes=_classes(column, table, mapped))
        used = tuple(column for column in columns if column.member)
        block_bytes = _BLOCK_BYTES if kind == "parquet" else None
        contents, digest = list_rows(source, table, used, finder, options.on_error, block_bytes)
    classes = next((column.classes for column in used if column.is_label), None)
    notes: dict[str, Any] = {} if classes is None else {"classes": list(classes)}
    notes["columns"] = {column.name: column.member for column in columns if column.name}
    contents = replace(contents, notes=notes, left_out=(*bad, *contents.left_out))
    files = [(os.path.relpath(stamp.path, home), *stamp[1:]) for stamp in stamps]
    return Source(kind, label, f"{notes}\0{digest}\0{files}\0{contents.left_out}", lambda: contents)


def _columns(table: Table, mapped: Mapping[str, str], root: str, *, is_text: bool) -> list[Column]:
    """Return the contents of each column, by its type and first values; paths are looked up under ``root``.

    Raises `SourceError` for a CSV or TSV that has no row of names, or another separator.
    """
    types = pyarrow().types

    def is_path(string: str) -> bool:
        return bool(suffix(string)) and os.path.isfile(os.path.join(root, string))  # noqa: PTH113, PTH118 - Path refuses a NUL

    classes, columns = _class_names(table.schema.metadata or {}), list[Column]()
    if is_text and len(table.schema) == 1 and not mapped and (wrong := re.search(r"[,;|\t]", table.schema.names[0])):
        raise SourceError(
            f"{table.label} has a single column, {table.schema.names[0]!r}, whose fields seem to be separated by "
            f"{wrong[0]!r}: write the table with commas (.csv) or tabs (.tsv), or map the column by {given('columns')}"
        )
    for field in table.schema:
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        content: Content = "other"
        extension, strings = "", tuple[str, ...]()
        if not field.name or types.is_null(kind):  # such as the index of pandas, which is not data
            content = "empty"
        elif field.metadata == JSON_TEXT:
            pass
        elif is_bytes(field.type):
            value = next(iter(_first(table, field.name, 1)), None)
            data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
            content, extension = "bytes", extension_of(data or b"") or (suffix(path) if path else "")
        elif types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
            strings = tuple(_first(table, field.name, _FIRST))
            path = next(filter(is_path, strings), None)
            if is_text and path is not None and is_path(field.name):
                problem = f"{table.label}: the first row holds {field.name!r}, a file like the rows below"
                raise SourceError(f"{problem}: add a row above it that names the columns")
            content, extension = ("text", "") if path is None else ("path", suffix(path))
        elif types.is_integer(kind) or (types.is_boolean(kind) and field.name.lower() in LABEL_NAMES):
            content = "integer"
        elif types.is_floating(kind):
            content = "number"
        elif is_numbers(field.type):
            content = "list"
        names = classes.get(field.name) if content == "integer" else None
        columns.append(Column(field.name, content, extension, names, strings, field.metadata == JSON_TEXT))
    return columns


def _first(table: Table, name: str, most: int) -> list[Any]:
    """Return the first values of a column that are not missing."""
    batches = table.batches([name], rows=max(most, 16))
    return list(
        itertools.islice((value.as_py() for each in batches for value in each.column(0) if value.is_valid), most)
    )


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


def _classes(column: Column, table: Table, mapped: Mapping[str, str]) -> tuple[str, ...]:
    """Return the strings of a column of classes, sorted: all of them are read.

    Raises `SourceError` for integers among them, which would be other classes, unless ``mapped`` maps the column.
    """
    name, strings = column.name, set[str]()
    for batch in table.batches([name]):
        strings.update(string for string in batch.column(0).unique().to_pylist() if string is not None)
        if len(strings) > _MOST_CLASSES:
            problem = f"column {name!r} of {table.label} holds more than {_MOST_CLASSES:,} different strings"
            raise SourceError(f"{problem}, too many for classes: map it, as in {given('columns', {name: 'txt'})}")
    integers = sorted(string for string in strings if re.fullmatch(r"[-+]?[0-9]+", string.strip()))
    if integers and name not in mapped and integers != list(map(str, range(len(strings)))):
        raise SourceError(
            f"column {name!r} of {table.label} holds integers as strings, such as {integers[0]!r:.100}, which would be "
            f"numbered in the order of all strings: keep them by "
            f"{given('columns', {name: 'index'})}, or number them by 'cls'"
        )
    return tuple(sorted(strings))
