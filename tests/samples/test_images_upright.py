"""Images come upright whatever decodes them, and grey values of 16 bits are scaled to 8."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tests.support.photos import decode_rgb, encode, exif, image_size, photo, psnr
from wdsdist.samples.images import decode
from wdsdist.samples.images.decode import DecodeImage
from wdsdist.transforms import RandomResizedCrop, ResizeCenterCrop

pytestmark = pytest.mark.usefixtures("packages")

PHOTO = photo(96, 160)
KINDS = ("jpeg", "png", "webp", "tiff")


def turned(turn: int, kind: str = "jpeg", **options: Any) -> bytes:
    return encode(PHOTO, format=kind, exif=exif(turn), **options)


def expected(data: bytes) -> np.ndarray:
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_decodes_gives_the_image_that_people_see(kind: str, turn: int) -> None:
    data = turned(turn, kind)
    pixels = expected(data)
    assert image_size(data) == pixels.shape[1::-1]
    np.testing.assert_array_equal(decode_rgb(data), pixels)
    np.testing.assert_array_equal(DecodeImage("rgb8")(data), pixels)
    np.testing.assert_array_equal(DecodeImage("torchrgb8")(data).permute(1, 2, 0).numpy(), pixels)
    image = DecodeImage("pilrgb")(data)
    np.testing.assert_array_equal(np.asarray(image), pixels)
    np.testing.assert_array_equal(np.asarray(ImageOps.exif_transpose(image)), pixels)  # is not turned twice


def test_a_png_is_upright_whose_exif_data_stands_behind_its_pixels() -> None:
    before, data = turned(6, "png"), encode(PHOTO, format="png")
    start = before.index(b"eXIf") - 4
    chunk = before[start : start + 12 + int.from_bytes(before[start : start + 4], "big")]
    data = data[:-12] + chunk + data[-12:]  # of IEND
    assert image_size(data) == (96, 160)
    np.testing.assert_array_equal(decode_rgb(data), decode_rgb(before))
    np.testing.assert_array_equal(DecodeImage("rgb8")(data), decode_rgb(before))
    np.testing.assert_array_equal(np.asarray(DecodeImage("pilrgb")(data)), decode_rgb(before))


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("crop", [ResizeCenterCrop((24, 32), resize=40), lambda data: RandomResizedCrop(32)(data, 7)])
def test_crops_are_those_of_the_upright_image(crop: Callable[[Any], torch.Tensor], turn: int) -> None:
    data = turned(turn, quality=95)
    whole = np.ascontiguousarray(expected(data))
    assert psnr(crop(data).numpy(), crop(whole).numpy()) > 25


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_jpeg_is_decoded_at_a_scale_that_suffices_its_upright_sides(turn: int) -> None:
    data = turned(turn)
    width, height = image_size(data)
    assert decode_rgb(data, min_width=width // 2, min_height=height // 4).shape[:2] == (height // 2, width // 2)
    assert decode_rgb(data, min_width=width // 4, min_height=height // 4).shape[:2] == (height // 4, width // 4)


@pytest.mark.parametrize("kind", ["png", "tiff"])
@pytest.mark.parametrize("specification", ["rgb8", "torchrgb8", "pilrgb"])
def test_grey_of_16_bits_becomes_its_upper_8(specification: str, kind: str) -> None:
    deep = np.linspace(0, 65535, 96 * 160).astype(np.uint16).reshape(96, 160)
    stream = io.BytesIO()
    Image.fromarray(deep).save(stream, kind)
    found = np.asarray(DecodeImage(specification)(stream.getvalue()))
    wanted = (deep >> 8).astype(np.uint8)
    grey = found[0] if found.shape[0] == 3 else found[..., 0]
    np.testing.assert_array_equal(grey, wanted)
    np.testing.assert_array_equal(decode_rgb(stream.getvalue())[..., 1], wanted)


@given(st.binary(max_size=80))
def test_what_is_no_exif_data_turns_nothing(data: bytes) -> None:
    for start in (b"", b"II*\0", b"MM\0*\0\0\0\x08", b"Exif\0\0II*\0\x08\0\0\0\xff\xff"):
        assert 1 <= decode.exif_orientation(start + data) <= 8
        assert 1 <= decode.jpeg_orientation(b"\xff\xd8\xff\xe1" + struct.pack(">H", len(data) + 2) + start + data) <= 8
