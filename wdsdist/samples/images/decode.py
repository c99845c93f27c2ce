"""Encoded images to pixels, on one core as fast as it goes.

JPEG goes through ``simplejpeg`` (libjpeg-turbo without detours) where it is installed, everything else, and what
simplejpeg does not read, through Pillow. The values of intact JPEGs are Pillow's, bit for bit: both packages carry
libjpeg-turbo, asked for the same arithmetic.

All images come upright, as people see them: the orientation that a camera noted in EXIF data is applied, which Pillow,
webdataset and torchvision leave to their users. Grey values of 16 bits become their upper 8, as Pillow does with
colours of 16 bits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist._util import orientation
from wdsdist._util.file_types import IMAGE_TYPES
from wdsdist._util.orientation import UPRIGHT, is_turned
from wdsdist._util.validation import check_integer
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.images.limits import check_max_pixels, check_size, opened

if TYPE_CHECKING:
    from PIL import Image

Encoded = bytes | memoryview
Pixels = npt.NDArray[np.uint8]

_JPEG = b"\xff\xd8\xff"

_TURBO_NAMES = {"L": "GRAY", "RGB": "RGB", "RGBA": "RGBA"}
"""Pillow's modes, and what simplejpeg calls them."""

_TURBO_READS = {"Gray", "YCbCr", "RGB"}
"""Colour spaces of a JPEG; CMYK and YCCK are left to Pillow, which knows who stores them inverted."""

_SCALES = (8, 4, 2)
"""Divisors of the decoded size. libjpeg-turbo has vector code for these alone: at 3/8 it takes longer than at 4/8,
and from 5/8 on longer than at full size (measured: 504 and 440, 760-1,150 and 555 us for a 500 x 375 JPEG)."""

_DAMAGE = re.compile("premature|corrupt", re.IGNORECASE)
_PADDING = re.compile(r"Corrupt JPEG data: (\d+) extraneous bytes before marker 0xd9")
_MOST_PADDING = 16
"""Cameras and some encoders put a few bytes before the end of a whole image; a damaged one leaves more."""


def image_decoder(specification: str, *, max_pixels: int | None = None) -> Callable[[str, Encoded], Any]:
    """Return a function (extension, bytes) -> image that decodes as webdataset's ``specification`` says.

    It returns None for an extension that is not an image's, so that others may decode it; it knows more of them than
    webdataset, such as ``webp`` and ``tif``. Type, dtype, shape and layout are webdataset's: ``"rgb8"`` gives uint8
    arrays [height, width, 3], ``"torchrgb"`` float32 tensors [3, height, width] in 0..1, ``"pil"`` images. Arrays can
    be written to. The function pickles.

    Raises `ArgumentError` for a specification that does not exist; the function raises `SampleError` for images that
    are damaged or cut short, or have more than ``max_pixels`` (by default 89,478,485), and ImportError without Pillow.

    >>> decode = image_decoder("rgb8")
    >>> decode("ppm", b"P6 2 1 255 " + bytes([1, 2, 3, 4, 5, 6])).tolist()
    [[[1, 2, 3], [4, 5, 6]]]
    >>> decode("txt", b"no image") is None
    True
    """
    from webdataset.autodecode import imagespecs

    if specification not in imagespecs:
        raise ArgumentError(f"decode is {specification!r}: the image specifications are {', '.join(imagespecs)}")
    kind, element, mode = imagespecs[specification]
    most = check_max_pixels(max_pixels)
    return _ImageDecoder(frozenset(IMAGE_TYPES), kind, element == "float", mode.upper(), most)


class JpegHeader(NamedTuple):
    """Size, color space and orientation from the header of a JPEG that simplejpeg can read."""

    width: int
    """Image width in pixels as stored, before EXIF orientation; so is the height."""
    height: int
    space: str
    """Its colour space."""
    turn: int
    """Its orientation."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the image once it is upright."""
        return (self.height, self.width) if is_turned(self.turn) else (self.width, self.height)


def decode_rgb(
    data: Encoded,
    *,
    min_width: int = 0,
    min_height: int = 0,
    max_pixels: int | None = None,
    header: JpegHeader | None = None,
) -> Pixels:
    """Return an image's colours as a uint8 array [height, width, 3] that can be written to.

    Given ``min_width`` or ``min_height``, a JPEG is decoded at the smallest of 1/8, 1/4, 1/2 and full size that has
    at least so many pixels (full size where none has), which takes less time and is free of aliasing. At 1/s, ``width``
    pixels become ``ceil(width / s)``, and pixel ``i`` covers pixels ``s * i`` to ``s * (i + 1)`` of the full image.
    Other formats are decoded at full size. Grey, palette, CMYK and images with transparency become RGB. The image is
    upright, and the sizes are those that it has then. ``header`` is that of a JPEG, where it was read before.

    Raises `SampleError` for what is no image, for one that is cut short or damaged as far as the decoder can tell, and
    for one of more than ``max_pixels`` (by default 89,478,485); `ArgumentError` for limits below 0.

    >>> decode_rgb(b"P5 3 2 255 " + bytes(6)).shape
    (2, 3, 3)
    """
    at_least = (check_integer("min_width", min_width, 0), check_integer("min_height", min_height, 0))
    most = check_max_pixels(max_pixels)
    pixels = _turbo(data, "RGB", most, at_least, header)
    if pixels is not None:
        return pixels
    with opened(data, most) as image:
        turn = orientation.of_image(image)
        scale = _scale(*image.size, at_least[::-1] if is_turned(turn) else at_least)
        if scale > 1:  # has an effect on JPEGs only
            image.draft("RGB", (image.width // scale, image.height // scale))
        return orientation.upright(_array(converted(image, "RGB")), turn)


def image_size(data: Encoded, *, max_pixels: int | None = None) -> tuple[int, int]:
    """Return (width, height) of an encoded image once it is upright, read from its header.

    Raises `SampleError` for what is no image, and for one of more than ``max_pixels`` (by default 89,478,485).

    >>> image_size(b"P5 3 2 255 " + bytes(6))
    (3, 2)
    """
    most = check_max_pixels(max_pixels)
    header = jpeg_header(data, most)
    if header is not None:
        return header.size
    with opened(data, most) as image:
        width, height = image.size
        return (height, width) if is_turned(orientation.of_image(image)) else (width, height)


def opencv() -> ModuleType | None:
    """Return OpenCV without threads of its own, or None where it is not installed.

    >>> opencv() is opencv()
    True
    """
    return _opencv(os.getpid())


@dataclass(frozen=True, slots=True)
class _ImageDecoder:
    extensions: frozenset[str]
    kind: str
    """What holds the image: ``numpy``, ``torch`` or ``pil``."""
    as_float: bool
    mode: str
    """``L``, ``RGB`` or ``RGBA``."""
    max_pixels: int

    def __call__(self, extension: str, data: Encoded) -> Any:
        if extension.rpartition(".")[2].lower() not in self.extensions:
            return None
        pixels = _turbo(data, self.mode, self.max_pixels)
        if self.kind == "pil":
            return _pillow_image(data, self.mode, self.max_pixels, pixels)
        if pixels is None:
            with opened(data, self.max_pixels) as image:
                turn = orientation.of_image(image)
                pixels = orientation.upright(_array(converted(image, self.mode)), turn)
        if self.kind == "torch":
            tensor = _channels_first(pixels)
            return tensor / 255 if self.as_float else tensor
        if not self.as_float:
            return pixels
        values = pixels.astype(np.float32)
        values /= 255
        return values


def _pillow_image(data: Encoded, mode: str, max_pixels: int, pixels: Pixels | None) -> Image.Image:
    from PIL import Image, ImageOps

    with opened(data, max_pixels) as image:
        if orientation.of_image(image) != UPRIGHT:
            return converted(ImageOps.exif_transpose(image), mode)  # its EXIF data is as it is now
        if pixels is None:
            return converted(image, mode)
        decoded = Image.fromarray(pixels)
        decoded.info = image.info  # EXIF, resolution and colour profile
        return decoded


def converted(image: Image.Image, mode: str) -> Image.Image:
    """Return an image with other channels of 8 bits each, as all decoders here do it.

    >>> from PIL import Image
    >>> converted(Image.new("I;16", (1, 1), 0x1234), "RGB").getpixel((0, 0))
    (18, 18, 18)
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        from PIL import Image

        info = image.info
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # `convert` makes all above 255 white
        image.info = info
    return image.convert(mode)


def _channels_first(pixels: Pixels) -> Any:
    import torch

    if pixels.ndim == 2:
        return torch.from_numpy(pixels)
    cv2 = opencv()
    if cv2 is None:
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
    planes = np.empty((pixels.shape[2], *pixels.shape[:2]), np.uint8)
    cv2.split(pixels, list(planes))  # ten times as fast as a transposing copy by numpy or torch
    return torch.from_numpy(planes)


def _array(image: Image.Image) -> Pixels:
    return np.array(image)  # a copy: Pillow's own array cannot be written to, of which torch warns


def _turbo(
    data: Encoded, mode: str, max_pixels: int, at_least: tuple[int, int] = (0, 0), header: JpegHeader | None = None
) -> Pixels | None:
    """Decode a JPEG with simplejpeg; None where Pillow is to do it."""
    header = header or jpeg_header(data, max_pixels)
    if header is None or header.space not in _TURBO_READS:
        return None
    if mode == "L" and header.space != "Gray":
        return _grey_of(_turbo(data, "RGB", max_pixels, at_least, header))
    width, height, _, turn = header
    scale = _scale(width, height, at_least[::-1] if is_turned(turn) else at_least)
    arguments = {
        "colorspace": _TURBO_NAMES[mode],
        "min_width": -(-width // scale),
        "min_height": -(-height // scale),
    }
    turbo: Any = _optional("simplejpeg")
    try:
        pixels: Pixels = turbo.decode_jpeg(data, **arguments)
    except ValueError as error:
        padding = _PADDING.fullmatch(str(error))
        if padding is not None and int(padding[1]) <= _MOST_PADDING:
            pixels = turbo.decode_jpeg(data, **arguments, strict=False)
        elif _DAMAGE.search(str(error)):  # Pillow would return the image with its rest in grey
            raise SampleError(f"a JPEG of {len(data):,} bytes is damaged or cut short: {error}") from error
        else:
            return None
    return orientation.upright(pixels.reshape(pixels.shape[:2]) if mode == "L" else pixels, turn)


def _grey_of(pixels: Pixels | None) -> Pixels | None:
    # The luminance plane of the JPEG would do, but differs from Pillow's mixture of rounded colours by up to 12.
    from PIL import Image

    return None if pixels is None else _array(Image.fromarray(pixels).convert("L"))


def jpeg_header(data: Encoded, max_pixels: int) -> JpegHeader | None:
    """Return the header of a JPEG that simplejpeg can read; None for everything else.

    Raises `SampleError` for one of more than ``max_pixels``.
    """
    turbo = _optional("simplejpeg")
    if turbo is None or data[:3] != _JPEG:
        return None
    try:
        height, width, space, _ = turbo.decode_jpeg_header(data)
    except ValueError:  # odd, or cut short: Pillow reads it or says why not
        return None
    check_size(width, height, max_pixels)
    return JpegHeader(width, height, space, orientation.of_jpeg(data))


def _scale(width: int, height: int, at_least: tuple[int, int]) -> int:
    """Return the factor by which the size may be divided while decoding."""
    if not any(at_least):
        return 1
    for scale in _SCALES:
        fits = -(-width // scale) >= at_least[0] and -(-height // scale) >= at_least[1]
        if fits and min(width, height) >= scale:
            return scale
    return 1


@cache
def _optional(package: str) -> ModuleType | None:
    try:
        return import_module(package)
    except ImportError:
        return None


@cache
def _opencv(process: int) -> ModuleType | None:
    # Once in each process: a forked worker inherits the setting of a parent that may have changed it since. OpenCV's
    # threads would compete with the other workers for the cores.
    cv2 = _optional("cv2")
    if cv2 is not None:
        cv2.setNumThreads(0)
    return cv2
