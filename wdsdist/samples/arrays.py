"""Members that hold numbers and nothing else: ``.npy`` files, and raw arrays of a known type.

Where all members of a column have one size, they become one tensor without being looked at one by one.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from wdsdist.errors import ArgumentTypeError, DecodeError
from wdsdist.samples.collate import Stacked

_NPY_PREFIX = 12
"""Bytes that tell where the data of any ``.npy`` file starts."""
_LONGEST_HEADER = 12 + 10_000
"""As numpy has it; headers are kept, so a longer one would be kept too."""
_NO_HEADER = 1 << 62


@dataclass(frozen=True, slots=True)
class RawArray:
    """Decodes members that are arrays without a header; ``decode={"bin": np.uint16}`` makes one.

    >>> RawArray.of("bin", "<u2")(b"\\1\\0\\2\\0")
    array([1, 2], dtype=uint16)
    """

    dtype: np.dtype[Any]
    """Of one element, in this machine's byte order or another."""
    shape: tuple[int, ...] = ()
    """Of the array, where it is fixed."""

    @classmethod
    def of(cls, extension: str, dtype: Any) -> RawArray:
        """Make a decoder of anything numpy or torch calls a dtype; a sub-array dtype also fixes the shape.

        Raises `ArgumentTypeError` for what is none, and for dtypes that are not numbers.
        """
        try:
            named = np.dtype(str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype)
        except TypeError as error:
            raise ArgumentTypeError(f"decode maps {extension!r} to {dtype!r}: {error}") from error
        base, shape = named.subdtype or (named, ())
        if base.kind not in "biufc":
            raise ArgumentTypeError(f"decode maps {extension!r} to {dtype!r}: it must be a dtype of numbers")
        return cls(base, shape)

    def __call__(self, data: bytes) -> npt.NDArray[Any]:
        """Return the array in a member's bytes, in this machine's byte order."""
        if len(data) % self._step:
            raise DecodeError(f"{len(data):,} bytes are not a multiple of the {self._step:,} that one array has")
        array: npt.NDArray[Any] = np.frombuffer(data, self.dtype).astype(self.dtype.newbyteorder("="))
        return array.reshape(self.shape) if self.shape and len(data) == self._step else array.reshape(-1, *self.shape)

    @property
    def _step(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def stacked(self, parts: Sequence[memoryview]) -> Stacked | None:
        """Return members of one size as one tensor, or ``None`` where each has to be decoded by itself."""
        size = len(parts[0])
        dtype = torch_dtype(self.dtype)
        if dtype is None or not self._step or size % self._step or any(len(part) != size for part in parts):
            return None
        arrays = size // self._step
        shape = self.shape if self.shape and arrays == 1 else (arrays, *self.shape)
        return Stacked(parts, dtype, (len(parts), *shape))


def stacked_npy(parts: Sequence[memoryview]) -> Stacked | None:
    """Return ``.npy`` members that have the same header as one tensor, or ``None`` where they have not."""
    first = parts[0]
    size = len(first)
    if any(len(part) != size for part in parts):
        return None
    length = _npy_header_length(bytes(first[:_NPY_PREFIX]))
    header = first[:length]
    if length > size or any(part[:length] != header for part in parts):
        return None
    layout = _npy_layout(bytes(header))
    if layout is None or layout.is_fortran or not layout.is_possible:
        return None
    dtype = torch_dtype(layout.dtype)
    # Where there is no element, a shape may hold numbers that torch cannot count with.
    if dtype is None or not layout.num_bytes or size - length != layout.num_bytes:
        return None
    return Stacked([part[length:] for part in parts], dtype, (len(parts), *layout.shape))


def read_npy(data: bytes) -> npt.NDArray[Any]:
    """Return the array in a ``.npy`` member, which holds no Python objects; what follows it is ignored, as by numpy.

    Raises `DecodeError` where the header announces more than follows it, or numbers that are no shape, and
    ``ValueError`` for what is no ``.npy`` file.
    """
    length = _npy_header_length(data[:_NPY_PREFIX])
    layout = _npy_layout(data[:length]) if length <= len(data) else None
    if layout is not None and not layout.is_possible:
        raise DecodeError(f"the header announces shape {layout.shape}, which no array has: write the array again")
    if layout is not None and layout.num_bytes > len(data) - length:
        raise DecodeError(
            f"the header announces shape {layout.shape} of {layout.dtype}, which takes {layout.num_bytes:,} bytes, but "
            f"{len(data) - length:,} follow it: write the array again"
        )
    array: npt.NDArray[Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    """Return torch's name of a dtype, or ``None`` where it has none, as for another byte order."""
    if not dtype.isnative or dtype.kind not in "biufc":
        return None
    found = getattr(torch, dtype.name, None)
    return found if isinstance(found, torch.dtype) else None


def _npy_header_length(prefix: bytes) -> int:
    """Return where the data of a ``.npy`` file starts, or more than any file has where numpy reads no header."""
    # The format is that of numpy.lib.format: magic, two bytes of version, length of the header, header.
    if prefix[:6] != b"\x93NUMPY" or len(prefix) < _NPY_PREFIX or prefix[6] not in (1, 2, 3) or prefix[7]:
        return _NO_HEADER
    length = 10 + int.from_bytes(prefix[8:10], "little")
    if prefix[6] > 1:
        length = 12 + int.from_bytes(prefix[8:12], "little")
    return length if length <= _LONGEST_HEADER else _NO_HEADER


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the header of a ``.npy`` file announces."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool

    @property
    def num_bytes(self) -> int:
        """Bytes that the array takes: a product of Python's integers, which do not wrap around as int64 does."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_possible(self) -> bool:
        """Whether an array can have the shape; torch would find out later, and name no shard."""
        return all(not isinstance(length, bool) and 0 <= length < 2**63 for length in self.shape)


@functools.lru_cache(maxsize=64)
def _npy_layout(header: bytes) -> _Layout | None:
    """Return the layout that a header announces, or ``None`` where numpy reads no header there."""
    stream = io.BytesIO(header)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(stream)
    except Exception:  # of ast and tokenize too; `read_array` meets it again, and says what it is
        return None
    return _Layout(dtype, shape, bool(is_fortran))
