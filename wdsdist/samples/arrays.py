"""Members that hold numbers alone: ``.npy`` files, and raw arrays of a known type.

If all members of a column have one size, they become one tensor at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from wdsdist._util.npy_header import NPY_PREFIX, npy_header_length, npy_layout
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.collate import Buffer, Stacked


@dataclass(frozen=True, slots=True)
class RawArray:
    """Decodes members that are arrays without a header; ``decode={"bin": np.uint16}`` makes one.

    >>> RawArray.of("bin", "<u2")(b"\\1\\0\\2\\0")
    array([1, 2], dtype=uint16)
    """

    dtype: np.dtype[Any]
    """The dtype of an element, in any byte order."""
    row: tuple[int, ...] = ()
    """The shape of a row; the number of rows follows from the bytes."""
    reads_views: ClassVar[bool] = True

    @classmethod
    def of(cls, extension: str, dtype: Any) -> RawArray:
        """Make a decoder of anything numpy or torch calls a dtype; a sub-array dtype is the type of a row.

        Raises `ArgumentError` for an object that is not a dtype, and for dtypes that are not numbers.
        """
        try:
            named = np.dtype(str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype)
        except TypeError as error:
            raise ArgumentError(
                f"decode maps {extension!r} to {dtype!r}: {error} by numpy; give a function of the bytes, "
                f"such as one that returns torch.frombuffer(bytearray(data), dtype={dtype!r})"
            ) from error
        base, row = named.subdtype or (named, ())
        if base.kind not in "biufc":
            raise ArgumentError(f"decode maps {extension!r} to {dtype!r}: it must be a dtype of numbers")
        return cls(base, row)

    @classmethod
    def noted(cls, note: Any) -> RawArray:
        """Return the decoder of a field whose type `wdsdist.pack` noted in ``index.json``.

        Raises `ArgumentError` for a note that is damaged.
        """
        try:
            dtype, (_, *row) = np.dtype(str(note["dtype"])), note["shape"]
            if dtype.kind in "biufc" and all(isinstance(size, int) and size > 0 for size in row):
                return cls(dtype, tuple(row))
        except (TypeError, ValueError, KeyError, SyntaxError):
            pass
        raise ArgumentError(f"index.json notes {note!r:.200} as the type of an array: pack the data again")

    def __call__(self, data: Buffer) -> npt.NDArray[Any]:
        """Return the array in a member's bytes, in this machine's byte order."""
        if len(data) % self._step:
            raise SampleError(f"{len(data):,} bytes are not a multiple of the {self._step:,} of one row")
        array: npt.NDArray[Any] = np.frombuffer(data, self.dtype).astype(self.dtype.newbyteorder("="))
        return array.reshape(-1, *self.row)

    @property
    def _step(self) -> int:
        return self.dtype.itemsize * math.prod(self.row)  # not numpy's, which is slower than all the rest

    def stacked(self, parts: Sequence[memoryview]) -> Stacked | None:
        """Return members of one size as one tensor, or ``None`` if each has to be decoded by itself."""
        size = len(parts[0])
        dtype = torch_dtype(self.dtype)
        if dtype is None or not self._step or size % self._step or any(len(part) != size for part in parts):
            return None
        return Stacked(parts, dtype, (len(parts), size // self._step, *self.row))


def stacked_npy(parts: Sequence[memoryview]) -> Stacked | None:
    """Return ``.npy`` members that have the same header as one tensor, or ``None`` if headers differ."""
    first = parts[0]
    size = len(first)
    if any(len(part) != size for part in parts):
        return None
    length = npy_header_length(bytes(first[:NPY_PREFIX]))
    header = first[:length]
    if length > size or any(part[:length] != header for part in parts):
        return None
    layout = npy_layout(bytes(header))
    if layout is None or layout.is_fortran or not layout.is_possible:
        return None
    dtype = torch_dtype(layout.dtype)
    # A shape without elements may hold numbers that torch cannot count with.
    if dtype is None or not layout.num_bytes or size - length != layout.num_bytes:
        return None
    return Stacked([part[length:] for part in parts], dtype, (len(parts), *layout.shape))


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    """Return torch's name of a dtype, or ``None`` without one, as for another byte order."""
    if not dtype.isnative or dtype.kind not in "biufc":
        return None
    named = getattr(torch, dtype.name, None)
    return named if isinstance(named, torch.dtype) else None
