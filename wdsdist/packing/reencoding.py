"""Make images cheaper to decode on the way into shards: scaled down, as JPEG, or as pixels that need no decoding.

By default an image whose longer side exceeds the limit is scaled down and encoded again in its own format. With
``store``, every image becomes the pixels that decoding it gives, or a JPEG of these. Every other member passes byte for
byte. The result depends on the versions of the codecs, and on nothing else.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.file_types import IMAGE_TYPES
from wdsdist._util.npy_header import NPY_MAGIC
from wdsdist._util.pools import apart
from wdsdist.errors import SampleError, SourceError
from wdsdist.packing.options import DEFAULT_QUALITY, Images
from wdsdist.packing.payloads import BrokenPayload, Payload, Sample, sample_size, whole
from wdsdist.packing.sources.source import Source
from wdsdist.samples.encoders import encode
from wdsdist.samples.images.decode import Pixels, converted, decode_rgb
from wdsdist.samples.images.header import UPRIGHT, image_orientation, upright
from wdsdist.samples.images.limits import opened

if TYPE_CHECKING:
    from PIL import Image

_STORED = {"raw": "npy", "jpeg": "jpg"}
"""The extension that an image gets by ``store``."""
_JPEG = b"\xff\xd8\xff"

# Which members are looked at; what format such a member has, its content says.
_EXTENSIONS = {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "tif", "tiff"}
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
_LOSSLESS = {"PNG", "BMP", "TIFF"}
_JPEGS = {"JPEG", "MPO"}

_NO_COLOURS = {"1", "P", "PA", "I", "I;16", "I;16L", "I;16B", "F"}
"""Modes whose values are numbers of something, or do not mix."""

_PROBES = 64
"""Samples by which the size of raw images is estimated, so that shards come out about as large as asked for."""


@dataclass(frozen=True, slots=True)
class Reencoding:
    """Scales images down, stores them in another form, or both, as `Images` says."""

    images: Images

    def apply(self, data: bytes, *, beside_others: bool = False) -> bytes:
        """Re-encode an image: scaled down to ``max_side``, and as raw pixels or JPEG if ``store`` says so.

        Without ``store``, one that is small enough is returned as it is. Like all that decodes images here, it applies
        the orientation that a camera noted, and drops other EXIF data; a colour profile is kept. What holds numbers
        rather than colours is scaled without making up values: palettes, single bits, deep grey, and a lossless grey
        image ``beside_others`` in its sample, which is a label map most likely. Animations and documents of several
        pages are returned as they are.

        With ``store``, an image becomes what `decode_rgb` gives: uint8 [height, width, 3] as a ``.npy`` file, or a JPEG
        of it; of animations the first picture. A JPEG that would not get smaller stays, and so does what holds numbers
        ``beside_others``.

        Raises `SampleError` for data that is not an image, is damaged, or has too many pixels.
        """
        with opened(data, self.images.max_pixels, _FORMATS if self.images.store is None else None) as image:
            side = (
                self.images.max_side
                if self.images.max_side is not None and max(image.size) > self.images.max_side
                else None
            )
            if self.images.store is not None and not (beside_others and _holds_numbers(image)):
                return self._stored(image, data, side)
            self._refuse_damaged(image, data)
            if side is not None and not _is_sequence(image):
                return self._shrunk(image, data, side, beside_others)
            if image.format not in _JPEGS:  # a damaged image is one whatever the limit is
                image.load()
            return data

    def of(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield samples with their images as they are stored; one that does not decode becomes a broken member."""
        for key, members in samples:
            are_images = [self._is_image(extension) for extension, _ in members]
            found = [
                self._member(key, member, beside_others=sum(are_images) > 1) if is_image else member
                for member, is_image in zip(members, are_images, strict=True)
            ]
            yield key, found if self.images.store is None else self._told_apart(key, members, found)

    def planned_sizes(self, source: Source) -> Int64s:
        """Return int64 [samples]: the bytes that each sample of a source is planned to take in a tar.

        Scaled down or as JPEG, they are those of the source. Raw images take many times the bytes: how many, some
        samples show.
        """
        sizes = source.contents.sizes
        if self.images.store != "raw":
            return sizes
        probes = np.unique(np.linspace(0, len(sizes) - 1, _PROBES).astype(np.int64))
        stored = apart(self._stored_bytes, source.take(probes))  # data sets open files when they are asked for items
        planned: Int64s = np.ceil(sizes * (stored / sizes[probes].sum())).astype(np.int64)
        return planned

    def _stored_bytes(self, samples: Iterable[Sample]) -> int:
        """Return the bytes that samples take in a tar as they are stored."""
        return sum(map(sample_size, self.of(samples)))

    def _is_image(self, extension: str) -> bool:
        return extension.lower().rpartition(".")[2] in (_EXTENSIONS if self.images.store is None else IMAGE_TYPES)

    def _member(self, key: str, member: tuple[str, Payload], *, beside_others: bool) -> tuple[str, Payload]:
        """Re-encode the image of a member; return its new extension and bytes."""
        extension, payload = member
        try:
            data = self.apply(whole(payload), beside_others=beside_others)
        except SourceError as error:
            return extension, BrokenPayload(str(error))
        except SampleError as error:
            return extension, BrokenPayload(
                f"{key}.{extension} cannot be encoded again ({error}): leave such samples out with on_error='skip', or "
                f"replace it"
            )
        if self.images.store is not None and data.startswith(NPY_MAGIC if self.images.store == "raw" else _JPEG):
            before, dot, _ = extension.rpartition(".")
            extension = before + dot + _STORED[self.images.store]
        return extension, data

    def _told_apart(
        self, key: str, before: list[tuple[str, Payload]], after: list[tuple[str, Payload]]
    ) -> list[tuple[str, Payload]]:
        """Return members as they are stored, or broken ones if two of a sample would have one name."""
        name, count = Counter(extension.lower() for extension, _ in after).most_common(1)[0] if after else ("", 1)
        if count == 1:
            return after
        both = " and ".join(repr(old) for (old, _), (new, _) in zip(before, after, strict=True) if new.lower() == name)
        reason = f"sample {key!r}: {both} would both become {name!r}: rename one, or pack without store"
        return [(extension, BrokenPayload(reason)) for extension, _ in before]

    def _refuse_damaged(self, image: Image.Image, data: bytes) -> None:
        """Raise `SampleError` for a truncated or corrupt JPEG, which Pillow would re-encode without an error."""
        if image.format in _JPEGS:  # at an eighth of its size, which takes a third of the time
            decode_rgb(data, min_width=1, min_height=1, max_pixels=self.images.max_pixels)

    def _stored(self, image: Image.Image, data: bytes, side: int | None) -> bytes:
        """Return the upright pixels of an image, scaled down to a ``side`` and encoded as ``store`` says."""
        if side is None:
            pixels = decode_rgb(data, max_pixels=self.images.max_pixels)
        else:
            self._refuse_damaged(image, data)
            pixels = _small(image, side)
        if self.images.store == "raw":
            return encode("npy", pixels)
        from PIL import Image

        profile = image.info.get("icc_profile")
        options = {"icc_profile": profile} if profile and image.mode.startswith("RGB") else {}
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=self.images.quality, **options)
        is_kept = side is None and image.format == "JPEG" and image.mode in ("L", "RGB")
        return data if is_kept and len(data) <= buffer.tell() else buffer.getvalue()

    def _shrunk(self, image: Image.Image, data: bytes, side: int, beside_others: bool) -> bytes:
        from PIL import Image, ImageOps

        kind = "JPEG" if image.format == "MPO" else str(image.format)
        profile = image.info.get("icc_profile")
        options: dict[str, Any] = {"icc_profile": profile} if profile else {}
        options |= _encoder_options(kind, image, data, self.images.quality or DEFAULT_QUALITY)
        size = (side, side)
        if image.mode in _NO_COLOURS or (image.mode == "L" and kind in _LOSSLESS and beside_others):
            image.thumbnail(size, Image.Resampling.NEAREST, reducing_gap=None)
        else:
            # A JPEG is decoded at a half, a quarter or an eighth of its size where that is still twice what is needed.
            image.thumbnail(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
        turned = image if image_orientation(image) == UPRIGHT else ImageOps.exif_transpose(image)
        turned.info.pop("exif", None)
        turned.info.pop("xmp", None)
        buffer = io.BytesIO()
        turned.save(buffer, kind, **options)
        return buffer.getvalue()


def _small(image: Image.Image, side: int) -> Pixels:
    """Return upright pixels [height, width, 3] of an image, scaled down to a longer ``side``."""
    from PIL.Image import Resampling

    turn = image_orientation(image)
    if image.format not in _JPEGS:  # of which less is decoded where less is needed
        image = converted(image)
    image.thumbnail((side, side), Resampling.LANCZOS, reducing_gap=2.0)
    return upright(np.array(converted(image)), turn)


def _holds_numbers(image: Image.Image) -> bool:
    """Return whether an image beside others in its sample is most likely a label map, or a map of depths."""
    return image.mode in _NO_COLOURS or (image.mode == "L" and image.format in _LOSSLESS)


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
    """Return whether the picture in a WebP file is in a VP8L chunk.

    Source: Google, WebP Container Specification: chunks of a name, a size, and data padded to an even length.
    """
    place = 12
    while place + 8 <= len(data):
        name, size = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        if name in (b"VP8L", b"VP8 "):
            return name == b"VP8L"
        place += 8 + size + size % 2
    return False
