"""Headers of ``.npy`` files: the start of the data, the dtype and the shape."""

from __future__ import annotations

import functools
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

NPY_MAGIC = b"\x93NUMPY"
"""The first bytes of a ``.npy`` file."""
_PREFIX = 12
"""Bytes that are enough to find the start of the data in any ``.npy`` file."""
_LONGEST_HEADER = 12 + 10_000
"""Numpy's own limit. Headers are cached, so a longer header would be cached too."""
_NO_HEADER = 1 << 62


@dataclass(frozen=True, slots=True)
class NpyLayout:
    """Dtype, shape and data offset that the header of a ``.npy`` file declares."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool

    @property
    def num_elements(self) -> int:
        """Items of the array."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes that the array takes: a product of Python's integers, which do not wrap around as int64 does."""
        return self.num_elements * self.dtype.itemsize

    @property
    def is_possible(self) -> bool:
        """Whether an array can have the shape; torch would find out later, and name no shard."""
        return all(not isinstance(length, bool) and 0 <= length < 2**63 for length in self.shape)


def npy_header(data: bytes | memoryview) -> tuple[int, NpyLayout | None]:
    """Return where the data of a ``.npy`` file begins, and its layout; ``None`` if numpy reads no header."""
    length = _header_length(bytes(data[:_PREFIX]))
    return length, _layout(bytes(data[:length])) if length <= len(data) else None


def _header_length(prefix: bytes) -> int:
    """Return the offset of the data, beyond any file's end if numpy reads no header."""
    # As numpy.lib.format has it: magic, two bytes of version, length of the header, header.
    if prefix[:6] != NPY_MAGIC or len(prefix) < _PREFIX or prefix[6] not in (1, 2, 3) or prefix[7]:
        return _NO_HEADER
    length = 10 + int.from_bytes(prefix[8:10], "little")
    if prefix[6] > 1:
        length = 12 + int.from_bytes(prefix[8:12], "little")
    return length if length <= _LONGEST_HEADER else _NO_HEADER


@functools.lru_cache(maxsize=64)
def _layout(header: bytes) -> NpyLayout | None:
    stream = io.BytesIO(header)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(stream)
    except Exception:  # of ast and tokenize too; `read_array` raises it again, with a message
        return None
    return NpyLayout(dtype, shape, bool(is_fortran))
