"""Columns that are read from members: from small ones, such as ``json.width``, and from headers, as ``jpg.width``."""

from __future__ import annotations

import functools
import json
import logging
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.extras import extra
from wdsdist._util.file_types import IMAGE_TYPES, last_part
from wdsdist._util.host import temporary_dir
from wdsdist._util.npy_header import NpyLayout, npy_header
from wdsdist._util.pools import Carried, pool
from wdsdist._util.validation import counted, hint
from wdsdist.curation.column_file import KEY, file_name, is_free
from wdsdist.curation.columns import members_of
from wdsdist.errors import ArgumentError, ExtraMissingError, SampleError
from wdsdist.media.containers import recording
from wdsdist.packing.tables.table import from_values
from wdsdist.samples.images.decode import EncodedImage
from wdsdist.samples.member_reader import open_source
from wdsdist.shards.progress import Report, reported
from wdsdist.shards.shard_indexes import extensions_in, shard_index
from wdsdist.shards.source import CacheOptions, OpenShard
from wdsdist.storage import compression

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

MOST_BYTES = 16 << 20
"""Bytes of a member that is read for a field, decompressed."""
JSON = frozenset(["json", "jsn"])
INTEGERS = frozenset(["cls", "cls2", "index", "inx", "id"])
_HEADER = 16 << 10
"""Bytes of a member that are read first for its header: photographs with metadata have it within these."""
_GROWTH = 16
"""Factor of the bytes that are fetched of a member whose header is longer than the bytes so far."""

_Read = tuple[dict[str, Any], dict[str, list[str]]]
"""Arrays by the names of columns, and for each column the reason for each member that cannot be read."""
_log = logging.getLogger("wdsdist")


def kind_of(extension: str) -> str:
    """Return the last part of an extension in lower case, without ``.gz``, which decides how a member is decoded."""
    return last_part(extension.lower().removesuffix(".gz"))


def value_at(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a path in a member; ``None`` if there is nothing. Objects and lists become JSON text.

    A part of the path is a name in an object, the number of an item in a list, ``tokens``, which counts the items of a
    list, or ``length`` of a string.

    >>> value_at({"a": {"b": [5, 6]}}, ("a", "b", "1")), value_at({"a": [1, {}]}, ("a",)), value_at("ab", ("length",))
    (6, '[1, {}]', 2)
    """
    for part in path:
        if (isinstance(value, list) and part == "tokens") or (isinstance(value, str) and part == "length"):
            value = len(value)
        elif isinstance(value, list):
            value = value[int(part)] if part.isdecimal() and int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value


def _member(content: memoryview, size: int, extension: str) -> Any:
    """Return the value of a small member: a JSON value, an integer, or a string. Raises ``ValueError``."""
    if size > MOST_BYTES:
        raise ValueError(f"it has {size:,} bytes, more than the {MOST_BYTES:,} of a small member")
    data, name = bytes(content), extension.lower()
    try:
        while name.endswith(".gz"):
            data, name = compression.unzip(data, MOST_BYTES), name[:-3]
        kind = kind_of(name)
        return json.loads(data) if kind in JSON else int(data) if kind in INTEGERS else data.decode()
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except (SampleError, EOFError, zlib.error) as error:
        raise ValueError(str(error)) from None


def array_layout(start: memoryview, size: int, *_: object) -> NpyLayout:
    """Return the dtype and shape of a ``.npy`` file. Raises ``ValueError`` for anything else."""
    end, layout = npy_header(start)
    if layout is None or not layout.is_possible:
        raise ValueError("it does not have the header of a .npy file")
    if end + layout.num_bytes > size:
        raise ValueError(f"it is cut short: its header announces {layout.num_bytes:,} bytes")
    return layout


def image_size(start: memoryview, *_: object) -> tuple[int, int]:
    """Return (width, height) of an image once it is upright.

    Raises ``ValueError`` if its header is longer than the bytes read so far, and for anything else than an image.
    """
    extra("PIL", "images", "the size of images")
    return EncodedImage(start).size


_Parse = Callable[[memoryview, int, str], Any]
"""Parses a member by its first bytes, its size and its extension."""
_PROBES: dict[str, tuple[_Parse, Callable[[Any], Any]]] = {
    "width": (image_size, lambda size: size[0]),
    "height": (image_size, lambda size: size[1]),
    "shape": (array_layout, lambda layout: json.dumps(list(layout.shape))),
    "dtype": (array_layout, lambda layout: str(layout.dtype)),
    "tokens": (array_layout, lambda layout: layout.num_elements),
    "seconds": (recording, lambda length: length.seconds),
    "frames": (recording, lambda length: length.frames),
}
"""What names end in: a function that parses the header, and one that takes the value out of what it returns."""
_WHOLE = (_member, recording)
"""Parsers that need all bytes of a member."""


class _Reading(NamedTuple):
    """How the values of a column are read from the members of one shard."""

    extensions: tuple[str, ...]
    """In lower case; if a sample has several of them, the first counts."""
    parse: _Parse
    """Parses a member, or its header; several columns may take values from the result."""
    value: Callable[[Any], Any]
    """Takes the value of the column out of what ``parse`` returns."""


def _reading(name: str, extensions: Sequence[str]) -> _Reading | None:
    """Return how a column is read if members have these extensions; ``None`` if no extension fits.

    A name such as ``jpg.width`` is of a header, and ``jpg;png.width`` of the first of these members that a sample has;
    ``image.width`` is of any image.
    All other names, also of JSON members, are paths in small members.
    """
    known, (member, _, what) = {extension.lower() for extension in extensions}, name.rpartition(".")
    named = [each for part in member.split(";") for each in (IMAGE_TYPES if part == "image" else [part])]
    present = tuple(each for each in named if each in known)
    if present and what in _PROBES and not any(kind_of(each) in JSON for each in present):
        return _Reading(present, *_PROBES[what])
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        member = ".".join(parts[:count])
        if present := tuple(each for each in (member, f"{member}.gz") if each in known):
            return _Reading(present, _member, functools.partial(value_at, path=parts[count:]))
    return None


def checked(manifest: Manifest, fields: Sequence[str], probes: Sequence[str] = ()) -> list[str]:
    """Return the names of the columns that ``fields`` and ``probe`` name.

    Raises `ArgumentError` for a wrong name and for a member that no sample has, and `ExtraMissingError` if PyAV is
    needed and not installed.
    """
    for argument, listed in (("fields", fields), ("probe", probes)):
        is_list = isinstance(listed, Collection) and not isinstance(listed, str)
        if not is_list or not all(isinstance(name, str) and all(name.split(".")) for name in listed):
            raise ArgumentError(
                f"{argument} is {listed!r}: it must be a list of names such as ['json.width']", argument=argument
            )
    for name in probes:
        member, _, what = name.rpartition(".")
        if what not in _PROBES or not all(member.split(";")):
            about = hint(what, _PROBES, "the last part can be")
            raise ArgumentError(f"probe is {name!r}: it must be a name such as jpg.width; {about}", argument="probe")
        if _PROBES[what][0] is recording:
            extra("av", "media", f"the column {name}")
    names = [*fields, *(name.lower() for name in probes)]
    extensions = extensions_in(manifest) if names else []
    for name in names:
        if is_free(name):
            raise ArgumentError(f"the column {name!r} comes from the shards' indexes, and need not be added")
        file_name(name)
        if names.count(name) > 1:
            raise ArgumentError(f"the column {name!r} is asked for twice")
        if extensions and _reading(name, extensions) is None:
            about = hint(name.partition(".")[0], [*extensions, KEY], "they have")
            raise ArgumentError(f"the column {name!r} is of a member that no sample has: {about}")
    return names


def read_all(
    data: Manifest, fields: Sequence[str], shards: Sequence[int], workers: int | None = None, progress: Report = None
) -> dict[int, dict[str, Any]]:
    """Return columns of the members of some shards: arrays by the number of the shard and the name of the column.

    A warning counts the members that cannot be read, whose samples have no value. Raises what `read` raises.
    """
    if not fields:
        return {}
    made: dict[int, dict[str, Any]] = {}
    unreadable: dict[str, list[str]] = {name: [] for name in fields}
    carried = Carried((data, fields))
    is_remote = any(storage.is_remote(data.location(shard)) for shard in shards)
    with pool(workers, len(shards), remote=is_remote) as executor:
        futures = {executor.submit(_read, carried, shard): shard for shard in shards}
        for shard, (columns, reasons) in reported(futures, data.sizes, data.counts, progress):
            made[shard] = columns
            for name in fields:
                unreadable[name] += reasons[name]
    for name in filter(unreadable.get, fields):
        samples, first = counted(len(unreadable[name]), "sample"), min(unreadable[name])
        _log.warning("%s: the members of %s cannot be read, and have no value, such as %s", name, samples, first)
    return made


def _read(carried: Carried[tuple[Manifest, Sequence[str]]], shard: int) -> _Read:
    return read(*carried.value, shard)


def read(manifest: Manifest, fields: Sequence[str], number: int, most: int | None = None) -> _Read:
    """Return columns of the samples of one shard, or of its first ``most`` samples: arrays by name.

    Members that cannot be read have no value; the second dictionary has the reason for each. Raises `NotFoundError`,
    `ShardDamagedError` and `StorageError`.
    """
    index = shard_index(manifest, number)
    count = index.num_samples if most is None else min(most, index.num_samples)
    readings = {name: reading for name in fields if (reading := _reading(name, index.extensions))}
    members = {name: members_of(index, reading.extensions)[:count] for name, reading in readings.items()}
    values: dict[str, list[Any]] = {name: [None] * count for name in fields}
    unreadable: dict[str, list[str]] = {name: [] for name in fields}
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        whole = _needed(members[name] for name in readings if readings[name].parse in _WHOLE)
        headers = _needed(members[name] for name in readings if readings[name].parse not in _WHOLE)
        source = open_source(manifest, CacheOptions(Path(folder)))
        shard = source.open({number: lambda _: whole})[number]
        shard.verify(whole)
        shard.fetch_ranges(index.offsets[headers], np.minimum(index.sizes[headers], _HEADER))
        for sample in range(count):
            parsed: dict[Any, Any] = {}  # a member is parsed once for all its columns
            for name, reading in readings.items():
                key = int(members[name][sample]), reading.parse
                try:
                    if key[0] >= 0:
                        parsed[key] = parsed[key] if key in parsed else _parsed(shard, *key)
                        values[name][sample] = reading.value(parsed[key])
                except (ValueError, RecursionError, ExtraMissingError) as error:
                    unreadable[name].append(f"{manifest.shown_name(number)}: {index.key(sample)}: {error}")
    return {name: from_values(values[name]) for name in fields}, unreadable


def _needed(members: Iterable[Int64s]) -> Int64s:
    """Return the members that some columns need, each once; -1 stands for a sample without."""
    return np.setdiff1d(np.concatenate([np.zeros(0, np.int64), *members]), [-1])


def _parsed(shard: OpenShard, member: int, parse: _Parse) -> Any:
    """Parse a member by its first bytes, and fetch more of them if they are too few for its header.

    Raises ``ValueError`` and `ExtraMissingError`.
    """
    index = shard.index
    offset, size = int(index.offsets[member]), int(index.sizes[member])
    extension = index.extensions[index.extension_ids[member]]
    fetched = size if parse in _WHOLE else min(size, _HEADER)
    while True:
        try:
            return parse(shard.content[offset : offset + fetched], size, extension)
        except (ValueError, ExtraMissingError):
            if fetched == size:
                raise
        fetched = min(size, _GROWTH * fetched)
        shard.fetch_ranges(np.array([offset]), np.array([fetched]))
