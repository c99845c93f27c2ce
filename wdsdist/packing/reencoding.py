"""Change and check samples on the way into shards: images that are cheaper to decode, members that must decode.

An image whose longer side exceeds ``max_side`` is scaled down and encoded again in its own format. With ``store``,
every image becomes the pixels that decoding it gives, or a JPEG of these. Every other member passes byte for byte. The
result depends on the versions of the codecs, and on nothing else.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.file_types import IMAGE_TYPES, last_part
from wdsdist._util.npy_header import NPY_MAGIC
from wdsdist._util.pools import apart
from wdsdist.errors import SampleError, SourceError
from wdsdist.packing.options import Images, Options
from wdsdist.packing.payloads import BrokenPayload, Payload, Sample, payload_size, sample_size, whole
from wdsdist.packing.sources.source import Source
from wdsdist.samples.check import SampleCheck
from wdsdist.samples.encoders import encode
from wdsdist.samples.fields import ABSENT
from wdsdist.samples.images.decode import Pixels, converted, decode_rgb
from wdsdist.samples.images.header import UPRIGHT, image_orientation, opened, upright

if TYPE_CHECKING:
    from PIL import Image

_STORED = {"raw": ("npy", NPY_MAGIC), "jpeg": ("jpg", b"\xff\xd8\xff")}
"""The extension that an image gets by ``store``, and the first bytes of its data."""

# Which members are images without ``store``; what format such a member has, its content says.
_SCALED = {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "tif", "tiff"}
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
_LOSSLESS = {"PNG", "BMP", "TIFF"}
_JPEGS = {"JPEG", "MPO"}
_NO_COLOURS = {"1", "P", "PA", "I", "I;16", "I;16L", "I;16B", "F"}
"""Modes whose values are numbers of something, or do not mix."""

_PROBES = 64
"""Samples by which the size of raw images is estimated, so that shards come out about as large as asked for."""
_ADVICE = "leave such samples out with on_error='skip', or replace it"


def prepared(samples: Iterable[Sample], options: Options) -> Iterable[Sample]:
    """Return samples as they are written: checked, and with images as they are stored."""
    return _PreparedSamples(samples, options) if options.reencoding or options.check_decode else samples


class _PreparedSamples:
    """Some samples that are checked and changed as they are read; picklable, as they are."""

    def __init__(self, samples: Iterable[Sample], options: Options) -> None:
        self._samples, self._check_decode, self._max_pixels = samples, options.check_decode, options.max_pixels
        self._reencoding = None if options.reencoding is None else Reencoding(options.reencoding)

    def __iter__(self) -> Iterator[Sample]:
        samples = self._samples
        if self._check_decode:
            check = SampleCheck(None, decode=True, max_pixels=self._max_pixels)
            samples = ((key, _checked(check, key, members)) for key, members in samples)
        return self._reencoding.of(samples) if self._reencoding else iter(samples)


def _checked(check: SampleCheck, key: str, members: list[tuple[str, Payload]]) -> list[tuple[str, Payload]]:
    """Return the members of a sample; one that does not decode becomes a broken member."""
    if any(isinstance(payload, BrokenPayload) for _, payload in members):
        return members
    checked = list(members)

    def read(number: int) -> bytes:
        extension, payload = members[number]
        data = whole(payload)
        checked[number] = extension, data  # it need not be read again
        return data

    layout = tuple(extension.lower() for extension, _ in members)
    try:
        problem = next(check.problems(layout, [payload_size(payload) for _, payload in members], read), None)
    except SourceError:
        return members  # the writer meets it again
    if problem is not None:
        number = max(problem.member, 0)
        extension = members[number][0]
        name = f"sample {key!r}" if problem.member == ABSENT else f"{key}.{extension}"
        checked[number] = extension, BrokenPayload(f"{name}: {problem.reason}: {_ADVICE}")
    return checked


@dataclass(frozen=True, slots=True)
class Reencoding:
    """Scales images down, stores them in another form, or both, as `Images` says."""

    images: Images

    def of(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield samples with their images as they are stored; one that does not decode becomes a broken member."""
        types = _SCALED if self.images.store is None else IMAGE_TYPES
        for key, members in samples:
            images = sum(last_part(extension) in types for extension, _ in members)
            yield (
                key,
                [
                    self._member(key, *member, beside_others=images > 1) if last_part(member[0]) in types else member
                    for member in members
                ],
            )

    def apply(self, data: bytes, *, beside_others: bool = False) -> bytes:
        """Re-encode an image: scaled down to ``max_side``, and as raw pixels or JPEG if ``store`` says so.

        Without ``store``, one that is small enough is returned as it is, and so are animations and documents of several
        pages. Like all that decodes images here, it applies the orientation that a camera noted, and drops other EXIF
        data; a colour profile is kept. What holds numbers rather than colours is scaled without making up values:
        palettes, single bits, deep grey, and a lossless grey image ``beside_others`` in its sample, which is a label
        map most likely.

        With ``store``, an image becomes what `decode_rgb` gives: uint8 [height, width, 3] as a ``.npy`` file, or a JPEG
        of it; of animations the first picture. A JPEG that would not get smaller stays, and so does what holds numbers
        ``beside_others``.

        Raises `SampleError` for data that is not an image, is damaged, or has too many pixels.
        """
        most, store = self.images.max_side, self.images.store
        with opened(data, self.images.max_pixels, _FORMATS if store is None else None) as image:
            is_large = most is not None and max(image.size) > most
            has_numbers = image.mode in _NO_COLOURS or (
                beside_others and image.mode == "L" and image.format in _LOSSLESS
            )
            # The further pictures of an MPO are previews, or the second eye's.
            is_sequence = image.format != "MPO" and getattr(image, "n_frames", 1) > 1
            if is_large and image.format in _JPEGS:  # Pillow encodes a corrupt JPEG again without an error
                decode_rgb(data, min_width=1, min_height=1, max_pixels=self.images.max_pixels)
            if store is not None and not (beside_others and has_numbers):
                return self._stored(image, data, most if is_large else None)
            if most is None or not is_large or is_sequence:
                return data
            return self._scaled(image, most, has_numbers=has_numbers)

    def planned_sizes(self, source: Source) -> Int64s:
        """Return int64 [samples]: the bytes that each sample of a source is planned to take in a tar.

        Scaled down or as JPEG, they are the bytes in the source. Raw images take many times the bytes: how many, some
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

    def _member(self, key: str, extension: str, payload: Payload, *, beside_others: bool) -> tuple[str, Payload]:
        """Re-encode the image of a member; return its new extension and bytes."""
        try:
            data = self.apply(whole(payload), beside_others=beside_others)
        except SourceError as error:
            return extension, BrokenPayload(str(error))
        except SampleError as error:
            return extension, BrokenPayload(f"{key}.{extension} cannot be encoded again ({error}): {_ADVICE}")
        stored, magic = _STORED.get(self.images.store or "", ("", b""))
        if stored and data.startswith(magic):
            before, dot, _ = extension.rpartition(".")
            extension = before + dot + stored
        return extension, data

    def _stored(self, image: Image.Image, data: bytes, side: int | None) -> bytes:
        """Return the upright pixels of an image, scaled down to a ``side`` and encoded as ``store`` says."""
        from PIL import Image

        if side is None:
            pixels: Pixels = decode_rgb(data, max_pixels=self.images.max_pixels)
        else:
            turn = image_orientation(image)
            if image.format not in _JPEGS:  # a JPEG is decoded at a smaller scale
                image = converted(image)
            image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
            pixels = upright(np.array(converted(image)), turn)
        if self.images.store == "raw":
            return encode("npy", pixels)
        profile = image.info.get("icc_profile") if image.mode.startswith("RGB") else None
        stored = self._encoded(Image.fromarray(pixels), "JPEG", profile)
        is_kept = side is None and image.format == "JPEG" and image.mode in ("L", "RGB")
        return data if is_kept and len(data) <= len(stored) else stored

    def _scaled(self, image: Image.Image, side: int, *, has_numbers: bool) -> bytes:
        """Return an image scaled down, upright, and encoded in its own format."""
        from PIL import Image, ImageOps

        kind, profile = "JPEG" if image.format == "MPO" else str(image.format), image.info.get("icc_profile")
        if has_numbers:
            image.thumbnail((side, side), Image.Resampling.NEAREST, reducing_gap=None)
        else:
            # A JPEG is decoded at a half, a quarter or an eighth of its size if that is still twice what is needed.
            image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
        turned = image if image_orientation(image) == UPRIGHT else ImageOps.exif_transpose(image)
        turned.info.pop("exif", None)
        turned.info.pop("xmp", None)
        return self._encoded(turned, kind, profile)

    def _encoded(self, image: Image.Image, kind: str, profile: bytes | None) -> bytes:
        """Return an image in a format, with a colour profile."""
        options: dict[str, Any] = {"quality": self.images.quality} if kind in ("JPEG", "WEBP") else {}
        if profile:
            options["icc_profile"] = profile
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        return buffer.getvalue()
