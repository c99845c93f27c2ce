"""Masks, also called label maps: images whose pixels are class numbers or depths, cut and resized.

Values are taken as they are stored, by the nearest pixel: a mean of classes is no class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist._util import orientation
from wdsdist._util.array_types import Int64s
from wdsdist._util.npy_header import NPY_MAGIC
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.codecs import read_npy
from wdsdist.samples.images.limits import check_size, opened

if TYPE_CHECKING:
    import torch

_SIGNED = {np.dtype(np.bool_): np.uint8, np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}
"""What holds the values of dtypes that torch computes little with."""


class Span(NamedTuple):
    """Where the pixels of one axis of a resized mask come from."""

    start: float
    """Pixels of the mask before the first one."""
    step: float
    """Pixels of the mask to one of the result."""
    size: int
    """Pixels of the result."""

    def places(self, length: int) -> Int64s:
        """Return the pixels of the mask, of so many, in which the centres of those of the result lie.

        >>> Span(10, 2.5, 4).places(20).tolist()
        [11, 13, 16, 18]
        """
        centres = self.start + (np.arange(self.size) + 0.5) * self.step
        places: Int64s = np.minimum(centres, length - 1).astype(np.int64)
        return places


def read_mask(data: Any, max_pixels: int) -> npt.NDArray[Any]:
    """Return the values of a mask, [height, width] or of several channels [height, width, channels], upright.

    Of a palette they are its indices, of 16 bits all 16. ``data`` is an encoded image or a ``.npy`` file (bytes), or an
    array or tensor [height, width].

    Raises `SampleError` for an image or file that is damaged, holds no mask or has more than ``max_pixels``, and
    `ArgumentError` for an array that is none.

    >>> read_mask(b"P5 3 2 65535 " + bytes(range(12)), 100).tolist()
    [[1, 515, 1029], [1543, 2057, 2571]]
    """
    if not isinstance(data, (bytes, memoryview)):
        values = np.asarray(data)
        _check_shape(values, ArgumentError)
    elif data[: len(NPY_MAGIC)] == NPY_MAGIC:
        values = read_npy(bytes(data))
        _check_shape(values, SampleError)
        check_size(values.shape[1], values.shape[0], max_pixels)
    else:
        with opened(data, max_pixels) as image:
            turn = orientation.of_image(image)
            values = orientation.upright(np.asarray(image), turn)
    native = values.dtype.newbyteorder("=")
    return values.astype(_SIGNED.get(native, native), copy=False)


def _check_shape(values: npt.NDArray[Any], error: type[Exception]) -> None:
    if values.ndim != 2 or values.dtype.kind not in "biuf" or not values.size:
        raise error(f"the mask is {values.dtype} {list(values.shape)}: it must be numbers [height, width]")


def nearest(values: npt.NDArray[Any], rows: Span, columns: Span, *, flip: bool = False) -> torch.Tensor:
    """Return a part of a mask at another size, mirrored if asked for: [height, width] or [channels, height, width].

    >>> nearest(np.array([[1, 2], [3, 4]]), Span(0, 0.5, 4), Span(1, 0.5, 2)).tolist()
    [[2, 2], [2, 2], [4, 4], [4, 4]]
    """
    import torch

    places = columns.places(values.shape[1])
    part = values[rows.places(values.shape[0])[:, None], places[::-1] if flip else places]
    return torch.from_numpy(np.ascontiguousarray(part if part.ndim == 2 else part.transpose(2, 0, 1)))
