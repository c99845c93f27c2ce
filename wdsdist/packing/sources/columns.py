"""The rules of the columns of a table: which gives the key, which become members, and with which extensions.

Each row is a sample. ``columns=`` (``--column``) says for a column by name: an extension, such as ``"jpg"`` or
``"mask.png"``; ``"__key__"``, for the key; or ``""``, to leave it out. The other columns follow these rules:

1. ``__key__``, ``key`` or ``id``, the first of them that holds integers or strings, gives the key. Without any, the key
   is the number of the row, from 0, with nine digits.
2. Paths become the files that they name, each with its own extension in lower case. A column of strings holds paths if
   one of its first 100 values names a file, relative to the folder of the table; then all its values must.
3. Bytes become a member. Its extension is the type of the first value (jpg, png, webp, gif, flac, wav, mp3, npy, ...),
   or else the column's name. Structs of ``bytes`` and ``path``, as in ``datasets``, are bytes, or else a path.
4. Class labels with names, as in ``datasets``, and integers or strings named ``label``, ``class`` or ``cls`` become
   ``cls``; strings become their number in the sorted list of all, which ``index.json`` keeps as ``classes``.
5. Lists of numbers of a Parquet or Arrow file become ``<column>.npy``.
6. The strings named ``caption``, ``text`` or ``txt``, or the only column of strings, become ``txt``.
7. All other columns become one ``json`` member: an object with an entry for each.

Objects in a column named ``json``, if no other column comes under rule 7, are that member itself; numbers in a column
named ``npy`` become ``npy``. An extension that an earlier column has taken becomes ``<column>.<extension>``. A column
without a name, without any value, or with a note of readers, such as ``__url__``, is left out. A missing value (an
empty field of a CSV, a null) is an absent member; in the ``json`` member of rule 7 it is a null. If ``columns=`` maps a
column of strings to an extension that strings cannot be encoded as, such as ``jpg``, they are paths.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from wdsdist._util.arrow import pyarrow
from wdsdist._util.file_types import extension_of, last_part
from wdsdist.errors import ArgumentError, SourceError, given
from wdsdist.packing.sources.source import READERS_NOTES
from wdsdist.packing.tables.table import Table
from wdsdist.packing.tables.text import JSON_TEXT

KEY = "__key__"
_KEY_NAMES = (KEY, "key", "id")
_LABEL_NAMES = frozenset(("label", "class", "cls"))
_TEXT_NAMES = frozenset(("caption", "text", "txt"))
_OF_TEXT = frozenset(("txt", "text", "transcript", "cls", "cls2", "index", "inx", "id", "json", "jsn"))
"""What a string can be encoded as, by the last part of an extension."""
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_MEDIA_PATH = re.compile(
    r"(?!\w+://).+\.(?:jpe?g|png|webp|gif|tiff?|bmp|flac|wav|mp3|ogg|opus|m4a|mp4|webm|npy|npz)\s*", re.IGNORECASE
)
_MOST_CLASSES = 65_536
"""Different strings that are numbered as classes."""
_FIRST = 100
"""Strings of a column that are looked up as paths."""

Content = Literal["empty", "integer", "number", "text", "path", "bytes", "list", "other"]


@dataclass(frozen=True, slots=True)
class Column:
    """The contents of a column, as far as the rules ask, and the member that it becomes."""

    name: str
    content: Content
    extension: str = ""
    """The extension of the first path or bytes, if it is known."""
    classes: tuple[str, ...] | None = None
    """Names of its integers, or the strings that are numbered."""
    values: tuple[str, ...] = ()
    """The first strings, until the member is chosen."""
    is_json: bool = False
    """Whether its strings are JSON."""
    member: str = ""
    """An extension, which ends in ``*`` if each file has its own; `KEY`; empty if the column becomes nothing."""
    is_entry: bool = False
    """Whether it is an entry of the object in the ``json`` member."""

    @property
    def is_file(self) -> bool:
        """Whether its values are paths of the files that it becomes."""
        is_text = last_part(self.member.lower().removesuffix(".gz")) in _OF_TEXT
        return self.member != KEY and (self.content == "path" or (self.content == "text" and not is_text))

    @property
    def is_label(self) -> bool:
        """Whether it becomes the number of a class."""
        return self.member == "cls" and not self.is_file


def suffix(path: str) -> str:
    """Return what follows the last dot of a file's name, in lower case."""
    name = path.rpartition("/")[2]
    return last_part(name) if "." in name[1:] else ""


def check_columns(columns: object) -> dict[str, str]:
    """Return ``columns=`` as a dict.

    Raises `ArgumentError` if it is not a mapping of names to extensions that a member can have.
    """
    columns = {} if columns is None else columns
    pairs: list[tuple[Any, Any]] = list(columns.items()) if isinstance(columns, Mapping) else [(columns, None)]
    for name, extension in pairs:
        is_name = isinstance(name, str) and isinstance(extension, str)
        if not is_name or (extension != KEY and re.search(r"[/\n\0*]|^\.|\.$|^__.*__$", extension)):
            raise ArgumentError(
                f"columns maps {name!r} to {extension!r}: it maps names of columns to extensions, such as 'jpg'",
                argument="columns",
            )
    extensions = Counter(extension.lower() for _, extension in pairs)
    if twice := [extension for extension, count in extensions.items() if extension and count > 1]:
        raise ArgumentError(f"columns maps two columns to {twice[0]!r}: give one another extension", argument="columns")
    return dict(pairs)


def columns_of(table: Table, mapped: Mapping[str, str], root: str, *, is_text: bool) -> list[Column]:
    """Return the columns of a table with their members by the rules above; paths in it start from ``root``.

    ``mapped`` is ``columns=``; ``is_text`` says that the table is a CSV or TSV. Raises `ArgumentError` if ``mapped``
    names no column, and `SourceError` if the rules do not fit the table, if its columns give no member, or hold paths
    of files that do not exist.
    """
    columns, label = _contents(table, mapped, root, is_text=is_text), table.label
    names = [column.name for column in columns if column.name]
    if unknown := [name for name in mapped if name not in names]:
        raise ArgumentError(
            f"columns names {unknown[0]!r}, but {label} has the columns {', '.join(names)}", argument="columns"
        )
    for column in columns:
        if mapped.get(column.name) == KEY and column.content not in ("integer", "text", "path"):
            raise ArgumentError(
                f"columns maps {column.name!r} to {KEY!r}: a key is a string or an integer", argument="columns"
            )
    members = dict(mapped)
    left = [c for c in columns if c.content != "empty" and c.name not in READERS_NOTES | mapped.keys()]
    keys = {c.name.lower(): c.name for c in reversed(left) if c.content in ("integer", "text")}
    if KEY not in members.values() and (key := next((keys[name] for name in _KEY_NAMES if name in keys), "")):
        members[key] = KEY
    taken = {member.lower() for member in members.values()}

    def is_label(column: Column) -> bool:
        is_named = column.content in ("integer", "text") and column.name.lower() in _LABEL_NAMES
        return column.classes is not None or (is_named and "cls" not in taken)

    left = [column for column in left if column.name not in members]
    texts = [column for column in left if column.content == "text" and not is_label(column)]
    named = [column for column in texts if column.name.lower() in _TEXT_NAMES]
    text, rest = next(iter(named or (texts if len(texts) == 1 else [])), None), list[Column]()
    for column in left:
        name = _OTHER.sub("_", column.name).strip("_") or "column"
        if column.content == "path":
            members[column.name] = f"{name}.*" if column.extension in taken else "*"
            taken.add(column.extension)
            continue
        if column.content == "bytes" or is_label(column):
            member = (column.extension or name) if column.content == "bytes" else "cls"
            member = f"{name}.{member}" if member.lower() in taken else member
        elif column.content == "list":
            member = name if name == "npy" else f"{name}.npy"
        elif column is text and "txt" not in taken:
            member = "txt"
        else:
            rest.append(column)
            continue
        members[column.name] = member
        taken.add(member.lower())
    if rest and "json" in taken:
        raise ArgumentError(
            f"{', '.join(column.name for column in rest)} of {label} would become the member json, which another "
            f"column is mapped to: give them extensions too, or leave them out, as in "
            f"{given('columns', {rest[0].name: ''})}",
            argument="columns",
        )
    members |= {column.name: "json" for column in rest}
    if not set(members.values()) - {"", KEY}:
        advice = f"map one, as in {given('columns', {'image': 'jpg'})}"
        raise SourceError(f"{label} has no column that can become a member: {advice}")
    is_object = [(column.name, column.content) for column in rest] != [("json", "other")]
    chosen = [
        replace(column, values=(), member=members.get(column.name, ""), is_entry=is_object and column in rest)
        for column in columns
    ]
    if not any(column.member and (column.is_file or column.content == "bytes") for column in chosen):
        # A table of paths that name files elsewhere would be packed without its files.
        for column in columns:
            is_used = column.name in mapped or members.get(column.name) == KEY
            if not is_used and column.values and all(map(_MEDIA_PATH.fullmatch, column.values)):
                raise SourceError(
                    f"column {column.name!r} of {label} looks like paths, but {column.values[0]!r:.300} is not a file "
                    f"beside it: name the folder that its paths start from by {given('root')}, or map the column, as "
                    f"in {given('columns', {column.name: 'txt'})}, if it is to be a string"
                )
    return [
        replace(column, classes=_classes(column, table, mapped))
        if column.is_label and column.content == "text" else column
        for column in chosen
    ]  # fmt: skip


def _contents(table: Table, mapped: Mapping[str, str], root: str, *, is_text: bool) -> list[Column]:
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
        elif types.is_integer(kind) or (types.is_boolean(kind) and field.name.lower() in _LABEL_NAMES):
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


def is_bytes(kind: Any) -> bool:
    """Return whether an Arrow type is binary, or the struct of bytes and path of images and audio in ``datasets``."""
    if pyarrow().types.is_struct(kind):
        types = {field.name: field.type for field in kind}
        return set(types) == {"bytes", "path"} and is_bytes(types["bytes"])
    return str(kind).partition("[")[0] in ("binary", "large_binary", "binary_view", "fixed_size_binary")


def is_numbers(kind: Any) -> bool:
    """Return whether an Arrow type is a list of integers or floats, such as token ids or embeddings."""
    types = pyarrow().types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)))
