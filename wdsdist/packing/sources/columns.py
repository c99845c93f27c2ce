"""The rules of the columns of a table: which gives the key, which become members, and with which extensions.

Each row is a sample. ``columns=`` (``--column``) says for a column by name: an extension, such as ``"jpg"`` or
``"mask.png"``; ``"__key__"``, for the key; or ``""``, to leave it out. The other columns follow these rules:

1. ``__key__``, ``key`` or ``id``, the first of them that holds integers or texts, gives the key. Without any, the key
   is the number of the row, from 0, with nine digits.
2. Paths become the files that they name, each with its own extension in lower case. A column of texts is one of paths
   if one of its first 100 values names a file, relative to the folder of the table; then all its values must.
3. Bytes become a member whose extension is told by the first value (jpg, png, webp, gif, flac, wav, mp3, npy, ...), or
   else is the column's name. Structs of ``bytes`` and ``path``, as in ``datasets``, are bytes, or else a path.
4. Class labels with names, as in ``datasets``, and integers or texts named ``label``, ``class`` or ``cls`` become
   ``cls``; of texts, their number in the sorted list of all, which ``index.json`` keeps as ``classes``.
5. Lists of numbers of a Parquet or Arrow file become ``<column>.npy``.
6. The texts named ``caption``, ``text`` or ``txt``, or the only column of texts, become ``txt``.
7. All other columns become one ``json`` member: an object with an entry for each.

Objects in a column named ``json``, where no other comes under rule 7, are that member itself; numbers in one named
``npy`` become ``npy``. An extension that an earlier column has taken becomes ``<column>.<extension>``. A column without
a name, without any value, or with a note of readers, such as ``__url__``, is left out. A missing value (an empty field
of a CSV, a null) is an absent member; in the ``json`` member of rule 7 it is a null. Where ``columns=`` maps a column
of texts to an extension that texts cannot be encoded as, such as ``jpg``, they are paths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing.sources.source import READERS_NOTES

KEY = "__key__"
_KEY_NAMES = (KEY, "key", "id")
_LABEL_NAMES = frozenset(("label", "class", "cls"))
_TEXT_NAMES = frozenset(("caption", "text", "txt"))
_OF_TEXT = frozenset(("txt", "text", "transcript", "cls", "cls2", "index", "inx", "id", "json", "jsn"))
"""What a text can be encoded as, by the last part of an extension."""
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_MEDIA = r"\.(?:jpe?g|png|webp|gif|tiff?|bmp|flac|wav|mp3|ogg|opus|m4a|mp4|webm|npy|npz)"
_MEDIA_PATH = re.compile(rf"(?!\w+://).+{_MEDIA}", re.IGNORECASE)

Content = Literal["empty", "integer", "number", "text", "path", "bytes", "list", "other"]


@dataclass(frozen=True, slots=True)
class Column:
    """The contents of a column, as far as the rules ask."""

    name: str
    content: Content
    extension: str = ""
    """Of paths and bytes: what the first value is, where that is known."""
    classes: tuple[str, ...] | None = None
    """Names of its integers."""
    values: tuple[str, ...] = ()
    """Of texts: the first ones."""
    is_json: bool = False
    """Whether its strings are JSON."""


@dataclass(frozen=True, slots=True)
class Member:
    """How a member is made of a row."""

    columns: tuple[int, ...]
    """Places of its columns; several where it is an object."""
    extension: str
    """Ends in ``*`` where each file has its own."""
    form: Literal["file", "value", "object"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of a table become samples."""

    columns: tuple[Column, ...]
    key: int | None
    """Place of the column with the key."""
    members: tuple[Member, ...]
    classes: tuple[str, ...] | None = None
    """Names of the numbers in ``cls``."""

    def notes(self) -> dict[str, str]:
        """Return what each column is packed as: an extension, ``"__key__"``, or ``""`` if it is left out."""
        found = {column.name: "" for column in self.columns if column.name}
        for member in self.members:
            found.update({self.columns[place].name: member.extension for place in member.columns})
        if self.key is not None:
            found[self.columns[self.key].name] = KEY
        return found

    def texts_of_classes(self) -> int | None:
        """Return the place of the column of texts that becomes ``cls`` and has to be numbered."""
        found = (member.columns[0] for member in self.members if member.extension == "cls" and member.form == "value")
        place = next(found, None)
        return None if place is None or self.columns[place].content != "text" else place

    def with_classes(self, place: int, texts: Iterable[str]) -> Layout:
        """Return the layout with the texts of such a column numbered, in their order once they are sorted."""
        classes = tuple(sorted(texts))
        columns = tuple(
            replace(column, classes=classes) if at == place else column for at, column in enumerate(self.columns)
        )
        return replace(self, columns=columns, classes=classes)

    def used(self) -> list[int]:
        """Return the places of the columns that are needed."""
        places = {place for member in self.members for place in member.columns}
        return sorted(places if self.key is None else places | {self.key})


def suffix(path: str) -> str:
    """Return what follows the last dot of a file's name, in lower case.

    >>> suffix("img.v2/0001.seg.PNG"), suffix("img.v2/README")
    ('png', '')
    """
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2].lower() if "." in name[1:] else ""


def check_columns(columns: object) -> dict[str, str]:
    """Return ``columns=`` as a dict.

    Raises `ArgumentError` if it is not a mapping of names to extensions that a member can have.
    """
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not all(isinstance(text, str) for pair in columns.items() for text in pair):
        raise ArgumentError(
            f"columns is {columns!r}: it maps names of columns to extensions, such as 'jpg'", argument="columns"
        )
    for name, extension in columns.items():
        if extension != KEY and re.search(r"[/\n\0*]|^\.|\.$|^__.*__$", extension):
            raise ArgumentError(
                f"columns maps {name!r} to {extension!r}, which is no extension such as 'jpg'", argument="columns"
            )
    return dict(columns)


def choose(columns: Sequence[Column], wanted: Mapping[str, str], label: str, separators: str = "") -> Layout:
    """Apply the rules above to each column; ``label`` names the table in errors.

    ``separators`` are the characters that a text may have been written with in place of its own separator.

    Raises `ArgumentError` if ``wanted`` names no column, and `SourceError` if the columns give no member, or hold
    paths of files that do not exist.

    >>> table = Column("image", "path", "jpg"), Column("id", "integer"), Column("label", "integer")
    >>> choose(table, {"id": ""}, "train.csv").notes()
    {'image': '*', 'id': '', 'label': 'cls'}
    """
    choice = _Choice(tuple(columns), wanted, label, separators)
    choice.check_names()
    choice.choose_key()
    choice.add_wanted()
    choice.add_default()
    if not choice.members:
        raise SourceError(f"{label} has no column that can become a member: map one, as in columns={{'image': 'jpg'}}")
    choice.check_paths()
    columns = tuple(replace(column, values=()) for column in choice.columns)  # they would travel with each shard
    return Layout(columns, choice.key, tuple(choice.members), choice.classes)


@dataclass(slots=True)
class _Choice:
    columns: tuple[Column, ...]
    wanted: Mapping[str, str]
    label: str
    separators: str
    key: int | None = None
    members: list[Member] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    classes: tuple[str, ...] | None = None
    text: Column | None = None
    """Becomes ``txt``."""
    rest: list[int] = field(default_factory=list)
    """Become one object."""

    def check_names(self) -> None:
        names = [column.name for column in self.columns if column.name]
        for name in self.wanted:
            if name not in names:
                raise ArgumentError(
                    f"columns names {name!r}, but {self.label} has the columns {', '.join(names)}", argument="columns"
                )
        for column in self.columns if len(names) == len(self.columns) == 1 and not self.wanted else ():
            marks = (one for one in self.separators if all(one in text for text in (column.name, *column.values)))
            mark = next(marks, "") if column.values else ""
            if mark:
                raise SourceError(
                    f"{self.label} has a single column, {column.name!r}, whose fields seem to be separated by "
                    f"{mark!r}: write the table with commas (.csv) or tabs (.tsv), or map the column by columns="
                )

    def choose_key(self) -> None:
        asked = [place for place, column in enumerate(self.columns) if self.wanted.get(column.name) == KEY]
        if len(asked) > 1:
            raise ArgumentError(f"columns maps {len(asked)} columns to {KEY!r}: there is one key", argument="columns")
        if asked and self.columns[asked[0]].content not in ("integer", "text", "path"):
            raise ArgumentError(
                f"columns maps {self.columns[asked[0]].name!r} to {KEY!r}: a key is a text or an integer"
            )
        usual = {
            column.name.lower(): place
            for place, column in reversed(list(enumerate(self.columns)))
            if column.name not in self.wanted and column.content in ("integer", "text")
        }
        self.key = asked[0] if asked else next((usual[name] for name in _KEY_NAMES if name in usual), None)

    def add_wanted(self) -> None:
        for place, column in enumerate(self.columns):
            extension = self.wanted.get(column.name, "")
            if place == self.key or not extension:
                continue
            if extension.lower() in self.taken:
                raise ArgumentError(
                    f"columns maps two columns to {extension!r}: give one another extension", argument="columns"
                )
            of_text = extension.lower().removesuffix(".gz").rpartition(".")[2] in _OF_TEXT
            is_file = column.content == "path" or (column.content == "text" and not of_text)
            self.add(place, extension, "file" if is_file else "value")

    def add_default(self) -> None:
        """Put each column that is left under the first of the rules 2 to 7 of this module that it meets."""
        left = [
            (place, column)
            for place, column in enumerate(self.columns)
            if place != self.key and column.content != "empty" and column.name not in READERS_NOTES | self.wanted.keys()
        ]
        texts = [column for _, column in left if column.content == "text" and not self.is_label(column)]
        named = [column for column in texts if column.name.lower() in _TEXT_NAMES]
        self.text = next(iter(named or (texts if len(texts) == 1 else [])), None)
        for place, column in left:
            self.add_by_rule(place, column)
        if self.rest and "json" in self.taken:
            names = ", ".join(self.columns[place].name for place in self.rest)
            raise ArgumentError(
                f"{names} of {self.label} would become the member json, which another column is mapped to: give them "
                f"extensions too, or leave them out, as in columns={{{self.columns[self.rest[0]].name!r}: ''}}"
            )
        if self.rest:
            only = self.columns[self.rest[0]]
            is_json = len(self.rest) == 1 and (only.name, only.content) == ("json", "other")
            self.members.append(Member(tuple(self.rest), "json", "value" if is_json else "object"))

    def check_paths(self) -> None:
        """Raise `SourceError` for a table that looks like paths, but of files that lie elsewhere."""
        if any(member.form == "file" or self.columns[member.columns[0]].content == "bytes" for member in self.members):
            return
        for place, column in enumerate(self.columns):
            is_class = any(member.columns == (place,) and member.extension == "cls" for member in self.members)
            is_left = is_class or place == self.key or column.name in self.wanted or not column.values
            if not is_left and all(_MEDIA_PATH.fullmatch(value.strip()) for value in column.values):
                raise SourceError(
                    f"column {column.name!r} of {self.label} looks like paths, but {column.values[0]!r:.300} is no "
                    f"file beside it: name the folder that its paths start from by root=, or map the column, as in "
                    f"columns={{{column.name!r}: 'txt'}}, if it is to be a text"
                )

    def is_label(self, column: Column) -> bool:
        is_named = column.content in ("integer", "text") and column.name.lower() in _LABEL_NAMES
        return column.classes is not None or (is_named and "cls" not in self.taken)

    def add_by_rule(self, place: int, column: Column) -> None:
        name = _as_extension(column.name)
        if column.content == "path":
            own = f"{name}.*" if column.extension in self.taken else "*"
            self.taken.add(column.extension)
            self.add(place, own, "file")
        elif column.content == "bytes":
            self.add_free(place, column.extension or name)
        elif self.is_label(column):
            self.add_free(place, "cls")
        elif column.content == "list":
            self.add(place, name if name == "npy" else f"{name}.npy", "value")
        elif column is self.text and "txt" not in self.taken:
            self.add(place, "txt", "value")
        else:
            self.rest.append(place)

    def add_free(self, place: int, extension: str) -> None:
        free = extension.lower() not in self.taken
        self.add(place, extension if free else f"{_as_extension(self.columns[place].name)}.{extension}", "value")

    def add(self, place: int, extension: str, form: Literal["file", "value"]) -> None:
        if extension == "cls":
            self.classes = self.columns[place].classes
        self.taken.add(extension.lower())
        self.members.append(Member((place,), extension, form))


def _as_extension(name: str) -> str:
    """Return the name of a column as an extension.

    >>> _as_extension("Face Mask (1)")
    'Face_Mask_1'
    """
    return _OTHER.sub("_", name).strip("_") or "column"


def paths_or_texts(name: str, values: tuple[str, ...], root: str) -> Column:
    """Return a column of texts by its first values: one of paths if any of them names a file."""
    for value in values:
        if suffix(value) and os.path.isfile(os.path.join(root, value)):  # noqa: PTH113, PTH118 - Path refuses a NUL
            return Column(name, "path", suffix(value), values=values)
    return Column(name, "text", values=values)
