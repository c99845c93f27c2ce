"""Files of arrays: a preamble, a JSON header, then little-endian arrays on 64-byte boundaries, which can be mapped.

Views and columns are such files. The checksum in the preamble covers the header; the header holds the SHA-256 of the
arrays, which is not computed when a file is opened, because that would read all of it.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist._util.files import atomic_write, mapped
from wdsdist.errors import IndexFormatError

_PREAMBLE = struct.Struct("<8sIIII")  # magic, version, header length, CRC-32 of the header, zero
_ALIGNMENT = 64
_MOST_HEADER = 64 << 20
MAGIC_BYTES = 8
"""The first bytes of a file, which say what it is."""


class ArrayFile(NamedTuple):
    """The content of a file of arrays."""

    header: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]
    digest: str
    """SHA-256 of the arrays, as the file states it."""
    head: bytes
    """The bytes up to the arrays, as `save` returns them."""


def digest_of(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the SHA-256 of arrays, one after another."""
    state = hashlib.sha256()
    for array in arrays.values():
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()


def save(
    path: Path, magic: bytes, version: int, header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> bytes:
    """Write a file of arrays atomically; the same content always gives the same bytes.

    Returns the bytes up to the arrays, which hold their digest: what identifies the file.
    """
    places, end = {}, 0
    for name, array in arrays.items():
        start = end + -end % _ALIGNMENT
        places[name] = (array.dtype.str, start, len(array))
        end = start + array.nbytes
    text = json.dumps({**header, "arrays": places, "digest": digest_of(arrays)}, ensure_ascii=True).encode()
    text += b" " * (-(_PREAMBLE.size + len(text)) % _ALIGNMENT)
    head = _PREAMBLE.pack(magic, version, len(text), zlib.crc32(text), 0) + text
    with atomic_write(path) as stream:
        stream.write(head)
        written = 0
        for name, array in arrays.items():
            stream.write(bytes(places[name][1] - written))
            stream.write(np.ascontiguousarray(array).data)
            written = places[name][1] + array.nbytes
    return head


def load(
    content: bytes | Path, magic: bytes, versions: Mapping[int, Mapping[str, str]], *, what: str, label: str
) -> ArrayFile:
    """Load a file; the arrays are views of its bytes.

    Args:
        content: all bytes, or the path of a file, which is mapped.
        magic: that the file must have.
        versions: those that the file can have, each with the arrays that it then has, as their types are written.
        what, label: the kind and the name of the file in errors.

    Raises `IndexFormatError` where the file is not of that kind, or its header is damaged, and ``FileNotFoundError``.
    """
    view = mapped(content) if isinstance(content, Path) else memoryview(content)
    try:
        found, stated, length, crc, _ = _PREAMBLE.unpack_from(view)
        if found != magic or stated not in versions or length > _MOST_HEADER:
            raise ValueError(f"magic {found!r}, version {stated}")
        head, data = bytes(view[: _PREAMBLE.size + length]), view[_PREAMBLE.size + length :]
        text = head[_PREAMBLE.size :]
        if zlib.crc32(text) != crc:
            raise ValueError("the checksum of its header is wrong")
        header = json.loads(text)
        arrays = {name: _array(data, header["arrays"][name], dtype) for name, dtype in versions[stated].items()}
        digest = header.pop("digest")
        del header["arrays"]
        return ArrayFile(header, arrays, str(digest), head)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        known = " or ".join(map(str, versions))
        raise IndexFormatError(f"{label} is not a {what} of version {known} ({reason}): make it anew") from error


def _array(data: memoryview, place: Any, dtype: str) -> npt.NDArray[Any]:
    stated, start, count = place
    if stated != dtype:
        raise ValueError(f"an array is of type {stated!r}, not {dtype!r}")
    if not (type(start) is type(count) is int and start >= 0 <= count):
        raise ValueError(f"an array has {count!r} items from byte {start!r} on")
    return np.frombuffer(data, dtype, count, start) if count else np.zeros(0, dtype)
