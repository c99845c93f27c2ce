"""Columns that are read from members: from small ones, such as ``json.width``, and from headers, as ``jpg.width``."""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.extras import extra
from wdsdist._util.host import temporary_dir
from wdsdist._util.npy_header import NPY_PREFIX, NpyLayout, npy_header_length, npy_layout
from wdsdist._util.validation import hint
from wdsdist.curation import arrays, column_file
from wdsdist.curation.column_file import ShardColumn
from wdsdist.curation.tables import pyarrow
from wdsdist.errors import ArgumentError, ExtraMissingError, SampleError
from wdsdist.media import length
from wdsdist.samples.images.header import Head, ShortError, image_size
from wdsdist.samples.open_source import open_source
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.shard_indexes import shard_index
from wdsdist.shards.source import CacheOptions, OpenShard
from wdsdist.storage import compression

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

MOST_BYTES = 16 << 20
"""Bytes of a member that is read for a field, decompressed."""
JSON = frozenset(["json", "jsn"])
_INTEGERS = frozenset(["cls", "cls2", "index", "inx", "id"])
_IMAGES = ("image", "jpg", "jpeg", "jpe", "jfif", "png", "webp")
"""The column ``image.width`` takes the first of these members that a sample has."""
_HEADER = 16 << 10
"""Bytes of a member that are read first for its header: photographs with metadata have it within these."""
_GROWTH = 16
"""Factor of the bytes that are fetched of a member whose header is longer than the bytes so far."""


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
        return json.loads(data) if kind in JSON else int(data) if kind in _INTEGERS else data.decode()
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except (SampleError, EOFError, zlib.error) as error:
        raise ValueError(str(error)) from None


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path in a JSON value; ``None`` if there is nothing. Objects and lists become JSON text.

    A part of the path is a name in an object, which may have dots, or the number of an item in a list.

    >>> value_at({"a": {"b.c": [5, 6]}}, ("a", "b", "c", "1")), value_at({"a": [1, {}]}, ("a",)), value_at({}, ("a",))
    (6, '[1, {}]', None)
    """
    inner = _inner(value, path)
    return json.dumps(inner, ensure_ascii=False) if isinstance(inner, (dict, list)) else inner


def _inner(value: Any, path: tuple[str, ...]) -> Any:
    if not path:
        return value
    if isinstance(value, list) and path[0].isascii() and path[0].isdigit():
        return _inner(value[int(path[0])], path[1:]) if int(path[0]) < len(value) else None
    if isinstance(value, dict):
        for count in range(1, len(path) + 1):
            inner = _inner(value.get(".".join(path[:count])), path[count:])
            if inner is not None:
                return inner
    return None


def _member(head: Head) -> Any:
    if head.size > MOST_BYTES:
        raise ValueError(f"it has {head.size:,} bytes, more than the {MOST_BYTES:,} of a small member")
    return decoded(head.extension, head(0, head.size))


def _num_items(value: Any) -> int:
    if not isinstance(value, list):
        raise ValueError("its JSON is not a list, whose items could be counted")
    return len(value)


def array_layout(head: Head) -> NpyLayout:
    """Return the dtype and shape of a ``.npy`` file. Raises ``ValueError`` for anything else."""
    end = npy_header_length(head(0, min(NPY_PREFIX, head.size)))
    layout = npy_layout(head(0, end)) if end <= head.size else None
    if layout is None or not layout.is_possible:
        raise ValueError("it does not have the header of a .npy file")
    if end + layout.num_bytes > head.size:
        raise ValueError(f"it is cut short: its header announces {layout.num_bytes:,} bytes")
    return layout


_PROBES: dict[str, tuple[Callable[[Head], Any], Callable[[Any], Any]]] = {
    "width": (image_size, lambda size: size[0]),
    "height": (image_size, lambda size: size[1]),
    "shape": (array_layout, lambda layout: json.dumps(list(layout.shape))),
    "dtype": (array_layout, lambda layout: str(layout.dtype)),
    "tokens": (array_layout, lambda layout: layout.num_elements),
    "seconds": (length.recording, lambda recording: recording.seconds),
    "frames": (length.recording, lambda recording: recording.frames),
}


class Reading(NamedTuple):
    """How the values of a column are read from the members of one shard."""

    extensions: tuple[str, ...]
    """In lower case; if a sample has several of them, the first counts."""
    parse: Callable[[Head], Any]
    """Parses the header of a member; several columns may take values from the result."""
    value: Callable[[Any], Any]
    """Takes the value of the column out of what ``parse`` returns."""
    first_bytes: int
    """Bytes of a member that ``parse`` most likely needs; 0 for all."""
    item_size: int = 0
    """Bytes of an item in a raw array, whose number follows from the size of the member; 0 if the member is read."""


@dataclass(frozen=True, slots=True)
class Field:
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
            names = [name for part in member.split(";") for name in (_IMAGES if part == "image" else (part,))]
            present = tuple(name for name in names if name in known)
            parse, value = _PROBES[what]
            if what == "tokens" and all(kind_of(name) in JSON for name in present):
                parse, value = _member, _num_items
            item_size = np.dtype(self.dtype).itemsize if self.dtype else 0
            is_whole = parse in (length.recording, _member)
            return Reading(present, parse, value, 0 if is_whole else _HEADER, item_size) if present else None
        parts = self.name.split(".")
        for count in range(len(parts), 0, -1):
            member, path = ".".join(parts[:count]), tuple(parts[count:])
            present = tuple(name for name in (member, f"{member}.gz") if name in known)
            if present:
                return Reading(present, _member, _taker(member, path), 0)
        return None


def _taker(member: str, path: tuple[str, ...]) -> Callable[[Any], Any]:
    if kind_of(member) in JSON:
        return lambda value: value_at(value, path)
    if path == ("length",):
        return lambda value: len(value) if isinstance(value, str) else None
    return lambda value: None if path else value


def parsed(field_names: Sequence[str], probes: Sequence[str]) -> list[Field]:
    """Return the columns that ``fields`` and ``probe`` name.

    Raises `ArgumentError` for a wrong name, and `ExtraMissingError` if PyAV is needed and not installed.
    """
    for argument, listed in (("fields", field_names), ("probe", probes)):
        is_list = isinstance(listed, Collection) and not isinstance(listed, str)
        if not is_list or not all(isinstance(name, str) for name in listed):
            raise ArgumentError(
                f"{argument} is {listed!r}: it must be a list of names such as ['json.width']", argument=argument
            )
    fields = [Field("field", name) for name in field_names] + [_probe(string) for string in probes]
    for field in fields:
        if not all(field.name.split(".")):
            raise ArgumentError(
                f"{field.kind} is {field.name!r}: it must be an extension, or a path such as json.size.width"
            )
        if column_file.is_free(field.name):
            raise ArgumentError(f"the column {field.name!r} comes from the shards' indexes, and need not be added")
        column_file.file_name(field.name)
        if sum(field.name == other.name for other in fields) > 1:
            raise ArgumentError(f"the column {field.name!r} is asked for twice")
    return fields


def _probe(string: str) -> Field:
    name, _, dtype = string.partition(":")
    member, _, what = name.rpartition(".")
    if what not in _PROBES or not all(member.split(";")):
        about = hint(what, _PROBES, "the last part can be")
        raise ArgumentError(
            f"probe is {string!r}: it must be an extension and what to read, as in jpg.width; {about}", argument="probe"
        )
    if dtype:
        try:
            is_number = np.dtype(dtype).kind in "biufc" and np.dtype(dtype).shape == ()
        except TypeError:
            is_number = False
        if what != "tokens" or not is_number:
            raise ArgumentError(
                f"probe is {string!r}: after the colon comes the dtype of a raw array, as in input_ids.tokens:uint16",
                argument="probe",
            )
    if what in ("seconds", "frames"):
        extra("av", "media", f"the column {name}")
    return Field("probe", f"{member.lower()}.{what}", dtype)


def read(
    manifest: Manifest, number: int, fields: Sequence[Field], samples: Int64s | None = None
) -> dict[str, ShardColumn]:
    """Return columns of all or some samples of one shard, by name; a member that cannot be read is counted.

    Raises `NotFoundError`, `ShardDamagedError` and `StorageError`.
    """
    index = shard_index(manifest, number)
    samples = np.arange(index.num_samples) if samples is None else samples
    made: dict[str, ShardColumn] = {}
    groups: dict[Any, list[tuple[str, Reading]]] = {}
    for field in fields:
        reading = field.reading(index.extensions)
        if reading is None:
            made[field.name] = ShardColumn(pyarrow().nulls(len(samples)))
        elif reading.item_size:
            made[field.name] = _counted_items(index, _members(index, reading, samples), reading.item_size)
        else:  # members that are parsed alike are parsed once
            groups.setdefault((reading.extensions, reading.parse), []).append((field.name, reading))
    if not groups:
        return made
    members = {key: _members(index, readings[0][1], samples) for key, readings in groups.items()}
    whole = [numbers[numbers >= 0] for key, numbers in members.items() if not groups[key][0][1].first_bytes]
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        source = open_source(manifest, CacheOptions(Path(folder)))
        shard = source.open({number: lambda index: np.concatenate([np.zeros(0, np.int64), *whole])})[number]
        for numbers in whole:
            shard.verify(numbers)
        for key, readings in groups.items():
            made |= _read_members(shard, members[key], readings)
    return made


def _members(index: ShardIndex, reading: Reading, samples: Int64s) -> Int64s:
    """Return int64 [samples]: the member of each sample with the first of some extensions that it has, or -1."""
    owners = np.repeat(np.arange(index.num_samples), np.diff(index.sample_starts))
    members = np.full(index.num_samples, -1, np.int64)
    for extension in reversed(reading.extensions):
        has_extension = np.array([*(own.lower() == extension for own in index.extensions), False])
        numbers = np.flatnonzero(has_extension[index.extension_ids])
        members[owners[numbers]] = numbers
    return members[samples]


def _counted_items(index: ShardIndex, members: Int64s, item_size: int) -> ShardColumn:
    """Return the number of items of raw arrays, which their sizes say."""
    sizes = np.where(members >= 0, index.sizes[members], 0)
    counts, rest = np.divmod(sizes, item_size)
    failed = np.flatnonzero(rest)
    first = f"{_key(index, members[failed[0]])}: {sizes[failed[0]]:,} bytes are not whole items" if len(failed) else ""
    return ShardColumn(pyarrow().array(counts, mask=(members < 0) | (rest != 0)), len(failed), first)


def _key(index: ShardIndex, member: int) -> str:
    """Return the key of the sample that has a member."""
    return index.key(int(np.searchsorted(index.sample_starts, member, side="right")) - 1)


def _read_members(shard: OpenShard, members: Int64s, readings: Sequence[tuple[str, Reading]]) -> dict[str, ShardColumn]:
    """Parse members once for all their columns, and fetch more of those whose headers are long, until all are read."""
    index, parse, first_bytes = shard.index, readings[0][1].parse, readings[0][1].first_bytes
    values: dict[str, list[Any]] = {name: [None] * len(members) for name, _ in readings}
    failed: dict[str, dict[int, str]] = {name: {} for name, _ in readings}
    rows = np.flatnonzero(members >= 0)
    lengths = index.sizes[members[rows]]
    if first_bytes:
        lengths = np.minimum(lengths, first_bytes)
    while len(rows):
        if first_bytes:
            shard.fetch_ranges(index.offsets[members[rows]], lengths)
        short: dict[int, int] = {}
        for row, fetched in zip(rows.tolist(), lengths.tolist(), strict=True):
            offset, size = int(index.offsets[members[row]]), int(index.sizes[members[row]])
            extension = index.extensions[index.extension_ids[members[row]]]
            try:
                value = parse(Head(shard.content[offset : offset + fetched], size, extension))
            except ShortError as error:
                short[row] = min(size, max(error.needed, _GROWTH * fetched))
                continue
            except (ValueError, ExtraMissingError) as error:
                for reasons in failed.values():
                    reasons[row] = str(error)
                continue
            for name, reading in readings:
                try:
                    values[name][row] = reading.value(value)
                except (ValueError, RecursionError) as error:
                    failed[name][row] = str(error)
        rows, lengths = np.array(list(short), np.int64), np.array(list(short.values()), np.int64)
    made = {}
    for name, reasons in failed.items():
        first = min(reasons, default=None)
        shown = "" if first is None else f"{_key(index, members[first])}: {reasons[first]}"
        made[name] = ShardColumn(arrays.from_values(values[name]), len(reasons), shown)
    return made
