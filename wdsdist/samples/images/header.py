"""Headers of images: their size and EXIF orientation without their pixels, and pixels turned upright.

The first bytes tell the format, whatever the extension is. `Head` holds the bytes that were read so far, so that as
little of a remote shard is fetched as the format allows.

Source of the orientation: Exif 2.32, 4.6.4: the tag ``Orientation`` of the first directory tells where the first row
and column belong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image

UPRIGHT = 1
EXIF_PREFIX = b"Exif\0\0"
"""The first bytes of EXIF data in a JPEG."""

_TAG, _SHORT = 0x0112, 3
_APP0, _APP1, _APP15 = 0xE0, 0xE1, 0xEF
_TURNED = 5
"""From this orientation on, rows of the file are columns of the image."""


_NO_SIZE = {0xC4, 0xC8, 0xCC}  # markers of JPEG among those from 0xC0 to 0xCF that begin no frame
_ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a length


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
    """Return (width, height) of a JPEG, PNG or WebP as it is shown: turned as its EXIF orientation says.

    Raises ``ValueError`` for anything else.
    """
    start = head(0, min(16, head.size))
    if start.startswith(b"\xff\xd8"):
        width, height, orientation = _jpeg(head)
    elif start.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height, orientation = _png(head)
    elif start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        width, height, orientation = _webp(head)
    else:
        raise ValueError("it is no JPEG, PNG or WebP")
    if not (0 < width < 2**31 and 0 < height < 2**31):
        raise ValueError(f"its header says {width} x {height} pixels")
    return (height, width) if is_turned(orientation) else (width, height)


def _jpeg(head: Head) -> tuple[int, int, int]:
    offset, orientation = 2, 1
    while True:
        mark, kind = head(offset, offset + 2)
        if mark != 0xFF:
            raise ValueError(f"it is a damaged JPEG: there is no marker at byte {offset:,}")
        if kind == 0xFF or kind in _ALONE:  # a byte of padding
            offset += 1 if kind == 0xFF else 2
            continue
        if kind in (0xD9, 0xDA):
            raise ValueError("it is a JPEG without the size of its image")
        length = int.from_bytes(head(offset + 2, offset + 4), "big")
        if 0xC0 <= kind <= 0xCF and kind not in _NO_SIZE:
            height, width = struct.unpack(">HH", head(offset + 5, offset + 9))
            return width, height, orientation
        if kind == 0xE1 and length > 8 and head(offset + 4, offset + 10) == EXIF_PREFIX:
            orientation = read_exif(head, offset + 10, offset + 2 + length)
        offset += 2 + max(length, 2)


def _png(head: Head) -> tuple[int, int, int]:
    if head(12, 16) != b"IHDR":
        raise ValueError("it is a damaged PNG: it does not begin with its header")
    width, height = struct.unpack(">II", head(16, 24))
    offset, orientation = 33, 1
    while offset + 8 <= head.size:
        length, kind = struct.unpack(">I4s", head(offset, offset + 8))
        if kind == b"eXIf":
            orientation = read_exif(head, offset + 8, offset + 8 + length)
        if kind in (b"IDAT", b"IEND", b"eXIf"):
            break
        offset += 12 + length
    return width, height, orientation


def _webp(head: Head) -> tuple[int, int, int]:
    kind = head(12, 16)
    if kind == b"VP8 ":
        if head(23, 26) != b"\x9d\x01\x2a":
            raise ValueError("it is a damaged WebP: its first frame has no start code")
        width, height = struct.unpack("<HH", head(26, 30))
        return width & 0x3FFF, height & 0x3FFF, 1
    if kind == b"VP8L":
        if head(20, 21) != b"\x2f":
            raise ValueError("it is a damaged WebP: its image has no signature")
        sizes = int.from_bytes(head(21, 25), "little")
        return (sizes & 0x3FFF) + 1, (sizes >> 14 & 0x3FFF) + 1, 1
    if kind != b"VP8X":
        raise ValueError("it is a damaged WebP: it begins with no image")
    flags = head(20, 21)[0]
    width, height = (int.from_bytes(head(at, at + 3), "little") + 1 for at in (24, 27))
    offset, orientation = 30, 1
    while flags & 0x08 and offset + 8 <= head.size:  # EXIF data stands behind the image
        kind, length = struct.unpack("<4sI", head(offset, offset + 8))
        if kind == b"EXIF":
            orientation = read_exif(head, offset + 8, offset + 8 + length)
            break
        offset += 8 + length + length % 2
    return width, height, orientation


def is_turned(orientation: int) -> bool:
    """Return whether an EXIF orientation swaps width and height."""
    return orientation >= _TURNED


def read_exif(read: Callable[[int, int], bytes], start: int, stop: int) -> int:
    """Return the orientation in EXIF data, 1 to 8; 1 if it has none.

    Args:
        read: returns the bytes of the file from one offset up to another.
        start: of the data, which may begin with `EXIF_PREFIX`.
        stop: the end of the data.

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
        for offset in range(first + 2, min(first + 2 + 12 * count, stop - 9), 12):
            tag, kind, _, value = struct.unpack(f"{order}HHIH", read(offset, offset + 10))
            if tag == _TAG:
                return int(value) if kind == _SHORT and 1 <= value <= 8 else UPRIGHT
    except (struct.error, ValueError, KeyError):  # cut short, or of no known byte order
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
        if data[offset + 1] == _APP1 and data[offset + 4 : offset + 10] == EXIF_PREFIX:
            return exif_orientation(bytes(data[offset + 4 : offset + 2 + length]))
        offset += 2 + length
    return UPRIGHT


def image_orientation(image: Image.Image) -> int:
    """Return the orientation that an image of Pillow asks for; Pillow itself turns a TIFF upright."""
    data = image.info.get("exif")
    return exif_orientation(data) if isinstance(data, bytes) and image.format != "TIFF" else UPRIGHT


def exif_orientation(data: bytes) -> int:
    """Return the orientation in EXIF data, 1 to 8; 1 if it has none."""
    return read_exif(lambda start, stop: data[start:stop], 0, len(data))


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
