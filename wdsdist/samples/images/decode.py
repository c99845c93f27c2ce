"""Decode images as fast as possible on one core.

``simplejpeg`` (libjpeg-turbo) decodes JPEGs if it is installed; Pillow decodes all others, and the JPEGs that
simplejpeg does not read. The values of intact JPEGs are Pillow's, bit for bit: both packages carry libjpeg-turbo, and
use the same arithmetic.

All images come upright: the orientation that a camera noted in EXIF data is applied, which Pillow, webdataset and
torchvision leave to their users. Grey values of 16 bits become their upper 8, as Pillow does with
colours of 16 bits.

A few kilobytes can declare gigabytes of pixels. So all decoders, and packing that makes images smaller, have one limit
on the pixels that a header declares, checked before memory is taken.

Source of the orientation: Exif 2.32, 4.6.4: the tag ``Orientation`` of the first directory tells where the first row
and column belong.
"""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from wdsdist._util.validation import check_integer
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.codecs import IMAGE_FORMS

if TYPE_CHECKING:
    from PIL import Image

UPRIGHT = 1
MAX_PIXELS = 2**28 // 3
"""The default of ``max_pixels=``, 89,478,485: a quarter of a gibibyte as RGB. Pillow warns of larger images."""

_EXIF = b"Exif\0\0"
_TAG, _SHORT = 0x0112, 3
_APP0, _APP1, _APP15 = 0xE0, 0xE1, 0xEF
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF

Encoded = bytes | memoryview
Pixels = npt.NDArray[np.uint8]

_JPEG = b"\xff\xd8\xff"

_TURBO_READS = {"Gray", "YCbCr", "RGB"}
"""Colour spaces of a JPEG; CMYK and YCCK are left to Pillow, which knows which programs store them inverted."""

_SCALES = (8, 4, 2)
"""Divisors of the decoded size. libjpeg-turbo has vector code for these alone: at 3/8 it takes longer than at 4/8,
and from 5/8 on longer than at full size (measured: 504 and 440, 760-1,150 and 555 us for a 500 x 375 JPEG)."""

_DAMAGE = re.compile("premature|corrupt", re.IGNORECASE)
_PADDING = re.compile(r"Corrupt JPEG data: (\d+) extraneous bytes before marker 0xd9")
_MOST_PADDING = 16
"""Cameras and some encoders put a few bytes before the end of a whole image; a damaged one leaves more."""


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


def is_turned(orientation: int) -> bool:
    """Return whether an EXIF orientation rotates an image by 90 degrees, which swaps width and height."""
    return orientation >= 5  # rows of the file are columns of the image


def exif_orientation(data: bytes) -> int:
    """Return the orientation in EXIF data, 1 to 8; 1 if it has none."""
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
    """Return the orientation that a JPEG asks for, 1 to 8; 1 if it asks for none."""
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


class EncodedImage:
    """An encoded image: its size by its header, and its pixels once the needed size is known.

    simplejpeg reads the JPEGs that it can read, Pillow all other images. Grey, palette, CMYK and images with
    transparency become RGB.

    All methods raise `SampleError` for bytes that are not an image, for an image that is cut short or damaged as far as
    the decoder can tell, and for one of more than ``max_pixels``.

    >>> image = EncodedImage(b"P5 3 2 255 " + bytes(6))
    >>> image.size, image.decode()[0].shape
    ((3, 2), (2, 3, 3))
    """

    __slots__ = ("_data", "_jpeg", "_max_pixels")

    def __init__(self, data: Encoded, max_pixels: int = MAX_PIXELS) -> None:
        self._data, self._max_pixels = data, max_pixels
        self._jpeg: tuple[int, int, int] | None = None
        """Width and height as stored, and orientation, of a JPEG that simplejpeg reads."""
        turbo = _optional("simplejpeg")
        if turbo is None or data[:3] != _JPEG:
            return
        with suppress(ValueError):  # odd, or cut short: Pillow reads it or says why not
            height, width, space, _ = turbo.decode_jpeg_header(data)
            if space in _TURBO_READS:
                self._jpeg = width, height, jpeg_orientation(data)
        if self._jpeg is not None:
            check_size(width, height, max_pixels)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the image once it is upright."""
        if self._jpeg is not None:
            width, height, turn = self._jpeg
        else:
            with opened(self._data, self._max_pixels) as image:
                (width, height), turn = image.size, image_orientation(image)
        return (height, width) if is_turned(turn) else (width, height)

    def decode(self, min_width: int = 0, min_height: int = 0) -> tuple[Pixels, int]:
        """Return upright pixels, uint8 [height, width, 3], that can be written to, and the divisor of their scale.

        ``min_width`` and ``min_height`` let a JPEG decode at 1/8, 1/4 or 1/2 of its size, the smallest with at least
        so many pixels, if any has. This takes less time and is free of aliasing. At 1/s,
        ``width`` pixels become ``ceil(width / s)``, and pixel ``i`` covers pixels ``s * i`` to ``s * (i + 1)`` of the
        full image. Other formats are decoded at full size.
        """
        if self._jpeg is not None:
            data, (width, height, turn) = self._data, self._jpeg
            scale = _scale(width, height, turn, min_width, min_height)
            arguments = {"colorspace": "RGB", "min_width": -(-width // scale), "min_height": -(-height // scale)}
            turbo: Any = _optional("simplejpeg")
            try:
                return upright(turbo.decode_jpeg(data, **arguments), turn), scale
            except ValueError as error:
                padding = _PADDING.fullmatch(str(error))
                if padding is not None and int(padding[1]) <= _MOST_PADDING:
                    return upright(turbo.decode_jpeg(data, **arguments, strict=False), turn), scale
                if _DAMAGE.search(str(error)):  # Pillow would return the image with its rest in grey
                    raise SampleError(f"a JPEG of {len(data):,} bytes is damaged or cut short: {error}") from error
        with opened(self._data, self._max_pixels) as image:
            turn = image_orientation(image)
            scale = _scale(*image.size, turn, min_width, min_height)
            if scale > 1 and image.draft("RGB", (image.width // scale, image.height // scale)) is None:
                scale = 1  # it is not a JPEG
            # A copy: Pillow's own array cannot be written to, and torch warns of that.
            return upright(np.array(converted(image)), turn), scale

    def pillow(self) -> Image.Image:
        """Return the upright image as Pillow's, in RGB, with its metadata."""
        from PIL import Image, ImageOps

        pixels = None if self._jpeg is None else self.decode()[0]  # which notices damage that Pillow does not
        with opened(self._data, self._max_pixels) as image:
            if image_orientation(image) != UPRIGHT:
                return converted(ImageOps.exif_transpose(image))  # with EXIF data that says so
            if pixels is None:
                return converted(image)
            decoded = Image.fromarray(pixels)
            decoded.info = image.info  # EXIF, resolution and colour profile
            return decoded


@cache
def opencv() -> ModuleType | None:
    """Return OpenCV without threads of its own, or ``None`` if it is not installed.

    Its threads would compete with the other workers for the cores.
    """
    cv2 = _optional("cv2")
    if cv2 is not None:
        cv2.setNumThreads(0)
    return cv2


os.register_at_fork(after_in_child=opencv.cache_clear)  # a parent may have changed the setting since


@dataclass(eq=False)
class DecodeImage:
    """Decode an image in one of the forms that webdataset names.

    ``"rgb8"`` gives uint8 arrays [height, width, 3], ``"rgb"`` float32 arrays from 0 to 1, ``"torchrgb8"`` and
    ``"torchrgb"`` the same as tensors [3, height, width], and ``"pil"`` and ``"pilrgb"`` give Pillow images in RGB.
    Arrays are writable. ``decode="rgb8"`` decodes all images in this form; use the class to change its limit, as in
    ``decode={"image": DecodeImage("rgb8", max_pixels=10**9)}``.

    Args:
        form: the form of the decoded image.
        max_pixels: the most pixels of an image, by default 89,478,485; a larger image is an error, raised before memory
            is allocated.

    Raises `ArgumentError` for a form that does not exist; when called, `SampleError` for bytes that are not an image,
    and for an image that is damaged, truncated or too large.

    >>> DecodeImage("rgb8")(b"P6 2 1 255 " + bytes([1, 2, 3, 4, 5, 6])).tolist()
    [[[1, 2, 3], [4, 5, 6]]]
    """

    form: str = "rgb8"
    _: KW_ONLY
    max_pixels: int | None = None
    reads_views: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.form not in IMAGE_FORMS:
            raise ArgumentError(f"form is {self.form!r}: it must be one of {', '.join(IMAGE_FORMS)}", argument="form")
        self._max_pixels = check_max_pixels(self.max_pixels)

    def __call__(self, data: Encoded) -> Any:
        image, as_float = EncodedImage(data, self._max_pixels), not self.form.endswith("8")
        if self.form.startswith("pil"):
            return image.pillow()
        pixels, _ = image.decode()
        if self.form.startswith("torch"):
            import torch

            cv2 = opencv()
            if cv2 is None:
                tensor = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
            else:
                planes = np.empty((3, *pixels.shape[:2]), np.uint8)
                cv2.split(pixels, list(planes))  # ten times as fast as a transposing copy by numpy or torch
                tensor = torch.from_numpy(planes)
            return tensor / 255 if as_float else tensor
        return np.divide(pixels, 255, dtype=np.float32) if as_float else pixels


def converted(image: Image.Image) -> Image.Image:
    """Return an image in RGB, with 8 bits a channel, as all decoders of wdsdist make it.

    >>> from PIL import Image
    >>> converted(Image.new("I;16", (1, 1), 0x1234)).getpixel((0, 0))
    (18, 18, 18)
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        from PIL import Image

        info = image.info
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # `convert` makes all above 255 white
        image.info = info
    return image.convert("RGB")


def _scale(width: int, height: int, turn: int, min_width: int, min_height: int) -> int:
    """Return the factor by which the size may be divided while decoding; the least sizes are upright."""
    if not min_width and not min_height:
        return 1
    if is_turned(turn):
        min_width, min_height = min_height, min_width
    for scale in _SCALES:
        fits = -(-width // scale) >= min_width and -(-height // scale) >= min_height
        if fits and min(width, height) >= scale:
            return scale
    return 1


@cache
def _optional(package: str) -> ModuleType | None:
    try:
        return import_module(package)
    except ImportError:
        return None
