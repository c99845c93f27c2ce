"""Pictures of members for a browser: images at the size they are shown in, arrays as grey values or colours.

Every picture is encoded again from pixels, so that nothing else of a member reaches a browser.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.extras import extra
from wdsdist.errors import SampleError
from wdsdist.samples.images.decode import EncodedImage, Pixels

TILE, PAGE = 320, 1600
"""The longest side, in pixels, of a picture in the grid and of one on a sample's page."""

_LOSSY = (b"\xff\xd8\xff", b"RIFF")
"""Beginnings of formats whose pictures lose nothing more to speak of as a JPEG."""


def of_image(data: bytes, side: int) -> tuple[bytes, str]:
    """Return an encoded image at most ``side`` pixels long and wide, upright, as bytes and media type.

    Raises `SampleError` for what is not an image, is damaged, or has more than 89,478,485 pixels.
    """
    size = _fitted(size_of(data), side)
    pixels, _ = EncodedImage(data).decode(*size)
    return _encoded(pixels, size, is_lossy=data.startswith(_LOSSY))


def size_of(data: bytes) -> tuple[int, int]:
    """Return (width, height) of an encoded image, from its header. Raises `SampleError`."""
    extra("PIL", "view", "showing an image")
    return EncodedImage(data).size


def of_array(array: npt.NDArray[Any], side: int) -> tuple[bytes, str]:
    """Return a picture of an array at most ``side`` pixels long and wide, as bytes and media type.

    Values of uint8, bools and floats from 0 to 1 are shown as they are, others from the least to the most.

    Raises `SampleError` for an array that `has_picture` denies.

    >>> of_array(np.zeros((4, 6)), 320)[1]
    'image/png'
    """
    if not has_picture(array.shape, array.dtype):
        raise SampleError(f"an array of shape {list(array.shape)} and dtype {array.dtype} has no picture")
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4):
        array = np.moveaxis(array, 0, 2)
    step = max(1, math.ceil(max(array.shape[:2]) / (4 * side)))  # no more than a screen needs, however large it is
    pixels = _levels(array[::step, ::step])
    if pixels.ndim == 2 or pixels.shape[2] == 1:
        pixels = np.repeat(pixels.reshape(*pixels.shape[:2], 1), 3, axis=2)
    size = _fitted((pixels.shape[1], pixels.shape[0]), side)
    return _encoded(np.ascontiguousarray(pixels[..., :3]), size, is_lossy=False)


def _fitted(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Return the (width, height) at which a picture of a ``size`` is at most ``side`` pixels long and wide."""
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def has_picture(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether an array can be shown: numbers [height, width], [height, width, 1, 3 or 4] or [1 or 3, h, w].

    >>> has_picture((3, 8, 8), np.dtype(np.float32)), has_picture((1, 8), np.dtype(np.uint8))
    (True, False)
    """
    if dtype.kind not in "buif" or dtype.hasobject:
        return False
    if len(shape) == 3:
        shape = shape[:2] if shape[2] in (1, 3, 4) else shape[1:] if shape[0] in (1, 3) else ()
    return len(shape) == 2 and min(shape) > 1


def _levels(array: npt.NDArray[Any]) -> Pixels:
    """Return numbers as grey levels or colours of 8 bits."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    values = array.astype(np.float64)
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    if array.dtype.kind == "f" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    values = np.nan_to_num((values - low) / ((high - low) or 1.0), nan=0.0, posinf=1.0, neginf=0.0)
    return (values * 255).round().astype(np.uint8)


def _encoded(pixels: Pixels, size: tuple[int, int], *, is_lossy: bool) -> tuple[bytes, str]:
    extra("PIL", "view", "showing a picture")
    from PIL import Image

    image = Image.fromarray(pixels)
    if image.size != size:
        image = image.resize(size, Image.Resampling.BOX if size[0] * 2 < image.width else Image.Resampling.BILINEAR)
    stream = io.BytesIO()
    if is_lossy:
        image.save(stream, "JPEG", quality=88)
        return stream.getvalue(), "image/jpeg"
    image.save(stream, "PNG", compress_level=3)
    return stream.getvalue(), "image/png"
