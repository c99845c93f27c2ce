"""Make images smaller on the way into shards: decoding takes as long as an image has pixels.

An image whose longer side exceeds the limit is scaled down and encoded again in its own format; every other member
passes byte for byte. The result depends on the version of Pillow, and on nothing else.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wdsdist._util.exif import UPRIGHT
from wdsdist.errors import ArgumentError, DecodeError, SourceError
from wdsdist.packing.reading import whole
from wdsdist.packing.sources.source import BrokenPayload, Payload, Sample
from wdsdist.samples.images import orientation
from wdsdist.samples.images.limits import MAX_PIXELS, check_max_pixels, opened

if TYPE_CHECKING:
    from PIL import Image

DEFAULT_QUALITY = 90

# Which members are looked at; what format such a member has, its content says.
_EXTENSIONS = {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "tif", "tiff"}
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
_LOSSLESS = {"PNG", "BMP", "TIFF"}

_NO_COLOURS = {"1", "P", "PA", "I", "I;16", "I;16L", "I;16B", "F"}
"""Modes whose values are numbers of something, or do not mix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reencoding:
    """What is done to large images."""

    max_side: int
    """Pixels that the longer side may have."""
    quality: int
    """Of JPEG and lossy WebP, as Pillow counts it, from 1 to 95."""
    max_pixels: int = MAX_PIXELS
    """Of an image before; a larger one is not decoded."""

    def notes(self) -> dict[str, int]:
        """Return what ``index.json`` says of it."""
        return {"max_side": self.max_side, "quality": self.quality}

    def apply(self, data: bytes, *, beside_others: bool = False) -> bytes:
        """Return an image with its longer side within the limit; one that is small enough as it is.

        Like all that decodes images here, it applies the orientation that a camera noted, and drops other EXIF data; a
        colour profile is kept. What holds numbers rather than colours is scaled without making up values: palettes,
        single bits, deep grey, and a lossless grey image ``beside_others`` in its sample, which is a label map most
        likely. Animations and documents of several pages are returned as they are.

        Raises `DecodeError` for what is no image, is damaged, or has more pixels than it may.
        """
        with opened(data, self.max_pixels, _FORMATS) as image:
            if max(image.size) > self.max_side and not _is_sequence(image):
                return self._shrunk(image, data, beside_others)
            # A damaged image is one whatever the limit is. At an eighth, a JPEG takes a third of the time.
            image.draft(None, (image.width // 8, image.height // 8))
            image.load()
            return data

    def of(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield samples with large images made smaller; what cannot be decoded becomes a broken member."""
        for key, members in samples:
            are_images = [_is_image(extension) for extension, _ in members]
            yield (
                key,
                [
                    (
                        extension,
                        self._smaller(f"{key}.{extension}", payload, sum(are_images) > 1) if is_image else payload,
                    )
                    for (extension, payload), is_image in zip(members, are_images, strict=True)
                ],
            )

    def _smaller(self, name: str, payload: Payload, beside_others: bool) -> Payload:
        try:
            return self.apply(whole(payload), beside_others=beside_others)
        except SourceError as error:
            return BrokenPayload(str(error))
        except DecodeError as error:
            return BrokenPayload(
                f"{name} cannot be encoded again ({error}): mend it, remove it, or pack without max_side"
            )

    def _shrunk(self, image: Image.Image, data: bytes, beside_others: bool) -> bytes:
        from PIL import Image, ImageOps

        kind = "JPEG" if image.format == "MPO" else str(image.format)
        profile = image.info.get("icc_profile")
        options: dict[str, Any] = {"icc_profile": profile} if profile else {}
        options |= _encoder_options(kind, image, data, self.quality)
        size = (self.max_side, self.max_side)
        if image.mode in _NO_COLOURS or (image.mode == "L" and kind in _LOSSLESS and beside_others):
            image.thumbnail(size, Image.Resampling.NEAREST, reducing_gap=None)
        else:
            # A JPEG is decoded at a half, a quarter or an eighth of its size where that is still twice what is needed.
            image.thumbnail(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
        upright = image if orientation.of_image(image) == UPRIGHT else ImageOps.exif_transpose(image)
        upright.info.pop("exif", None)
        upright.info.pop("xmp", None)
        buffer = io.BytesIO()
        upright.save(buffer, kind, **options)
        return buffer.getvalue()


def check_options(max_side: int | None, quality: int | None, max_pixels: int | None, check_decode: bool) -> None:
    """Raise `ArgumentError` for options that cannot work, or where Pillow is not installed."""
    check_max_pixels(max_pixels)
    if max_side is None and quality is not None:
        raise ArgumentError(f"quality is {quality}, but no image is encoded again: give max_side too")
    if max_side is None and not check_decode:
        if max_pixels is not None:
            raise ArgumentError(
                f"max_pixels is {max_pixels}, but no image is decoded: give max_side or check_decode too"
            )
        return
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        what = "check_decode" if max_side is None else "max_side"
        raise ArgumentError(f'{what} needs a package that is not installed: pip install "wdsdist[images]"') from error


def _is_image(extension: str) -> bool:
    return extension.lower().rpartition(".")[2] in _EXTENSIONS


def _is_sequence(image: Image.Image) -> bool:
    # The further pictures of an MPO are previews, or the second eye's.
    return image.format != "MPO" and getattr(image, "n_frames", 1) > 1


def _encoder_options(kind: str, image: Image.Image, data: bytes, quality: int) -> dict[str, Any]:
    if kind == "JPEG":
        return {"quality": quality}
    if kind == "WEBP":
        return {"lossless": True} if _is_lossless_webp(data) else {"quality": quality}
    if kind == "TIFF" and "compression" in image.info:
        return {"compression": image.info["compression"]}
    return {}


def _is_lossless_webp(data: bytes) -> bool:
    """Say whether the picture in a WebP file is in a VP8L chunk.

    Source: Google, WebP Container Specification: chunks of a name, a size, and data padded to an even length.
    """
    place = 12
    while place + 8 <= len(data):
        name, size = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        if name in (b"VP8L", b"VP8 "):
            return name == b"VP8L"
        place += 8 + size + size % 2
    return False
