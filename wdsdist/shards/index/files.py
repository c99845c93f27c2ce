"""The file format of a shard index (``.wdsindex``).

It lies beside the shard, under its name and ``.wdsindex``: a preamble (magic, version, length of the header, CRC-32 of
that length and all that follows), a JSON header, then little-endian arrays on 64-byte boundaries. Nothing is parsed
per sample.
"""

from __future__ import annotations

import json
import reprlib
import struct
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.files import mapped
from wdsdist.errors import IndexFormatError
from wdsdist.shards.index import checksums
from wdsdist.shards.index.values import STRICT, ShardIndex, Stored, Tolerance
from wdsdist.shards.tar import FIRST_DOT

SUFFIX = ".wdsindex"

_MAGIC = b"wdsindex"
_VERSION = 1
_PREAMBLE = struct.Struct("<8sIIII")  # magic, version, header length, CRC-32 of the rest, zero
_ALIGNMENT = 64
_ARRAYS = {
    "sample_starts": "<i8",
    "offsets": "<i8",
    "sizes": "<i8",
    "extension_ids": "<u4",
    "key_starts": "<i8",
    "key_bytes": "|u1",
}
_KINDS = {"size": int, "sha256": str, "extensions": list, "skipped": dict, "left_out": list, "key_rule": str,
          "stored": dict, "tolerance": dict, "arrays": dict}  # fmt: skip
"""Types in the header."""
_CHECKSUMS = "checksums", "<u4"
"""An array that indexes may lack, and that readers of before ignore."""


def beside(tar: Path) -> Path:
    """Return the path of the index beside a tar.

    >>> beside(Path("/data/00.tar")).name
    '00.tar.wdsindex'
    """
    return tar.with_name(tar.name + SUFFIX)


def dumps(index: ShardIndex) -> bytes:
    """Serialize an index to the bytes of its file; the same index always gives the same bytes."""
    arrays: dict[str, tuple[int, int]] = {}
    data = bytearray()
    for name, dtype in (*_ARRAYS.items(), *([_CHECKSUMS] if index.checksums is not None else [])):
        data += bytes(-len(data) % _ALIGNMENT)
        array = getattr(index, name).astype(dtype)
        arrays[name] = (len(data), len(array))
        data += array.tobytes()
    header = json.dumps(
        {
            "size": index.size,
            "sha256": index.sha256,
            "extensions": index.extensions,
            "skipped": index.skipped,
            **({"left_out": index.left_out} if index.left_out else {}),
            **({"key_rule": index.key_rule} if index.key_rule != FIRST_DOT else {}),
            **({"stored": asdict(index.stored)} if index.stored else {}),
            **({"tolerance": asdict(index.tolerance)} if index.tolerance != STRICT else {}),
            **({"checksum": checksums.FUNCTION} if index.checksums is not None else {}),
            "arrays": arrays,
        },
        ensure_ascii=True,
    ).encode()
    header += b" " * (-(_PREAMBLE.size + len(header)) % _ALIGNMENT)
    rest = header + data
    return _PREAMBLE.pack(_MAGIC, _VERSION, len(header), _checksum(len(header), rest), 0) + rest


def load(path: Path) -> ShardIndex:
    """Load the index in a file; its arrays are views of the mapped file.

    Raises ``FileNotFoundError`` where there is none and `IndexFormatError` where it is damaged.
    """
    return loads(mapped(path), str(path))


def loads(content: bytes | memoryview, label: str) -> ShardIndex:
    """Parse the bytes of an index file; the arrays are views of them, and ``label`` is the name in errors."""
    content = memoryview(content)
    try:
        magic, version, length, crc, _ = _PREAMBLE.unpack_from(content)
        rest = content[_PREAMBLE.size :]
        if magic != _MAGIC or version != _VERSION:
            raise ValueError(f"magic {magic!r}, version {version}")
        if _checksum(length, rest) != crc:
            raise ValueError("its checksum is wrong")
        index = _parsed(json.loads(bytes(rest[:length])), rest[length:])
        _check(index)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise IndexFormatError(
            f"{label} is not a shard index of version {_VERSION} ({reason}): delete it and run `wdsdist index` again"
        ) from error
    return index


def _parsed(header: Any, data: memoryview) -> ShardIndex:
    if not isinstance(header, dict):
        raise ValueError(f"its header is {reprlib.repr(header)}, not an object")
    for name, kind in _KINDS.items():
        if name in header and not isinstance(header[name], kind):
            raise ValueError(f"its {name} is {reprlib.repr(header[name])}, of another type")
    left_out = header.get("left_out", [])
    if not all(_are_texts(one) and len(one) == 2 for one in left_out):
        raise ValueError(f"its left_out is {reprlib.repr(left_out)}, not a list of keys with reasons")
    arrays: dict[str, Any] = {}
    has_checksums = header.get("checksum") == checksums.FUNCTION
    for name, dtype in (*_ARRAYS.items(), *([_CHECKSUMS] if has_checksums else [])):
        place = header["arrays"][name]
        if not (isinstance(place, list) and [*map(type, place)] == [int, int] and min(place) >= 0):  # -1 means the rest
            raise ValueError(f"its {name} lie at {reprlib.repr(place)}, not at [first byte, items]")
        start, count = place
        arrays[name] = np.frombuffer(data, dtype, count, start) if count else np.zeros(0, dtype)
    extensions = header["extensions"]
    if not _are_texts(extensions):
        raise ValueError("extensions are no list of texts")
    return ShardIndex(
        size=header["size"],
        sha256=header["sha256"],
        extensions=tuple(extensions),
        skipped=header["skipped"],
        left_out=tuple((key, reason) for key, reason in left_out),
        key_rule=header.get("key_rule", FIRST_DOT),
        stored=_stored(header["stored"]) if "stored" in header else None,
        tolerance=_tolerance(header["tolerance"]) if "tolerance" in header else STRICT,
        **arrays,
    )


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _stored(given: dict[str, Any]) -> Stored:
    if not isinstance(given["size"], int) or not isinstance(given["sha256"], str):
        raise ValueError("size or digest of the file are not of their types")
    return Stored(given["size"], given["sha256"])


def _tolerance(given: dict[str, Any]) -> Tolerance:
    excluded = given.get("excluded", [])
    flags = {name: value for name, value in given.items() if name != "excluded"}
    are_keys = _are_texts(excluded)
    are_known = flags.keys() <= asdict(STRICT).keys()
    if not (are_keys and are_known and all(isinstance(value, bool) for value in flags.values())):
        raise ValueError("the tolerance is not of its type")
    return Tolerance(**flags, excluded=tuple(excluded))


def _check(index: ShardIndex) -> None:
    """Raise ``ValueError`` where the arrays of an index disagree, so that no reader reads out of bounds."""
    samples, members = len(index.sample_starts) - 1, len(index.offsets)
    checks: dict[str, Callable[[], bool]] = {  # each relies on those before it
        "lengths": lambda: (
            len(index.sizes) == len(index.extension_ids) == members and len(index.key_starts) == samples + 1
        ),
        "checksums": lambda: index.checksums is None or len(index.checksums) == members,
        "samples": lambda: _is_divided(index.sample_starts, members) and bool((np.diff(index.sample_starts) > 0).all()),
        "keys": lambda: _is_divided(index.key_starts, len(index.key_bytes)),
        "extensions": lambda: not members or int(index.extension_ids.max()) < len(index.extensions),
        "members": lambda: not members or min(int(index.offsets.min()), int(index.sizes.min())) >= 0,
        "ends": lambda: not members or bool((index.offsets <= index.size - index.sizes).all()),
    }
    for what, fits in checks.items():
        if not fits():
            raise ValueError(f"its {what} do not fit together")


def _is_divided(starts: Int64s, total: int) -> bool:
    """Return whether starts are non-decreasing from 0 to ``total``."""
    return len(starts) > 0 and starts[0] == 0 and starts[-1] == total and bool((np.diff(starts) >= 0).all())


def _checksum(header_length: int, rest: bytes | bytearray | memoryview) -> int:
    # The header ends in spaces: a wrong length could still give a header, and shift every array behind it.
    return zlib.crc32(rest, header_length)
