"""The orientation that encoded images ask for, as a camera noted it in EXIF data, and pixels turned upright by it.

Source: Exif 2.32, 4.6.4: the tag ``Orientation`` of the first directory says where the first row and column belong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image

UPRIGHT = 1
EXIF_PREFIX = b"Exif\0\0"
"""What EXIF data begins with in a JPEG."""

_TAG, _SHORT = 0x0112, 3
_APP0, _APP1, _APP15 = 0xE0, 0xE1, 0xEF
_TURNED = 5
"""From this orientation on, rows of the file are columns of the image."""


def is_turned(orientation: int) -> bool:
    """Return whether an EXIF orientation swaps width and height."""
    return orientation >= _TURNED


def read_exif(read: Callable[[int, int], bytes], start: int, stop: int) -> int:
    """Return the orientation in EXIF data, 1 to 8; 1 where it says nothing that can be read.

    Args:
        read: returns the bytes of the file from one offset up to another.
        start: of the data, which may begin with `EXIF_PREFIX`.
        stop: where the data ends.

    >>> data = b"II*\\0\\x08\\0\\0\\0\\x01\\0\\x12\\x01\\x03\\0\\x01\\0\\0\\0\\x06\\0\\0\\0"
    >>> read_exif(lambda first, last: data[first:last], 0, len(data))
    6
    """
    try:
        if stop - start > len(EXIF_PREFIX) and read(start, start + len(EXIF_PREFIX)) == EXIF_PREFIX:
            start += len(EXIF_PREFIX)
        order = {b"II": "<", b"MM": ">"}[read(start, start + 2)]
        first = start + struct.unpack(f"{order}I", read(start + 4, start + 8))[0]
        (count,) = struct.unpack(f"{order}H", read(first, first + 2))
        for place in range(first + 2, min(first + 2 + 12 * count, stop - 9), 12):
            tag, kind, _, value = struct.unpack(f"{order}HHIH", read(place, place + 10))
            if tag == _TAG:
                return int(value) if kind == _SHORT and 1 <= value <= 8 else UPRIGHT
    except (struct.error, ValueError, KeyError):  # cut short, or of no known byte order
        pass
    return UPRIGHT


def of_jpeg(data: bytes | memoryview) -> int:
    """Return the orientation that a JPEG asks for, 1 to 8; 1 where it says nothing that can be read.

    >>> of_jpeg(b"\\xff\\xd8\\xff\\xdb"), of_jpeg(b"")
    (1, 1)
    """
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF and _APP0 <= data[place + 1] <= _APP15:
        length = data[place + 2] << 8 | data[place + 3]
        if data[place + 1] == _APP1 and data[place + 4 : place + 10] == EXIF_PREFIX:
            return of_exif(bytes(data[place + 4 : place + 2 + length]))
        place += 2 + length
    return UPRIGHT


def of_image(image: Image.Image) -> int:
    """Return the orientation that an image which Pillow opened asks for; Pillow itself heeds that of a TIFF."""
    data = image.info.get("exif")
    return of_exif(data) if isinstance(data, bytes) and image.format != "TIFF" else UPRIGHT


def of_exif(data: bytes) -> int:
    """Return the orientation in EXIF data, 1 to 8; 1 where it says nothing that can be read."""
    return read_exif(lambda start, stop: data[start:stop], 0, len(data))


def upright(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """Return pixels [height, width, ...] as they are to be seen.

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
