"""Headers of images: width and height of a JPEG, PNG or WebP, without its pixels.

The first bytes say the format, whatever the extension says. `Head` holds the bytes that were read so far, so that as
little of a remote shard is fetched as the format allows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from wdsdist._util.orientation import EXIF_PREFIX, is_turned, read_exif

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
    """That of the member, as stored."""

    def __call__(self, start: int, stop: int) -> bytes:
        """Return some of the bytes.

        Raises `ShortError` where they are not there yet, ``ValueError`` where the member ends before.
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
    place, orientation = 2, 1
    while True:
        mark, kind = head(place, place + 2)
        if mark != 0xFF:
            raise ValueError(f"it is a damaged JPEG: there is no marker at byte {place:,}")
        if kind == 0xFF or kind in _ALONE:  # a byte of padding
            place += 1 if kind == 0xFF else 2
            continue
        if kind in (0xD9, 0xDA):
            raise ValueError("it is a JPEG without the size of its image")
        length = int.from_bytes(head(place + 2, place + 4), "big")
        if 0xC0 <= kind <= 0xCF and kind not in _NO_SIZE:
            height, width = struct.unpack(">HH", head(place + 5, place + 9))
            return width, height, orientation
        if kind == 0xE1 and length > 8 and head(place + 4, place + 10) == EXIF_PREFIX:
            orientation = read_exif(head, place + 10, place + 2 + length)
        place += 2 + max(length, 2)


def _png(head: Head) -> tuple[int, int, int]:
    if head(12, 16) != b"IHDR":
        raise ValueError("it is a damaged PNG: it does not begin with its header")
    width, height = struct.unpack(">II", head(16, 24))
    place, orientation = 33, 1
    while place + 8 <= head.size:
        length, kind = struct.unpack(">I4s", head(place, place + 8))
        if kind == b"eXIf":
            orientation = read_exif(head, place + 8, place + 8 + length)
        if kind in (b"IDAT", b"IEND", b"eXIf"):
            break
        place += 12 + length
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
    place, orientation = 30, 1
    while flags & 0x08 and place + 8 <= head.size:  # EXIF data stands behind the image
        kind, length = struct.unpack("<4sI", head(place, place + 8))
        if kind == b"EXIF":
            orientation = read_exif(head, place + 8, place + 8 + length)
            break
        place += 8 + length + length % 2
    return width, height, orientation
