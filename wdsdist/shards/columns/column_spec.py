"""`ColumnSpec`: a column as it is asked for, such as ``"json.width"`` or ``"jpg.width"``, and how it is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from wdsdist._util.extras import extra
from wdsdist._util.validation import hint
from wdsdist.errors import ArgumentError
from wdsdist.shards.columns import column_file, from_index, headers
from wdsdist.shards.columns.headers import Head
from wdsdist.storage import compression

MOST_BYTES = 16 << 20
"""Bytes of a member that is read for a column, decompressed; larger ones are no small members."""

LENGTH = "length"
"""The part of a text that stands for its number of characters."""

JSON = frozenset(["json", "jsn"])
_INTEGERS = frozenset(["cls", "cls2", "index", "inx", "id"])


def kind_of(extension: str) -> str:
    """Return the last part of an extension in lower case, without ``.gz``, which decides how a member is decoded.

    >>> kind_of("meta.json.gz"), kind_of("TXT")
    ('json', 'txt')
    """
    return extension.lower().removesuffix(".gz").rpartition(".")[2]


def decoded(extension: str, data: bytes) -> Any:
    """Return what a member holds: a JSON value, an integer, or its text.

    Raises ``ValueError`` where it is not of its kind.
    """
    name = extension.lower()
    try:
        while name.endswith(".gz"):
            data, name = compression.unzip(data, MOST_BYTES), name[:-3]
        kind = kind_of(name)
        if kind in JSON:
            return json.loads(data)
        return int(data) if kind in _INTEGERS else data.decode()
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except Exception as error:  # also those of zlib
        raise ValueError(str(error) or type(error).__name__) from None


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path in a JSON value, such as a number or text; ``None`` where there is none.

    Objects and lists become their JSON text. A part of the path is the name in an object, which may have dots, or the
    number of an item in a list.

    >>> value_at({"a": {"b.c": [5, 6]}}, ("a", "b", "c", "1")), value_at({"a": [1, {}]}, ("a",)), value_at({}, ("a",))
    (6, '[1, {}]', None)
    """
    found = _found(value, path)
    return json.dumps(found, ensure_ascii=False) if isinstance(found, (dict, list)) else found


def _found(value: Any, path: tuple[str, ...]) -> Any:
    if not path:
        return value
    if isinstance(value, list) and path[0].isascii() and path[0].isdigit():
        return _found(value[int(path[0])], path[1:]) if int(path[0]) < len(value) else None
    if isinstance(value, dict):
        for count in range(1, len(path) + 1):
            name = ".".join(path[:count])
            if name in value:
                found = _found(value[name], path[count:])
                if found is not None:
                    return found
    return None


Parse = Callable[[Head], Any]
"""Function that parses the first bytes of a member; several columns may be taken from what it returns."""

_IMAGES = ("image", "jpg", "jpeg", "jpe", "jfif", "png", "webp")
"""Of these the column ``image.width`` takes the first that a sample has."""

_HEADER = 16 << 10
"""Bytes of a member that are read first for its header: photographs with metadata have it within these."""


def _field(head: Head) -> Any:
    if head.size > MOST_BYTES:
        raise ValueError(f"it has {head.size:,} bytes, more than the {MOST_BYTES:,} of a small member")
    return decoded(head.extension, head(0, head.size))


_PROBES: dict[str, tuple[Parse, Callable[[Any], Any]]] = {
    "width": (headers.image_size, lambda size: size[0]),
    "height": (headers.image_size, lambda size: size[1]),
    "shape": (headers.array_layout, lambda layout: json.dumps(list(layout.shape))),
    "dtype": (headers.array_layout, lambda layout: str(layout.dtype)),
    "tokens": (headers.array_layout, lambda layout: layout.num_elements),
    "seconds": (headers.recording, lambda found: found.seconds),
    "frames": (headers.recording, lambda found: found.frames),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """How a column's values are read from the members of one shard."""

    extensions: tuple[str, ...]
    """Of the members, in lower case; of a sample that has several, the first counts."""
    parse: Parse
    value: Callable[[Any], Any]
    """Function that extracts the value of the column from a parsed member, as ``parse`` returns it."""
    first_bytes: int
    """Bytes of a member that ``parse`` most likely needs; 0 for all."""
    item_size: int = 0
    """Bytes of an item in a raw array, whose number the size of the member tells; 0 where the member is read."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column that is made from members."""

    kind: Literal["field", "probe"]
    name: str
    dtype: str = ""
    """Of the items of a raw array, for its number of tokens."""

    @property
    def made_by(self) -> dict[str, str]:
        """What the column's file says that it was made by."""
        return {self.kind: f"{self.name}:{self.dtype}" if self.dtype else self.name}

    def reading(self, extensions: Sequence[str]) -> Reading | None:
        """Return how the column is read where members have these extensions; ``None`` where none of them fits."""
        known = {extension.lower() for extension in extensions}
        if self.kind == "probe":
            member, _, what = self.name.rpartition(".")
            names = [one for name in member.split(";") for one in (_IMAGES if name == "image" else (name,))]
            wanted = tuple(one for one in names if one in known)
            if not wanted:
                return None
            parse, value = _PROBES[what]
            if what == "tokens" and all(kind_of(one) in JSON for one in wanted):
                return Reading(wanted, _field, _num_items, 0)
            item_size = np.dtype(self.dtype).itemsize if self.dtype else 0
            return Reading(wanted, parse, value, 0 if parse is headers.recording else _HEADER, item_size)
        parts = self.name.split(".")
        for count in range(len(parts), 0, -1):
            member, path = ".".join(parts[:count]), tuple(parts[count:])
            wanted = tuple(one for one in (member, f"{member}.gz") if one in known)
            if wanted:
                return Reading(wanted, _field, _taker(member, path), 0)
        return None


def _taker(member: str, path: tuple[str, ...]) -> Callable[[Any], Any]:
    if kind_of(member) in JSON:
        return lambda found: value_at(found, path)
    if path == (LENGTH,):
        return lambda found: len(found) if isinstance(found, str) else None
    return lambda found: None if path else found


def _num_items(found: Any) -> int:
    if not isinstance(found, list):
        raise ValueError("its JSON is no list, of which the items could be counted")
    return len(found)


def parsed(field_names: Sequence[str], probes: Sequence[str]) -> list[ColumnSpec]:
    """Return the columns that are asked for.

    Raises `ArgumentError` for a name that is none, and `ExtraMissingError` where PyAV is needed and not installed.
    """
    for label, given in (("fields", field_names), ("probe", probes)):
        is_list = isinstance(given, Collection) and not isinstance(given, str)
        if not is_list or not all(isinstance(one, str) for one in given):
            raise ArgumentError(f"{label} is {given!r}: it must be a list of names such as ['json.width']")
    specs = [_checked(ColumnSpec("field", name)) for name in field_names] + [_probe(one) for one in probes]
    twice = sorted({one.name for one in specs if sum(one.name == other.name for other in specs) > 1})
    if twice:
        raise ArgumentError(f"the column {twice[0]!r} is asked for twice")
    return specs


def _probe(given: str) -> ColumnSpec:
    name, _, dtype = given.partition(":")
    member, _, what = name.rpartition(".")
    if what not in _PROBES or not all(member.split(";")):
        about = hint(what, _PROBES, "the last part can be")
        raise ArgumentError(f"probe is {given!r}: it must be an extension and what to look for, as jpg.width; {about}")
    if dtype:
        try:
            is_number = np.dtype(dtype).kind in "biufc" and np.dtype(dtype).shape == ()
        except TypeError:
            is_number = False
        if what != "tokens" or not is_number:
            raise ArgumentError(
                f"probe is {given!r}: behind the colon stands the dtype of a raw array, as in input_ids.tokens:uint16"
            )
    if what in ("seconds", "frames") and any(kind_of(one) != "wav" for one in member.split(";")):
        extra("av", "media", f"the column {name}")
    return _checked(ColumnSpec("probe", f"{member.lower()}.{what}", dtype))


def _checked(spec: ColumnSpec) -> ColumnSpec:
    if not all(spec.name.split(".")):
        raise ArgumentError(f"{spec.kind} is {spec.name!r}: it must be an extension, or a path such as json.size.width")
    if from_index.is_free(spec.name):
        raise ArgumentError(f"the column {spec.name!r} comes from the shards' indexes, and need not be added")
    column_file.file_name(spec.name)
    return spec
