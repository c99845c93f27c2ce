"""The orientation that a camera noted in an image's EXIF data.

Source: Exif 2.32, 4.6.4: the tag ``Orientation`` of the first directory says where the first row and column belong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

UPRIGHT = 1
PREFIX = b"Exif\0\0"
"""What EXIF data begins with in a JPEG."""

_TAG, _SHORT = 0x0112, 3
_TURNED = 5
"""From this orientation on, rows of the file are columns of the image."""


def is_turned(orientation: int) -> bool:
    """Return whether an orientation exchanges width and height."""
    return orientation >= _TURNED


def orientation(read: Callable[[int, int], bytes], start: int, stop: int) -> int:
    """Return the orientation in EXIF data, 1 to 8; 1 where it says nothing that can be read.

    Args:
        read: returns the bytes of the file from one offset up to another.
        start: of the data, which may begin with `PREFIX`.
        stop: where the data ends.

    >>> data = b"II*\\0\\x08\\0\\0\\0\\x01\\0\\x12\\x01\\x03\\0\\x01\\0\\0\\0\\x06\\0\\0\\0"
    >>> orientation(lambda first, last: data[first:last], 0, len(data))
    6
    """
    try:
        if stop - start > len(PREFIX) and read(start, start + len(PREFIX)) == PREFIX:
            start += len(PREFIX)
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
