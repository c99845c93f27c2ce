"""The limit on the pixels of an image, checked against its header before memory is taken for them.

A few kilobytes can declare gigabytes of pixels. All decoders have one limit: simplejpeg, Pillow, and packing that makes
images smaller.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wdsdist._util.validation import check_integer
from wdsdist.errors import SampleError

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 2**28 // 3
"""The default, 89,478,485: a quarter of a gibibyte as RGB, from which on Pillow warns of bombs."""

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
            _check_tiles(image, max_pixels)
            if image.format == "EPS":
                raise SampleError("it is PostScript, a program, which is not run: convert it to PNG")
            if image.format == "PNG" and "exif" not in image.info and re.search(b"eXIf", data):
                image.load()  # its EXIF data stands behind the pixels
            yield image
    except SampleError:
        raise
    except UnidentifiedImageError as error:
        kinds = "of a format that Pillow reads" if formats is None else f"in {', '.join(formats)}"
        raise SampleError(f"{len(data):,} bytes are no image {kinds}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise SampleError(
            f"an image has more pixels than max_pixels, {max_pixels:,} ({error}): raise max_pixels if you trust the "
            f"data"
        ) from error
    except Exception as error:  # each of Pillow's formats has its own errors
        raise SampleError(f"an image of {len(data):,} bytes cannot be read: {type(error).__name__}: {error}") from error


def _check_tiles(image: Image.Image, max_pixels: int) -> None:
    """Refuse a TIFF whose tiles are too large: each is decoded as a whole, however little of it the image shows."""
    if image.format == "TIFF":
        tags = image.tag_v2  # type: ignore[attr-defined]
        check_size(tags.get(_TILE_WIDTH, 0), tags.get(_TILE_LENGTH, 0), max_pixels)
