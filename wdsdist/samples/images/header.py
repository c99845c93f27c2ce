"""Headers of images: the limit on their pixels, checked before memory is taken, and their EXIF orientation.

A few kilobytes can declare gigabytes of pixels. All decoders have one limit: simplejpeg, Pillow, and packing that makes
images smaller.

Source of the orientation: Exif 2.32, 4.6.4: the tag ``Orientation`` of the first directory tells where the first row
and column belong.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wdsdist._util.validation import check_integer
from wdsdist.errors import SampleError

if TYPE_CHECKING:
    from PIL import Image

UPRIGHT = 1
MAX_PIXELS = 2**28 // 3
"""The default of ``max_pixels=``, 89,478,485: a quarter of a gibibyte as RGB. Pillow warns of larger images."""

_EXIF = b"Exif\0\0"
_TAG, _SHORT = 0x0112, 3
_APP0, _APP1, _APP15 = 0xE0, 0xE1, 0xEF
_TURNED = 5
"""From this orientation on, rows of the file are columns of the image."""
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF


def check_max_pixels(max_pixels: int | None) -> int:
    """Return ``max_pixels=``, or its default. Raises `ArgumentError` for less than 1."""
    return MAX_PIXELS if max_pixels is None else check_integer("max_pixels", max_pixels, 1)


def check_size(width: int, height: int, max_pixels: int) -> None:
    """Raise `SampleError` for an image of more pixels than the limit."""
    if width * height > max_pixels:
        raise SampleError(
            f"an image has {width:,} x {height:,} pixels, more than max_pixels, {max_pixels:,}: raise max_pixels of "
            f"DecodeImage, or of the crop that decodes it, if you trust the data"
        )


@contextmanager
def opened(data: bytes | memoryview, max_pixels: int, formats: tuple[str, ...] | None = None) -> Iterator[Image.Image]:
    """Open an image with Pillow, which reads its header; whatever is raised until the block ends is a `SampleError`.

    If ``max_pixels`` is above Pillow's own limit, that limit is raised to it in this process.
    """
    from PIL import Image, UnidentifiedImageError

    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels
    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            check_size(*image.size, max_pixels)
            if image.format == "TIFF":  # each tile is decoded as a whole, however little of it the image shows
                tags = image.tag_v2  # type: ignore[attr-defined]
                check_size(tags.get(_TILE_WIDTH, 0), tags.get(_TILE_LENGTH, 0), max_pixels)
            if image.format == "EPS":
                raise SampleError("it is PostScript, a program, which is not run: convert it to PNG")
            if image.format == "PNG" and "exif" not in image.info and re.search(b"eXIf", data):
                image.load()  # its EXIF data stands behind the pixels
            yield image
    except SampleError:
        raise
    except UnidentifiedImageError as error:
        kinds = "of a format that Pillow reads" if formats is None else f"in {', '.join(formats)}"
        raise SampleError(f"{len(data):,} bytes are not an image {kinds}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise SampleError(
            f"an image has more pixels than max_pixels, {max_pixels:,} ({error}): raise max_pixels if you trust the "
            f"data"
        ) from error
    except Exception as error:  # each of Pillow's formats has its own errors
        raise SampleError(f"an image of {len(data):,} bytes cannot be read: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Head:
    """The first bytes of a member."""

    data: memoryview
    size: int
    """Bytes of the whole member."""
    extension: str = ""
    """The extension of the member, as stored."""

    def __call__(self, start: int, stop: int) -> bytes:
        """Return some of the bytes. Raises ``ValueError`` if they are not read yet, or the member ends before them."""
        if stop > len(self.data):
            raise ValueError("it is cut short")
        return bytes(self.data[start:stop])


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
