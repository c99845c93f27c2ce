"""Change and check samples on the way into shards: images that are cheaper to decode, members that must decode.

An image whose longer side exceeds ``max_side`` is scaled down and encoded again in its own format. With ``store``,
every image becomes the pixels that decoding it gives, or a JPEG of these. Every other member passes byte for byte. The
result depends on the versions of the codecs, and on nothing else.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.file_types import IMAGE_TYPES, last_part
from wdsdist._util.npy_header import NPY_MAGIC
from wdsdist._util.pools import run_in_subprocess
from wdsdist.errors import SampleError, SourceError
from wdsdist.packing.members import Payload, Sample, Samples, or_skip, sample_size, whole
from wdsdist.packing.options import Images, Options
from wdsdist.packing.sources.source import Source
from wdsdist.samples.encoders import encode
from wdsdist.samples.fields import ABSENT, SampleCheck
from wdsdist.samples.images.decode import UPRIGHT, EncodedImage, Pixels, converted, image_orientation, opened, upright

_STORED = {"raw": ("npy", NPY_MAGIC), "jpeg": ("jpg", b"\xff\xd8\xff")}
"""The extension that an image gets by ``store``, and the first bytes of its data."""

# Which members are images without ``store``; what format such a member has, its content says.
_SCALED = {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "bmp", "tif", "tiff"}
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
_LOSSLESS = {"PNG", "BMP", "TIFF"}
_NO_COLOURS = {"1", "P", "PA", "I", "I;16", "I;16L", "I;16B", "F"}
"""Modes whose values are numbers of something, or do not mix."""

_PROBES = 64
"""Samples by which the size of raw images is estimated, so that shards come out about as large as asked for."""


def prepared(samples: Iterable[Sample], options: Options) -> Iterable[Sample]:
    """Return samples as they are written: checked, and with images as they are stored."""
    if options.images.changes or options.check_decode:
        return Samples(_prepared, (samples, options.images, options.check_decode))
    return samples


def _prepared(samples: Iterable[Sample], images: Images, check_decode: bool) -> Iterator[Sample]:
    types = _SCALED if images.store is None else IMAGE_TYPES
    check = SampleCheck(None, decode=True, max_pixels=images.max_pixels) if check_decode else None
    stored, magic = _STORED.get(images.store or "", ("", b""))
    for key, members in samples:
        prepared = list(members) if check is None else _checked(check, key, members)
        numbers = [n for n, (extension, _) in enumerate(prepared) if images.changes and last_part(extension) in types]
        for number in numbers:
            extension, payload = prepared[number]
            try:
                data: Payload = reencoded(whole(payload), images, beside_others=len(numbers) > 1)
            except SourceError as error:
                data = SourceError(str(error))  # a new one, whose traceback holds no data
            except SampleError as error:
                data = SourceError(f"{key}.{extension} cannot be encoded again ({error}): {or_skip()}replace it")
            if stored and isinstance(data, bytes) and data.startswith(magic):
                before, dot, _ = extension.rpartition(".")
                extension = before + dot + stored
            prepared[number] = extension, data
        yield key, prepared


def _checked(check: SampleCheck, key: str, members: list[tuple[str, Payload]]) -> list[tuple[str, Payload]]:
    """Return the members of a sample with their data; one that does not decode becomes an error."""
    try:
        data = [whole(payload) for _, payload in members]
    except SourceError:
        return list(members)  # the writer meets it again
    checked: list[tuple[str, Payload]] = [(extension, each) for (extension, _), each in zip(members, data, strict=True)]
    layout = tuple(extension.lower() for extension, _ in members)
    for problem in itertools.islice(check.problems(layout, list(map(len, data)), data.__getitem__), 1):
        number = max(problem.member, 0)
        extension = members[number][0]
        name = f"sample {key!r}" if problem.member == ABSENT else f"{key}.{extension}"
        checked[number] = extension, SourceError(f"{name}: {problem.reason}: {or_skip()}replace it")
    return checked


def reencoded(data: bytes, images: Images, *, beside_others: bool = False) -> bytes:
    """Encode an image again: scaled down to ``max_side``, and as raw pixels or JPEG if ``store`` says so.

    Without ``store``, one that is small enough is returned as it is, and so are animations and documents of several
    pages. Like all that decodes images here, it applies the orientation that a camera noted, and drops other EXIF
    data; a colour profile is kept. What holds numbers rather than colours is scaled without making up values:
    palettes, single bits, deep grey, and a lossless grey image ``beside_others`` in its sample, which is a label
    map most likely.

    With ``store``, an image becomes what `DecodeImage` gives: uint8 [height, width, 3] as a ``.npy`` file, or a JPEG
    of it; of animations the first picture. A JPEG that would not get smaller stays, and so does what holds numbers
    ``beside_others``.

    Raises `SampleError` for data that is not an image, is damaged, or has too many pixels.
    """
    from PIL import Image, ImageOps

    most, store = images.max_side, images.store
    with opened(data, images.max_pixels, _FORMATS if store is None else None) as image:
        is_large = most is not None and max(image.size) > most
        is_jpeg, turn = image.format in ("JPEG", "MPO"), image_orientation(image)
        has_numbers = image.mode in _NO_COLOURS or (beside_others and image.mode == "L" and image.format in _LOSSLESS)
        # The further pictures of an MPO are previews, or the second eye's.
        is_sequence = image.format != "MPO" and getattr(image, "n_frames", 1) > 1
        as_pixels = store is not None and not (beside_others and has_numbers)
        if is_large and is_jpeg:  # Pillow encodes a corrupt JPEG again without an error
            EncodedImage(data, images.max_pixels).decode(1, 1)
        if not as_pixels and (not is_large or is_sequence):
            return data
        may_stay = as_pixels and not is_large and image.format == "JPEG" and image.mode in ("L", "RGB")
        kind = "JPEG" if as_pixels or is_jpeg else str(image.format)
        if as_pixels and is_large and not is_jpeg:  # a JPEG is decoded at a smaller scale
            image = converted(image)
        if is_large and most is not None:
            # A JPEG is decoded at a half, a quarter or an eighth of its size if that is still twice what is needed.
            way = (Image.Resampling.NEAREST, None) if has_numbers and not as_pixels else (Image.Resampling.LANCZOS, 2.0)
            image.thumbnail((most, most), way[0], reducing_gap=way[1])
        profile = image.info.get("icc_profile") if not as_pixels or image.mode.startswith("RGB") else None
        if as_pixels:
            pixels: Pixels = (
                upright(np.array(converted(image)), turn)
                if is_large
                else EncodedImage(data, images.max_pixels).decode()[0]
            )
            if store == "raw":
                return encode("npy", pixels)
            image = Image.fromarray(pixels)
        elif turn != UPRIGHT:
            image = ImageOps.exif_transpose(image)
        for note in ("exif", "xmp"):
            image.info.pop(note, None)
        options: dict[str, Any] = {"quality": images.quality} if kind in ("JPEG", "WEBP") else {}
        buffer = io.BytesIO()
        image.save(buffer, kind, **options, **({"icc_profile": profile} if profile else {}))
    return data if may_stay and len(data) <= buffer.tell() else buffer.getvalue()


def planned_sizes(source: Source, images: Images) -> Int64s:
    """Return int64 [samples]: the bytes that each sample of a source is planned to take in a tar.

    Scaled down or as JPEG, they are the bytes in the source. Raw images take many times the bytes: how many, some
    samples show.
    """
    sizes = source.contents.sizes
    if images.store != "raw":
        return sizes
    probes = np.unique(np.linspace(0, len(sizes) - 1, _PROBES).astype(np.int64))
    # Data sets open files when they are asked for items.
    stored = run_in_subprocess(_stored_bytes, Samples(_prepared, (source.take(probes), images, False)))
    planned: Int64s = np.ceil(sizes * (stored / sizes[probes].sum())).astype(np.int64)
    return planned


def _stored_bytes(samples: Iterable[Sample]) -> int:
    return sum(map(sample_size, samples))
