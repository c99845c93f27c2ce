"""Files of arrays: a preamble, a JSON header, then little-endian arrays on 64-byte boundaries, which can be mapped.

Shard indexes and views are such files. The CRC-32 in the preamble covers the header; the header holds the XXH3-128 of
the arrays, which is computed on request only: it reads all of the file.
"""

from __future__ import annotations

import json
import reprlib
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from wdsdist._util.files import mapped
from wdsdist.errors import IndexFormatError

_PREAMBLE = struct.Struct("<8sIIII")  # magic, version, header length, CRC-32 of the header, zero
_ALIGNMENT = 64
_MOST_HEADER = 1 << 30

Arrays = Mapping[str, npt.NDArray[Any]]


class Format(NamedTuple):
    """A kind of files of arrays."""

    magic: bytes
    """The first eight bytes of each file."""
    version: int
    arrays: Mapping[str, str]
    """The types of the arrays, as they are written."""
    optional: str
    """The array that a file may lack."""
    what: str
    """Names the kind in errors."""
    remedy: str = "make it again"

    def arrays_of(self, source: object) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that an object has under these names, in these types, one-dimensional."""
        named = {name: getattr(source, name) for name in self.arrays}
        return {
            name: np.ascontiguousarray(array, self.arrays[name]).ravel()
            for name, array in named.items()
            if array is not None
        }

    def dumps(self, header: Mapping[str, Any], arrays: Arrays) -> bytes:
        """Return the bytes of a file; the same content always gives the same bytes."""
        places, end = {}, 0
        pieces: list[bytes | memoryview] = []
        for name, array in arrays.items():
            start = end + -end % _ALIGNMENT
            places[name] = (array.dtype.str, start, len(array))
            pieces += bytes(start - end), array.data.cast("B")
            end = start + array.nbytes
        content = json.dumps({**header, "arrays": places, "digest": digest_of(arrays)}, ensure_ascii=True).encode()
        content += b" " * (-(_PREAMBLE.size + len(content)) % _ALIGNMENT)
        preamble = _PREAMBLE.pack(self.magic, self.version, len(content), _checksum(content), 0)
        return b"".join([preamble, content, *pieces])

    def load(self, content: bytes | memoryview | Path, label: str, *, check: bool = False) -> ArrayFile:
        """Load all bytes of a file, or map it by its path; the arrays are views of its bytes.

        ``check`` is whether to compare them with their digest. The label names the file in errors.

        Raises `IndexFormatError` if the file is of another kind or version, or damaged, and ``FileNotFoundError``.
        """
        view = mapped(content) if isinstance(content, Path) else memoryview(content)
        try:
            magic, version, length, crc, _ = _PREAMBLE.unpack_from(view)
            if magic != self.magic or length > _MOST_HEADER:
                raise ValueError(f"it begins with {magic!r}")
            if version != self.version:
                raise ValueError(f"it is of version {version}")
            header_bytes, data = bytes(view[_PREAMBLE.size : _PREAMBLE.size + length]), view[_PREAMBLE.size + length :]
            if _checksum(header_bytes) != crc:
                raise ValueError("the checksum of its header is wrong")
            header = json.loads(header_bytes)
            places, digest = header.pop("arrays"), str(header.pop("digest"))
            loaded = {
                name: _array(data, places[name], name, dtype)
                for name, dtype in self.arrays.items()
                if name != self.optional or name in places
            }
            if check and digest_of(loaded) != digest:
                raise ValueError("its checksum is wrong")
            return ArrayFile(header, loaded, digest)
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise IndexFormatError(
                f"{label} is not a {self.what} of version {self.version} ({reason}): {self.remedy}"
            ) from error


class ArrayFile(NamedTuple):
    """The content of a file of arrays."""

    header: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]
    digest: str
    """XXH3-128 of the arrays, as the file states it."""


def digest_of(arrays: Arrays) -> str:
    """Return the XXH3-128 of arrays, one after another."""
    state = xxhash.xxh3_128()
    for array in arrays.values():
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()


def _array(data: memoryview, position: Any, name: str, dtype: str) -> npt.NDArray[Any]:
    if not (isinstance(position, list) and [*map(type, position)] == [str, int, int] and min(position[1:]) >= 0):
        raise ValueError(f"its {name} lie at {reprlib.repr(position)}, not at [type, first byte, items]")
    stated, start, count = position
    if stated != dtype:
        raise ValueError(f"its {name} are of type {stated!r}, not {dtype!r}")
    return np.frombuffer(data, dtype, count, start) if count else np.zeros(0, dtype)


def _checksum(header: bytes) -> int:
    # The header ends in spaces: a wrong length could still give a header, and shift every array behind it.
    return zlib.crc32(header, len(header))
