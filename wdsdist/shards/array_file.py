"""Files of arrays: a preamble, a JSON header, then little-endian arrays on 64-byte boundaries, which can be mapped.

Shard indexes and views are such files. The preamble holds the XXH3-128 of all bytes behind it.
"""

from __future__ import annotations

import json
import reprlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from wdsdist._util.files import mapped
from wdsdist.errors import IndexFormatError

_PREAMBLE = struct.Struct("<8sII16s")  # magic, version, bytes of the header, digest
_ALIGNMENT = 64
_MOST_HEADER = 1 << 30

Arrays = dict[str, npt.NDArray[Any]]


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

    def arrays_of(self, source: object) -> Arrays:
        """Return the arrays that an object has under these names, in these types, one-dimensional."""
        named = {name: getattr(source, name) for name in self.arrays}
        return {
            name: np.ascontiguousarray(array, self.arrays[name]).ravel()
            for name, array in named.items()
            if array is not None
        }

    def dumps(self, header: Mapping[str, Any], source: object) -> bytes:
        """Return the bytes of a file with the arrays of an object; the same content always gives the same bytes."""
        arrays = self.arrays_of(source)
        lengths = {name: len(array) for name, array in arrays.items()}
        content = json.dumps({**header, "lengths": lengths}, ensure_ascii=True).encode()
        content += b" " * (-(_PREAMBLE.size + len(content)) % _ALIGNMENT)
        pieces: list[bytes | memoryview] = [content]
        for array in arrays.values():
            pieces += array.data.cast("B"), bytes(-array.nbytes % _ALIGNMENT)
        state = xxhash.xxh3_128()
        for piece in pieces:
            state.update(piece)
        return b"".join([_PREAMBLE.pack(self.magic, self.version, len(content), state.digest()), *pieces])

    def load(self, content: bytes | memoryview | Path, label: str) -> tuple[dict[str, Any], Arrays]:
        """Load the header and the arrays of a file, which is mapped if it is given by its path.

        The arrays are views of its bytes. The label names the file in errors.

        Raises `IndexFormatError` if the file is of another kind or version, or damaged, and ``FileNotFoundError``.
        """
        view = mapped(content) if isinstance(content, Path) else memoryview(content)
        try:
            magic, version, length, digest = _PREAMBLE.unpack_from(view)
            if magic != self.magic or length > _MOST_HEADER:
                raise ValueError(f"it begins with {magic!r}")
            if version != self.version:
                raise ValueError(f"it is of version {version}")
            if xxhash.xxh3_128(view[_PREAMBLE.size :]).digest() != digest:
                raise ValueError("its checksum is wrong")
            start = _PREAMBLE.size + length
            header = json.loads(bytes(view[_PREAMBLE.size : start]))
            lengths, arrays = header.pop("lengths"), {}
            for name, dtype in self.arrays.items():
                if name == self.optional and name not in lengths:
                    continue
                items = lengths[name]
                if type(items) is not int or items < 0:
                    raise ValueError(f"its {name} have the length {reprlib.repr(items)}")
                array = np.frombuffer(view, dtype, items, start) if items else np.zeros(0, dtype)
                arrays[name], start = array, start + array.nbytes + -array.nbytes % _ALIGNMENT
            return header, arrays
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise IndexFormatError(
                f"{label} is not a {self.what} of version {self.version} ({reason}): {self.remedy}"
            ) from error
