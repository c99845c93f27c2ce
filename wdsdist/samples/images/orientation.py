"""The orientation that encoded images ask for, and pixels turned upright by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wdsdist._util import exif
from wdsdist._util.exif import PREFIX, UPRIGHT, is_turned

if TYPE_CHECKING:
    from PIL import Image

_APP0, _APP1, _APP15 = 0xE0, 0xE1, 0xEF


def of_jpeg(data: bytes | memoryview) -> int:
    """Return the orientation that a JPEG asks for, 1 to 8; 1 where it says nothing that can be read.

    >>> of_jpeg(b"\\xff\\xd8\\xff\\xdb"), of_jpeg(b"")
    (1, 1)
    """
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF and _APP0 <= data[place + 1] <= _APP15:
        length = data[place + 2] << 8 | data[place + 3]
        if data[place + 1] == _APP1 and data[place + 4 : place + 10] == PREFIX:
            return of_exif(bytes(data[place + 4 : place + 2 + length]))
        place += 2 + length
    return UPRIGHT


def of_image(image: Image.Image) -> int:
    """Return the orientation that an image which Pillow opened asks for; Pillow itself heeds that of a TIFF."""
    exif = image.info.get("exif")
    return of_exif(exif) if isinstance(exif, bytes) and image.format != "TIFF" else UPRIGHT


def of_exif(data: bytes) -> int:
    """Return the orientation in EXIF data, 1 to 8; 1 where it says nothing that can be read."""
    return exif.orientation(lambda start, stop: data[start:stop], 0, len(data))


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
