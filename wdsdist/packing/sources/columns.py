"""What becomes of the columns of a table: which gives the key, which become members, and with which extensions.

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

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing.sources.similar_paths import similar
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
_MEDIA_URL = re.compile(rf"\w+://\S+{_MEDIA}(?:[?#]\S*)?", re.IGNORECASE)

_STARTS = tuple(
    (re.compile(start, re.DOTALL), extension)
    for start, extension in (
        (rb"\xff\xd8\xff", "jpg"), (rb"\x89PNG\r\n\x1a\n", "png"), (rb"GIF8[79]a", "gif"), (rb"II\*\0|MM\0\*", "tif"),
        (rb"RIFF.{4}WEBP", "webp"), (rb"\xff\n|\0\0\0\x0cJXL \r\n\x87\n", "jxl"), (rb".{4}ftypavif", "avif"),
        (rb".{4}ftypheic", "heic"), (rb".{4}ftypmif1", "heif"), (rb"RIFF.{4}WAVE", "wav"), (rb"fLaC", "flac"),
        (rb"OggS", "ogg"), (rb"ID3|\xff[\xfb\xf3\xf2]", "mp3"), (rb".{4}ftypM4A ", "m4a"), (rb"RIFF.{4}AVI ", "avi"),
        (rb".{4}ftypqt  ", "mov"), (rb".{4}ftyp", "mp4"), (rb"\x1aE\xdf\xa3", "webm"), (rb"\x93NUMPY", "npy"),
        (rb"PK\x03\x04", "zip"), (rb"%PDF-", "pdf"),
    )
)  # fmt: skip
"""What files start with, and their extensions; of several that fit, the first."""

_log = logging.getLogger("wdsdist")

Content = Literal["empty", "integer", "number", "text", "path", "bytes", "list", "other"]

_UNNAMED: tuple[Content, ...] = ("number", "bytes", "list", "other")
"""What a column holds that can be no keys."""


@dataclass(frozen=True, slots=True)
class Column:
    """What a column holds, as far as the rules ask."""

    name: str
    content: Content
    extension: str = ""
    """Of paths and bytes: what the first value is, where that is known."""
    classes: tuple[str, ...] | None = None
    """Names of its integers."""
    values: tuple[str, ...] = ()
    """Of texts: the first ones."""
    similar: str = ""
    """Of texts that look like paths but name no file: the file that the first one means, and how it differs."""


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
    """What becomes of the rows of a table."""

    columns: tuple[Column, ...]
    key: int | None
    """Place of the column with the key."""
    members: tuple[Member, ...]
    classes: tuple[str, ...] | None = None
    """Names of the numbers in ``cls``."""

    def notes(self) -> dict[str, str]:
        """Return what became of each column: an extension, ``"__key__"``, or ``""`` where it was left out."""
        found = {column.name: "" for column in self.columns if column.name}
        for member in self.members:
            found.update({self.columns[place].name: member.extension for place in member.columns})
        if self.key is not None:
            found[self.columns[self.key].name] = KEY
        return found

    def texts_of_classes(self) -> int | None:
        """Return the place of the column of texts that becomes ``cls``, whose numbers are to be given to it."""
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
    """Return what stands behind the last dot of a file's name, in lower case.

    >>> suffix("img.v2/0001.seg.PNG"), suffix("img.v2/README")
    ('png', '')
    """
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2].lower() if "." in name[1:] else ""


def check_columns(columns: object) -> dict[str, str]:
    """Return ``columns=`` as a dict.

    Raises `ArgumentError` for what is no mapping of names to extensions, and `ArgumentError` for an extension that
    no member can have.
    """
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not all(isinstance(text, str) for pair in columns.items() for text in pair):
        raise ArgumentError(f"columns is {columns!r}: it maps names of columns to extensions, such as 'jpg'")
    for name, extension in columns.items():
        if extension != KEY and re.search(r"[/\n\0*]|^\.|\.$|^__.*__$", extension):
            raise ArgumentError(f"columns maps {name!r} to {extension!r}, which is no extension such as 'jpg'")
    return dict(columns)


def choose(columns: Sequence[Column], wanted: Mapping[str, str], label: str, separators: str = "") -> Layout:
    """Decide by the rules above what becomes of each column; ``label`` names the table in errors.

    ``separators`` are those that a table of text may have been written with in place of its own.

    Raises `ArgumentError` where ``wanted`` names no column, and `SourceError` where the columns give no member, or
    hold paths of files that are not there.

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
    columns = tuple(
        replace(column, values=(), similar="") for column in choice.columns
    )  # they would travel with each shard
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
                raise ArgumentError(f"columns names {name!r}, but {self.label} has the columns {', '.join(names)}")
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise SourceError(f"{self.label} has two columns with the name {twice!r}: rename one")
        blank = next((name for name in names if name != name.strip() and name not in self.wanted), None)
        if blank is not None:
            _log.warning(
                "the name of column %r of %s begins or ends with a blank, which belongs to it as to the values below: "
                "write the table without blanks beside its separators",
                blank, self.label,
            )  # fmt: skip
        for column in self.columns if len(names) == len(self.columns) == 1 and not self.wanted else ():
            marks = (one for one in self.separators if all(one in text for text in (column.name, *column.values)))
            mark = next(marks, "") if column.values else ""
            if mark:
                raise SourceError(
                    f"{self.label} has a single column, {column.name!r}, whose fields seem to be separated by "
                    f"{mark!r}: write the table with commas (.csv) or tabs (.tsv), or map the column by columns= "
                    f"(--column)"
                )

    def choose_key(self) -> None:
        asked = [place for place, column in enumerate(self.columns) if self.wanted.get(column.name) == KEY]
        if len(asked) > 1:
            raise ArgumentError(f"columns maps {len(asked)} columns to {KEY!r}: there is one key")
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
        for column in self.columns if self.key is None else ():
            if column.name not in self.wanted and column.name.lower() in _KEY_NAMES and column.content in _UNNAMED:
                _log.warning(
                    "column %r of %s gives no keys, for it holds neither integers nor texts alone: the numbers of the "
                    "rows are the keys. Write it as one of these, or say what it is to be, as in columns={%r: ''} "
                    "(--column %s=) to leave it out",
                    column.name, self.label, column.name, column.name,
                )  # fmt: skip

    def add_wanted(self) -> None:
        for place, column in enumerate(self.columns):
            extension = self.wanted.get(column.name, "")
            if place == self.key or not extension:
                continue
            if extension.lower() in self.taken:
                raise ArgumentError(f"columns maps two columns to {extension!r}: give one another extension")
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
        self.warn_of_labels()
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

    def warn_of_labels(self) -> None:
        """Warn of labels that are none: with a missing one, pandas writes integers as ``1.0``."""
        for column in (self.columns[place] for place in self.rest if "cls" not in self.taken):
            if column.name.lower() in _LABEL_NAMES and column.content in ("number", "other"):
                _log.warning(
                    "column %r of %s holds neither integers nor texts alone, so it becomes a part of json, not cls: "
                    "write whole numbers, or names, where it is to be classes; else map it, as in columns={%r: "
                    "'label.json'} (--column %s=label.json)",
                    column.name, self.label, column.name, column.name,
                )  # fmt: skip

    def check_paths(self) -> None:
        """Refuse a table that looks like one of paths, but of files that lie elsewhere, and warn of one of URLs."""
        if any(member.form == "file" or self.columns[member.columns[0]].content == "bytes" for member in self.members):
            return
        for place, column in enumerate(self.columns):
            paths = _are_media(column.values)
            is_class = any(member.columns == (place,) and member.extension == "cls" for member in self.members)
            if paths and not is_class and place != self.key and column.name not in self.wanted:
                if column.similar:
                    raise SourceError(
                        f"column {column.name!r} of {self.label} looks like paths, but {column.values[0]} is no file "
                        f"beside it, and {column.similar}, is: name the files so in the table"
                    )
                raise SourceError(
                    f"column {column.name!r} of {self.label} looks like paths, but {column.values[0]} is no file "
                    f"beside it: name the folder where its paths start with root= (--root), or map the column, as in "
                    f"columns={{{column.name!r}: 'txt'}} (--column {column.name}=txt) if it is to be a text"
                )
            urls = sum(_MEDIA_URL.fullmatch(value) is not None for value in column.values)
            if 2 * urls > len(column.values) and column.name not in self.wanted:
                _log.warning(
                    "column %r of %s holds URLs, such as %s, which are packed as texts: nothing is downloaded. To pack "
                    "what they name, download it first, as img2dataset does, whose shards need no packing",
                    column.name, self.label, column.values[0],
                )  # fmt: skip

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


def extension_of(start: bytes) -> str:
    """Return the extension of what starts with the given bytes, or ``""`` where they tell nothing.

    >>> extension_of(b"\\xff\\xd8\\xff\\xe0"), extension_of(b"RIFF\\0\\0\\0\\0WAVEfmt "), extension_of(b"hello")
    ('jpg', 'wav', '')
    """
    return next((extension for found, extension in _STARTS if found.match(start)), "")


def paths_or_texts(name: str, values: tuple[str, ...], root: str) -> Column:
    """Return a column of texts, told by its first values: one of paths where any of them names a file."""
    for value in values:
        if suffix(value) and os.path.isfile(os.path.join(root, value)):  # noqa: PTH113, PTH118 - Path refuses a NUL
            return Column(name, "path", suffix(value), values=values)
    # A path that leads elsewhere is not looked up: the table may be anybody's.
    is_inside = _are_media(values) and not values[0].startswith("/") and "\0" not in values[0]
    return Column(name, "text", values=values, similar=similar(f"{root}/{values[0]}") if is_inside else "")


def _are_media(values: Sequence[str]) -> bool:
    """Return whether a column holds paths of media files: all its values look like one, and there are some."""
    return bool(values) and all(_MEDIA_PATH.fullmatch(value.strip()) for value in values)
