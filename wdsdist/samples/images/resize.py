"""Resize pixels: the work of the transforms once they know which part of an image they want."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist._util.npy_header import NPY_MAGIC, NPY_PREFIX, npy_header_length, npy_layout
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.images.decode import Encoded, EncodedImage, Pixels, opencv
from wdsdist.samples.images.header import MAX_PIXELS, check_size

if TYPE_CHECKING:
    import torch

_LARGEST_LINEAR_STEP = 2.0
"""Source pixels to a pixel, up to which plain bilinear interpolation is taken: up to there every source pixel has a
weight. Photo-like images then differ from antialiased ones by 42 dB or more; beyond, pixels would be skipped."""


class Source:
    """An image, encoded or not: its size at once, its pixels once the needed size is known.

    Pixels in a ``.npy`` file are not copied.

    Raises `ArgumentError` for data that holds no image, and `SampleError` for encoded data that cannot be read.

    >>> source = Source(b"P5 3 2 255 " + bytes(6))
    >>> source.width, source.height, source.decode(1, 1)[0].shape
    (3, 2, (2, 3, 3))
    """

    __slots__ = ("_image", "height", "width")

    def __init__(self, data: Any, max_pixels: int = MAX_PIXELS) -> None:
        self._image: EncodedImage | Pixels
        if isinstance(data, (bytes, memoryview)) and data[:6] != NPY_MAGIC:
            self._image = EncodedImage(data, max_pixels)
            self.width, self.height = self._image.size
            return
        is_file = isinstance(data, (bytes, memoryview))
        self._image = _within_npy(data, max_pixels) if is_file else _pixels_of(data)
        self.height, self.width = self._image.shape[:2]

    def decode(self, min_width: int, min_height: int) -> tuple[Pixels, int]:
        """Return pixels, and the factor by which width and height were divided."""
        return (self._image, 1) if isinstance(self._image, np.ndarray) else self._image.decode(min_width, min_height)


def _within_npy(data: Encoded, max_pixels: int) -> Pixels:
    """Return the pixels in a ``.npy`` file, as a view of it."""
    start = npy_header_length(bytes(data[:NPY_PREFIX]))
    layout = npy_layout(bytes(data[:start])) if start <= len(data) else None
    if layout is None or layout.num_bytes != len(data) - start:
        raise SampleError(f"a .npy file of {len(data):,} bytes has another length than its header says")
    shape = layout.shape
    if layout.dtype != np.uint8 or layout.is_fortran or shape[2:] != (3,) or not layout.num_bytes:
        raise SampleError(f"a .npy file holds {layout.dtype} {list(shape)}: an image is uint8 [height, width, 3]")
    check_size(shape[1], shape[0], max_pixels)
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _pixels_of(data: Any) -> Pixels:
    import torch

    pixels = data
    if isinstance(data, torch.Tensor) and data.ndim == 3 and data.device.type == "cpu":
        pixels = data.permute(1, 2, 0).numpy()
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[2:] != (3,) or not pixels.size:
        kind = f"{data.dtype} {list(data.shape)}" if isinstance(data, (np.ndarray, torch.Tensor)) else repr(type(data))
        raise ArgumentError(
            f"the image is {kind}: a transform takes bytes, a uint8 array [height, width, 3] or "
            f"a uint8 tensor [3, height, width] in the CPU's memory"
        )
    return pixels


def scaled(start: int, length: int, scale: int, limit: int) -> tuple[int, int]:
    """Return start and end of a range of the full image among ``limit`` scaled pixels; never an empty one.

    >>> scaled(5, 91, 4, 50), scaled(399, 1, 8, 50)
    ((1, 24), (49, 50))
    """
    first = min(round(start / scale), limit - 1)
    return first, min(max(round((start + length) / scale), first + 1), limit)


def resize(pixels: Pixels, width: int, height: int, *, flip: bool = False) -> torch.Tensor:
    """Return pixels [height, width, 3] at another size, mirrored if asked for: [3, height, width], channels last.

    >>> resized = resize(np.full((9, 7, 3), 5, np.uint8), 2, 4)
    >>> resized.shape, resized.unique()
    (torch.Size([3, 4, 2]), tensor([5], dtype=torch.uint8))
    """
    import torch

    cv2 = opencv()
    if cv2 is None or max(pixels.shape[1] / width, pixels.shape[0] / height) > _LARGEST_LINEAR_STEP:
        result = antialiased(pixels, size=(height, width))
        return (result.flip(1) if flip else result).permute(2, 0, 1)
    resized = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
    # Numpy exchanges the dimensions: torch takes many times as long to.
    return torch.from_numpy((cv2.flip(resized, 1) if flip else resized).transpose(2, 0, 1))


def antialiased(pixels: Pixels, **how: Any) -> torch.Tensor:
    """Return pixels [height, width, 3] at another size, averaged over all source pixels that a pixel covers.

    ``how`` is ``size=(height, width)`` or ``scale_factor=(height's, width's)``, as torch takes them.

    >>> antialiased(np.full((9, 7, 3), 5, np.uint8), size=(2, 4)).shape
    torch.Size([2, 4, 3])
    """
    # torch has Pillow's filter in vector code: four times as fast as Pillow, and faster than OpenCV's INTER_AREA.
    import torch

    # `reshape`, and no None as an index: the stride it gives the batch of one lets torch see that channels are last.
    # Otherwise it takes a slower way and puts them first.
    own = np.require(pixels, requirements=("C", "W"))  # torch warns of arrays that cannot be written to
    batch = torch.from_numpy(own.reshape(1, *own.shape)).permute(0, 3, 1, 2)
    return torch.nn.functional.interpolate(batch, mode="bilinear", antialias=True, **how)[0].permute(1, 2, 0)
