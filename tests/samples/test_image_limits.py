"""Images that claim more pixels than they may have: an error that names the limit, before memory is taken."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support import forked
from tests.support.photos import decode_rgb, encode, photo
from tests.support.programs import command
from wdsdist.errors import SampleError
from wdsdist.samples.codecs import IMAGE_FORMS
from wdsdist.samples.images.decode import DecodeImage, EncodedImage
from wdsdist.samples.images.transforms import RandomResizedCrop, ResizeCenterCrop

SMALL = photo(20, 30)
FORMATS = ("jpeg", "png", "webp", "gif", "bmp", "tiff", "ppm", "jpeg2000")
SIDE = 16_000  # 256 million pixels: more than Pillow's own limit, and as much as a WebP can say


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">L", len(body)) + kind + body + struct.pack(">L", zlib.crc32(kind + body))


def tiff(width: int, height: int, tile: int = 0) -> bytes:
    """Return a grey TIFF of one strip, or of one tile of some other size than its own, deflated."""
    data = zlib.compress(bytes(100))
    place = (
        [(322, tile), (323, tile), (324, 8), (325, len(data))] if tile else [(273, 8), (278, height), (279, len(data))]
    )
    entries = sorted([(256, width), (257, height), (258, 8), (259, 8), (262, 1), (277, 1), *place])
    table = b"".join(struct.pack("<HHLL", tag, 4, 1, value) for tag, value in entries)
    return b"II*\0" + struct.pack("<L", 8 + len(data)) + data + struct.pack("<H", len(entries)) + table + bytes(4)


@functools.cache
def bombs(side: int = SIDE) -> dict[str, bytes]:
    """Small files of several formats whose headers claim many pixels."""
    jpeg, lossless, gif, bmp = (encode(SMALL, format=kind, **more) for kind, more in
                                (("jpeg", {}), ("webp", {"lossless": True}), ("gif", {}), ("bmp", {})))  # fmt: skip
    frame = jpeg.index(b"\xff\xc0") + 5
    big, little = struct.pack(">HH", side, side), struct.pack("<HH", side, side)
    bits = struct.pack("<L", (side - 1) | (side - 1) << 14)
    screen = gif.index(b"\x2c") + 5
    return {
        "jpeg": jpeg[:frame] + big + jpeg[frame + 4 :],
        "png": b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">LLBBBBB", side, side, 8, 2, 0, 0, 0))
        + png_chunk(b"IDAT", zlib.compress(bytes(1000))) + png_chunk(b"IEND", b""),
        "webp": lossless[:21] + bits + lossless[25:],
        "gif": gif[:6] + little + gif[10:screen] + little + gif[screen + 4 :],
        "bmp": bmp[:18] + struct.pack("<LL", side, side) + bmp[26:],
        "tiff": tiff(side, side),
        "tile": tiff(16, 16, side),
        "ppm": b"P6 %d %d 255 " % (side, side),
    }  # fmt: skip


def ways(**options: Any) -> dict[str, Callable[[bytes], Any]]:
    """Everything that makes pixels of bytes."""
    crop, centre = RandomResizedCrop(16, **options), ResizeCenterCrop(16, resize=16, **options)
    found: dict[str, Callable[[bytes], Any]] = {
        "size": lambda data: EncodedImage(data, **options).size,
        "pixels": lambda data: EncodedImage(data, **options).decode(),
        "half": lambda data: EncodedImage(data, **options).decode(1, 1),
        "RandomResizedCrop": lambda data: crop(data, 0),
        "ResizeCenterCrop": centre,
    }
    return found | {form: DecodeImage(form, **options) for form in IMAGE_FORMS}


@pytest.mark.usefixtures("packages")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("kind", bombs())
def test_a_header_that_claims_too_many_pixels_is_an_error_that_names_the_limit(kind: str) -> None:
    for side in (10_000, SIDE):  # where Pillow warns, and where it refuses
        for name, way in ways().items():
            with pytest.raises(
                SampleError, match=r"more (than|pixels than) max_pixels, 89,478,485.*: raise max_pixels"
            ):
                assert name == way(bombs(side)[kind])


def test_no_memory_is_taken_for_the_pixels() -> None:
    done = forked.run(*command("memory_of_bombs")[1:])
    assert done.returncode == 0, done.stderr
    missing, megabytes = map(int, done.stdout.split())
    assert missing == 0
    assert megabytes < 60  # the pixels would be 244 or more


@pytest.mark.usefixtures("packages")
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", FORMATS)
def test_max_pixels_is_the_limit_of_every_decoder(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # raised to what the user asks for
    data = encode(SMALL, format=kind)
    for way in ways(max_pixels=600).values():
        way(data)
    for way in ways(max_pixels=599).values():
        with pytest.raises(
            SampleError, match=r"an image has 30 x 20 pixels, more than max_pixels, 599: raise max_pixels"
        ):
            way(data)


def test_a_tile_that_is_as_large_as_its_image_is_read() -> None:
    data = encode(SMALL, format="tiff")
    assert np.array_equal(decode_rgb(data), SMALL)
    with pytest.raises(SampleError, match="cannot be read"):  # for its tile holds too little
        decode_rgb(tiff(16, 16, 16))


def test_postscript_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ghost = tmp_path / "gs"
    ghost.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    ghost.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    buffer = io.BytesIO()
    Image.fromarray(SMALL).save(buffer, "eps")
    for way in ways().values():
        with pytest.raises(SampleError, match="PostScript, a program, which is not run"):
            way(buffer.getvalue())
    assert not (tmp_path / "was-run").exists()
