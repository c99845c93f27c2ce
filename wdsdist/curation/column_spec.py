"""`ColumnSpec`: a column that is read from members, such as ``"json.width"`` or ``"jpg.width"``."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from wdsdist._util.extras import extra
from wdsdist._util.npy_header import NPY_PREFIX, NpyLayout, npy_header_length, npy_layout
from wdsdist._util.validation import hint
from wdsdist.curation import column_file
from wdsdist.errors import ArgumentError
from wdsdist.media import length
from wdsdist.samples.images.header import Head, image_size
from wdsdist.storage import compression

MOST_BYTES = 16 << 20
"""Bytes of a member that is read for a field, decompressed."""
JSON = frozenset(["json", "jsn"])
_INTEGERS = frozenset(["cls", "cls2", "index", "inx", "id"])
_IMAGES = ("image", "jpg", "jpeg", "jpe", "jfif", "png", "webp")
"""The column ``image.width`` takes the first of these members that a sample has."""
_HEADER = 16 << 10
"""Bytes of a member that are read first for its header: photographs with metadata have it within these."""

Parse = Callable[[Head], Any]
"""Function that parses the first bytes of a member; several columns may be taken from what it returns."""


def kind_of(extension: str) -> str:
    """Return the last part of an extension in lower case, without ``.gz``, which decides how a member is decoded.

    >>> kind_of("meta.json.gz"), kind_of("TXT")
    ('json', 'txt')
    """
    return extension.lower().removesuffix(".gz").rpartition(".")[2]


def decoded(extension: str, data: bytes) -> Any:
    """Return the value of a small member: a JSON value, an integer, or a string.

    Raises ``ValueError`` if it is not of its kind.
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
        raise ValueError("it is not a string in UTF-8") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except Exception as error:  # also errors of zlib
        raise ValueError(str(error) or type(error).__name__) from None


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path in a JSON value; ``None`` if there is nothing. Objects and lists become JSON text.

    A part of the path is a name in an object, which may have dots, or the number of an item in a list.

    >>> value_at({"a": {"b.c": [5, 6]}}, ("a", "b", "c", "1")), value_at({"a": [1, {}]}, ("a",)), value_at({}, ("a",))
    (6, '[1, {}]', None)
    """
    found = _inner(value, path)
    return json.dumps(found, ensure_ascii=False) if isinstance(found, (dict, list)) else found


def _inner(value: Any, path: tuple[str, ...]) -> Any:
    if not path:
        return value
    if isinstance(value, list) and path[0].isascii() and path[0].isdigit():
        return _inner(value[int(path[0])], path[1:]) if int(path[0]) < len(value) else None
    if isinstance(value, dict):
        for count in range(1, len(path) + 1):
            found = _inner(value.get(".".join(path[:count])), path[count:])
            if found is not None:
                return found
    return None


def _field(head: Head) -> Any:
    if head.size > MOST_BYTES:
        raise ValueError(f"it has {head.size:,} bytes, more than the {MOST_BYTES:,} of a small member")
    return decoded(head.extension, head(0, head.size))


def array_layout(head: Head) -> NpyLayout:
    """Return the dtype and shape of a ``.npy`` file. Raises ``ValueError`` for anything else."""
    end = npy_header_length(head(0, min(NPY_PREFIX, head.size)))
    layout = npy_layout(head(0, end)) if end <= head.size else None
    if layout is None or not layout.is_possible:
        raise ValueError("it does not have the header of a .npy file")
    if end + layout.num_bytes > head.size:
        raise ValueError(f"it is cut short: its header announces {layout.num_bytes:,} bytes")
    return layout


_PROBES: dict[str, tuple[Parse, Callable[[Any], Any]]] = {
    "width": (image_size, lambda size: size[0]),
    "height": (image_size, lambda size: size[1]),
    "shape": (array_layout, lambda layout: json.dumps(list(layout.shape))),
    "dtype": (array_layout, lambda layout: str(layout.dtype)),
    "tokens": (array_layout, lambda layout: layout.num_elements),
    "seconds": (length.recording, lambda recording: recording.seconds),
    "frames": (length.recording, lambda recording: recording.frames),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """How the values of a column are read from the members of one shard."""

    extensions: tuple[str, ...]
    """In lower case; if a sample has several of them, the first counts."""
    parse: Parse
    value: Callable[[Any], Any]
    """Function that takes the value of the column out of what ``parse`` returns."""
    first_bytes: int
    """Bytes of a member that ``parse`` most likely needs; 0 for all."""
    item_size: int = 0
    """Bytes of an item in a raw array, whose number follows from the size of the member; 0 if the member is read."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column that is made from members."""

    kind: Literal["field", "probe"]
    name: str
    dtype: str = ""
    """The dtype of the items of a raw array, for its number of tokens."""

    @property
    def made_by(self) -> dict[str, str]:
        """What the file of the column says about its origin."""
        return {self.kind: f"{self.name}:{self.dtype}" if self.dtype else self.name}

    def reading(self, extensions: Sequence[str]) -> Reading | None:
        """Return how the column is read if members have these extensions; ``None`` if no extension fits."""
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
            return Reading(wanted, parse, value, 0 if parse is length.recording else _HEADER, item_size)
        parts = self.name.split(".")
        for count in range(len(parts), 0, -1):
            member, path = ".".join(parts[:count]), tuple(parts[count:])
            wanted = tuple(one for one in (member, f"{member}.gz") if one in known)
            if wanted:
                return Reading(wanted, _field, _taker(member, path), 0)
        return None


def _taker(member: str, path: tuple[str, ...]) -> Callable[[Any], Any]:
    if kind_of(member) in JSON:
        return lambda value: value_at(value, path)
    if path == ("length",):
        return lambda value: len(value) if isinstance(value, str) else None
    return lambda value: None if path else value


def _num_items(value: Any) -> int:
    if not isinstance(value, list):
        raise ValueError("its JSON is not a list, whose items could be counted")
    return len(value)


def parsed(field_names: Sequence[str], probes: Sequence[str]) -> list[ColumnSpec]:
    """Return the columns that ``fields`` and ``probe`` name.

    Raises `ArgumentError` for a wrong name, and `ExtraMissingError` if PyAV is needed and not installed.
    """
    for label, given in (("fields", field_names), ("probe", probes)):
        is_list = isinstance(given, Collection) and not isinstance(given, str)
        if not is_list or not all(isinstance(one, str) for one in given):
            raise ArgumentError(
                f"{label} is {given!r}: it must be a list of names such as ['json.width']", argument=label
            )
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
        raise ArgumentError(
            f"probe is {given!r}: it must be an extension and what to read, as in jpg.width; {about}", argument="probe"
        )
    if dtype:
        try:
            is_number = np.dtype(dtype).kind in "biufc" and np.dtype(dtype).shape == ()
        except TypeError:
            is_number = False
        if what != "tokens" or not is_number:
            raise ArgumentError(
                f"probe is {given!r}: after the colon comes the dtype of a raw array, as in input_ids.tokens:uint16",
                argument="probe",
            )
    if what in ("seconds", "frames") and any(kind_of(one) != "wav" for one in member.split(";")):
        extra("av", "media", f"the column {name}")
    return _checked(ColumnSpec("probe", f"{member.lower()}.{what}", dtype))


def _checked(spec: ColumnSpec) -> ColumnSpec:
    if not all(spec.name.split(".")):
        raise ArgumentError(f"{spec.kind} is {spec.name!r}: it must be an extension, or a path such as json.size.width")
    if column_file.is_free(spec.name):
        raise ArgumentError(f"the column {spec.name!r} comes from the shards' indexes, and need not be added")
    column_file.file_name(spec.name)
    return spec
