"""Orientations of images by their EXIF data, and pixels turned upright; the size of an image by its first bytes.

Source of the orientation: Exif 2.32, 4.6.4: the tag ``Orientation`` of the first directory tells where the first row
and column belong.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wdsdist._util.extras import extra
from wdsdist.errors import SampleError

if TYPE_CHECKING:
    from PIL import Image

UPRIGHT = 1

_EXIF = b"Exif\0\0"
_TAG, _SHORT = 0x0112, 3
_APP0, _APP1, _APP15 = 0xE0, 0xE1, 0xEF
_TURNED = 5
"""From this orientation on, rows of the file are columns of the image."""


class ShortError(Exception):
    """A header is longer than the bytes read so far; ``needed`` is how many have to be read."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


@dataclass(frozen=True, slots=True)
class Head:
    """The first bytes of a member."""

    data: memoryview
    size: int
    """Bytes of the whole member."""
    extension: str = ""
    """The extension of the member, as stored."""

    def __call__(self, start: int, stop: int) -> bytes:
        """Return some of the bytes.

        Raises `ShortError` if they are not read yet, ``ValueError`` if the member ends before them.
        """
        if stop > self.size:
            raise ValueError("it is cut short")
        if stop > len(self.data):
            raise ShortError(stop)
        return bytes(self.data[start:stop])


def image_size(head: Head) -> tuple[int, int]:
    """Return (width, height) of an image once it is upright.

    Raises `ShortError` if its header is longer than the bytes read so far, and ``ValueError`` for anything else than an
    image.
    """
    extra("PIL", "images", "the size of images")
    from wdsdist.samples.images import decode

    try:
        return decode.image_size(head.data)
    except SampleError:
        if len(head.data) < head.size:
            raise ShortError(len(head.data) + 1) from None
        raise


def is_turned(orientation: int) -> bool:
    """Return whether an EXIF orientation swaps width and height."""
    return orientation >= _TURNED


def exif_orientation(data: bytes) -> int:
    """Return the orientation in EXIF data, 1 to 8; 1 if it has none.

    >>> exif_orientation(b"Exif\\0\\0II*\\0\\x08\\0\\0\\0\\x01\\0\\x12\\x01\\x03\\0\\x01\\0\\0\\0\\x06\\0\\0\\0")
    6
    """
    data = data.removeprefix(_EXIF)
    try:
        order = {b"II": "<", b"MM": ">"}[data[:2]]
        (first,) = struct.unpack_from(f"{order}I", data, 4)
        (count,) = struct.unpack_from(f"{order}H", data, first)
        for number in range(count):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", data, first + 2 + 12 * number)
            if tag == _TAG:
                return int(value) if kind == _SHORT and 1 <= value <= 8 else UPRIGHT
    except (struct.error, KeyError):  # cut short, or of no known byte order
        pass
    return UPRIGHT


def jpeg_orientation(data: bytes | memoryview) -> int:
    """Return the orientation that a JPEG asks for, 1 to 8; 1 if it asks for none.

    >>> jpeg_orientation(b"\\xff\\xd8\\xff\\xdb"), jpeg_orientation(b"")
    (1, 1)
    """
    offset = 2
    while offset + 4 <= len(data) and data[offset] == 0xFF and _APP0 <= data[offset + 1] <= _APP15:
        length = data[offset + 2] << 8 | data[offset + 3]
        if data[offset + 1] == _APP1 and data[offset + 4 : offset + 10] == _EXIF:
            return exif_orientation(bytes(data[offset + 4 : offset + 2 + length]))
        offset += 2 + length
    return UPRIGHT


def image_orientation(image: Image.Image) -> int:
    """Return the orientation that an image of Pillow asks for; Pillow itself turns a TIFF upright."""
    data = image.info.get("exif")
    return exif_orientation(data) if isinstance(data, bytes) and image.format != "TIFF" else UPRIGHT


def upright(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """Return pixels [height, width, ...] turned upright.

    >>> upright(np.array([[1, 2, 3]], np.uint8), 6).tolist(), upright(np.array([[1, 2]], np.uint8), 2).tolist()
    ([[1], [2], [3]], [[2, 1]])
    """
    if orientation == UPRIGHT:
        return pixels
    if is_turned(orientation):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)
