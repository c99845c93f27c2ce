"""Encoded images to pixels: webdataset's types, Pillow's values, and no image that is half grey."""

from __future__ import annotations

import io
import itertools
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from webdataset.autodecode import ImageHandler

from tests.support.folders import forked, status
from tests.support.photos import decode_rgb, encode, image_size, photo
from wdsdist.errors import SampleError
from wdsdist.samples.codecs import IMAGE_FORMS
from wdsdist.samples.images.decode import DecodeImage, opencv

COLOUR = photo(37, 53)
ALPHA = np.dstack([COLOUR, COLOUR[..., 0]])
PALETTE = Image.fromarray(COLOUR).quantize(16)


def palette(**options: object) -> bytes:
    buffer = io.BytesIO()
    PALETTE.save(buffer, "png", **options)
    return buffer.getvalue()


FILES = {
    "colour.jpg": encode(COLOUR),
    "colour.JPEG": encode(COLOUR, subsampling="4:4:4"),
    "progressive.jpg": encode(COLOUR, progressive=True),
    "rgb.jpg": encode(COLOUR, keep_rgb=True),
    "grey.jpg": encode(COLOUR[..., 0]),
    "cmyk.jpg": encode(COLOUR, mode="CMYK"),
    "colour.png": encode(COLOUR, format="png"),
    "alpha.png": encode(ALPHA, format="png"),
    "grey.png": encode(COLOUR[..., 0], format="png"),
    "grey_alpha.png": encode(ALPHA, format="png", mode="LA"),
    "bilevel.png": encode(COLOUR, format="png", mode="1"),
    "palette.png": palette(),
    "transparent.png": palette(transparency=3),
    "colour.ppm": encode(COLOUR, format="ppm"),
    "grey.pgm": encode(COLOUR[..., 0], format="ppm"),
    "really_a_jpeg.png": encode(COLOUR),
    "really_a_png.jpg": encode(COLOUR, format="png"),
}


def assert_as_webdataset(specification: str, name: str) -> None:
    expected = ImageHandler(specification)(name, FILES[name])
    found = DecodeImage(specification)(FILES[name])
    assert type(found) is type(expected)
    if isinstance(found, Image.Image):
        assert (found.mode, found.size, found.info) == (expected.mode, expected.size, expected.info)
        assert found.getexif() == expected.getexif()
    else:
        assert found.dtype == expected.dtype
        strides = [x.stride() if isinstance(x, torch.Tensor) else x.strides for x in (found, expected)]
        assert strides[0] == strides[1]
    assert isinstance(found, (torch.Tensor, Image.Image)) or found.flags.writeable
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("specification", IMAGE_FORMS)
def test_every_specification_decodes_every_format_as_webdataset_does(specification: str) -> None:
    for name in FILES:
        assert_as_webdataset(specification, name)


def test_jpegs_are_decoded_by_simplejpeg_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pillow(*_: object, **options: object) -> None:
        raise AssertionError("Pillow was asked")

    monkeypatch.setattr(Image, "open", no_pillow)
    for name in ("colour.jpg", "progressive.jpg", "rgb.jpg", "grey.jpg"):
        assert decode_rgb(FILES[name]).shape == COLOUR.shape
        assert DecodeImage("torchrgb8")(FILES[name]).shape == (3, 37, 53)
    with pytest.raises(SampleError, match="AssertionError: Pillow was asked"):
        decode_rgb(FILES["cmyk.jpg"])


# Sizes and scales


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1"])
def test_jpegs_have_pillows_values_at_every_size_and_scale(subsampling: str, progressive: bool, packages: str) -> None:
    for height, width in ((1, 1), (1, 40), (3, 50), (17, 33), (64, 96), (121, 187)):
        pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3)).astype(np.uint8)
        data = encode(pixels, quality=90, subsampling=subsampling, progressive=progressive)
        for scale in (1, 2, 4, 8):
            image = Image.open(io.BytesIO(data))
            divisor = next((divisor for divisor in (8, 4, 2) if divisor <= min(scale, width, height)), 1)
            image.draft("RGB", (width // divisor, height // divisor))
            sizes = {"min_width": -(-width // scale), "min_height": -(-height // scale)}
            np.testing.assert_array_equal(decode_rgb(data, **sizes), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ({"min_width": 188}, (121, 187)),
        ({"min_width": 95}, (121, 187)),
        ({"min_width": 94}, (61, 94)),
        ({"min_height": 62}, (121, 187)),
        ({"min_height": 61}, (61, 94)),
        ({"min_width": 47, "min_height": 32}, (61, 94)),
        ({"min_width": 1, "min_height": 1}, (16, 24)),
    ],
)
def test_the_smallest_sufficient_scale_is_taken(sizes: dict[str, int], shape: tuple[int, int]) -> None:
    assert decode_rgb(encode(photo(121, 187)), **sizes).shape == (*shape, 3)


@pytest.mark.parametrize("name", FILES)
def test_other_formats_come_at_full_size(name: str) -> None:
    is_jpeg = FILES[name].startswith(b"\xff\xd8")
    data = memoryview(FILES[name])
    assert decode_rgb(data, min_width=5, min_height=5).shape == ((5, 7, 3) if is_jpeg else (37, 53, 3))
    assert image_size(data) == (53, 37)
    np.testing.assert_array_equal(decode_rgb(data), decode_rgb(FILES[name]))


# Damage

BIG = encode(photo(200, 300), quality=90)
SCAN = BIG.index(b"\xff\xda") + 20


def decoders() -> list[object]:
    return [decode_rgb, *map(DecodeImage, ("rgb8", "rgb", "torchrgb", "pil"))]


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("cut", [2, 50, len(BIG) // 2, len(BIG) - SCAN, len(BIG) - 200, len(BIG) - 2])
def test_a_jpeg_that_is_cut_short_is_an_error(cut: int) -> None:
    for decode in decoders():
        with pytest.raises(SampleError, match=r"cut short|truncated|Truncated|not an image"):
            decode(BIG[:-cut])  # type: ignore[operator]


def test_a_jpeg_that_ends_before_its_last_row_is_an_error_where_pillow_returns_grey() -> None:
    damaged = BIG[: len(BIG) // 2] + b"\xff\xd9"
    grey = np.asarray(Image.open(io.BytesIO(damaged)).convert("RGB"))
    assert grey[-20:].std() < 30 < photo(200, 300)[-20:].std()
    for decode in decoders():
        with pytest.raises(SampleError, match=r"a JPEG of [\d,]+ bytes is damaged or cut short"):
            decode(damaged)  # type: ignore[operator]
    with pytest.raises(SampleError, match="damaged"):
        decode_rgb(damaged, min_width=30)


def test_a_few_bytes_of_padding_before_the_end_are_no_damage() -> None:
    np.testing.assert_array_equal(decode_rgb(BIG[:-2] + bytes(4) + BIG[-2:]), decode_rgb(BIG))
    np.testing.assert_array_equal(decode_rgb(BIG + bytes(999)), decode_rgb(BIG))
    with pytest.raises(SampleError, match="96 extraneous bytes"):
        decode_rgb(BIG[:-2] + bytes(100) + BIG[-2:])


def test_what_is_no_image_is_an_error_without_an_address_in_it() -> None:
    for function in (decode_rgb, image_size, *decoders()[1:]):
        with pytest.raises(SampleError, match=r"^8 bytes are not an image of a format that Pillow reads$"):
            function(b"no image")  # type: ignore[operator]
    with pytest.raises(SampleError, match="0 bytes are not an image"):
        decode_rgb(b"")
    with pytest.raises(SampleError, match="cannot be read"):
        decode_rgb(FILES["colour.png"][:200])


# Packages


def test_without_pillow_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    for decode, name in itertools.product(decoders(), ("cmyk.jpg", "colour.png")):
        with pytest.raises(ImportError) as caught:
            decode(FILES[name])  # type: ignore[operator]
        assert caught.value.name == "PIL"


def test_opencv_has_no_threads_of_its_own_in_a_process_nor_in_one_forked_from_it() -> None:
    import cv2

    def grandchild() -> None:
        assert opencv() is cv2
        assert cv2.getNumThreads() == 1

    def child() -> None:
        cv2.setNumThreads(3)
        grandchild()
        cv2.setNumThreads(3)  # as a training script might, after it has made a loader
        assert opencv() is cv2
        assert cv2.getNumThreads() == 3, "ours to set once only"
        assert status(forked(grandchild)) == 0

    assert status(forked(child)) == 0
