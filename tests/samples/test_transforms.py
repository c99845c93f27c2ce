"""Crops for training and evaluation: torchvision's boxes, Pillow's pixels, and seeds that decide everything."""

from __future__ import annotations

import functools
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
import torch
from PIL import Image

from tests.support.photos import encode, photo, psnr
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.images.decode import DecodeImage
from wdsdist.samples.images.transforms import Crop, RandomResizedCrop, ResizeCenterCrop
from wdsdist.samples.marks import is_seeded

PHOTO = photo(375, 500)
JPEG = encode(PHOTO, quality=92)


@functools.cache
def large() -> npt.NDArray[np.uint8]:
    return photo(1100, 1500)


@functools.cache
def large_jpeg() -> bytes:
    return encode(large(), quality=92)


def pixels(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    return tensor.permute(1, 2, 0).numpy()


# Which part of an image a seed takes

SEEDS = range(4000)
CROP = RandomResizedCrop(224)


def published_crop(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """The algorithm as torchvision documents it, with numpy's random numbers."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(float(np.sqrt(area * ratio))), round(float(np.sqrt(area / ratio)))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h
    return (width - height) // 2, 0, height, height


def distance(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Return the Kolmogorov-Smirnov statistic in units of its one-percent limit."""
    a, b = np.sort(np.asarray(one)), np.sort(np.asarray(other))
    every = np.concatenate([a, b])
    gap = np.abs(np.searchsorted(a, every, "right") / len(a) - np.searchsorted(b, every, "right") / len(b)).max()
    return float(gap / (1.63 * math.sqrt(1 / len(a) + 1 / len(b))))


@functools.cache
def crops() -> npt.NDArray[np.float64]:
    """Return left, top, width, height and flip of the crop of each seed."""
    return np.array([CROP.choose(500, 375, seed) for seed in SEEDS], np.float64)


def test_parts_are_distributed_as_torchvisions() -> None:
    rng = np.random.default_rng(0)
    theirs = np.array([published_crop(500, 375, rng) for _ in range(20_000)])
    ours = crops()
    for column in range(4):
        assert distance(ours[:, column], theirs[:, column]) < 1
    assert distance(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]) < 1
    assert distance(ours[:, 2] / ours[:, 3], theirs[:, 2] / theirs[:, 3]) < 1


def test_half_of_the_images_are_mirrored_and_other_chances_are_kept() -> None:
    for flip in (0, 0.1, 0.5, 1):
        shares = np.mean([RandomResizedCrop(8, flip=flip).choose(50, 50, seed).flip for seed in SEEDS])
        assert abs(shares - flip) <= 4 * math.sqrt(flip * (1 - flip) / len(SEEDS))


@pytest.mark.parametrize("step", [0, 1, 64])
def test_neighbouring_seeds_and_the_numbers_of_one_seed_are_independent(step: int) -> None:
    left, top, width, height, flip = crops().T
    drawn = np.array([width * height, width / height, left / np.maximum(1, 500 - width),
                      top / np.maximum(1, 375 - height), flip])  # fmt: skip
    related = np.corrcoef(drawn[:, step:], drawn[:, : len(SEEDS) - step])[:5, 5:]
    if not step:
        related -= np.eye(5)
        related[0, 1] = related[1, 0] = 0  # a wide part of a wide image is a large one
    assert np.abs(related).max() < 4.5 / math.sqrt(len(SEEDS))


def test_the_parts_of_given_seeds_never_change() -> None:
    assert [tuple(CROP.choose(500, 375, seed)) for seed in (0, 1, 2**63 - 1)] == GOLDEN


GOLDEN = [(103, 104, 245, 243, False), (17, 1, 433, 372, True), (53, 25, 384, 323, True)]


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((1, 5000), (0, 2499, 1, 1)),
        ((5000, 1), (2499, 0, 1, 1)),
        ((10, 1000), (0, 493, 10, 13)),
        ((1, 1), (0, 0, 1, 1)),
    ],
)
def test_of_very_elongated_images_the_centre_is_taken(size: tuple[int, int], box: tuple[int, ...]) -> None:
    found = {CROP.choose(*size, seed)[:4] for seed in range(50)}
    assert box in found
    for left, top, width, height in found:
        assert 0 <= left <= left + width <= size[0]
        assert 0 <= top <= top + height <= size[1]
        assert width > 0
        assert height > 0


# What comes out


def pillow_crop(image: npt.NDArray[np.uint8], crop: Crop, width: int, height: int) -> npt.NDArray[np.uint8]:
    """Crop, resize and mirror as torchvision does Pillow images."""
    part = Image.fromarray(image).crop((crop.left, crop.top, crop.left + crop.width, crop.top + crop.height))
    part = part.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if crop.flip else part)


def pillow_centre(image: npt.NDArray[np.uint8], size: int, resize: int) -> npt.NDArray[np.uint8]:
    """Resize the shorter side and cut out the centre as torchvision does Pillow images."""
    height, width = image.shape[:2]
    short, long = min(width, height), max(width, height)
    to = (resize, int(resize * long / short)) if width == short else (int(resize * long / short), resize)
    left, top = round((to[0] - size) / 2), round((to[1] - size) / 2)
    resized = Image.fromarray(image).resize(to, Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + size, top + size)))


def decoded(data: bytes) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("transform", [functools.partial(CROP, seed=3), ResizeCenterCrop(224)])
def test_every_kind_of_image_gives_the_same_tensor(transform: Callable[[Any], torch.Tensor], packages: str) -> None:
    data = encode(PHOTO, format="png")
    result = transform(data)
    assert (result.dtype, result.shape, result.stride()) == (torch.uint8, (3, 224, 224), (1, 3 * 224, 3))
    assert result[None].contiguous(memory_format=torch.channels_last).data_ptr() == result.data_ptr()
    channels_first = torch.from_numpy(PHOTO).permute(2, 0, 1)
    backwards, read_only = PHOTO[:, ::-1].copy()[:, ::-1], PHOTO.copy()
    read_only.flags.writeable = False
    for same in (memoryview(data), PHOTO, backwards, read_only, channels_first, channels_first.contiguous()):
        assert torch.equal(transform(same), result)


def test_the_result_is_nobody_elses_memory(packages: str) -> None:
    image = PHOTO[:224, :224].copy()
    for transform in (
        functools.partial(RandomResizedCrop(224, scale=(1, 1), ratio=(1, 1), flip=0), seed=0),
        ResizeCenterCrop(224, resize=224),
    ):
        result = transform(image)
        np.testing.assert_array_equal(pixels(result), image)
        result.zero_()
        assert image.any()


@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_a_crop_has_pillows_pixels(seed: int, packages: str) -> None:
    crop = CROP.choose(500, 375, seed)
    expected = pillow_crop(decoded(JPEG), crop, 224, 224)
    limit = 41 if packages == "fast packages" else 54
    assert psnr(pixels(CROP(JPEG, seed)), expected) > limit


@pytest.mark.parametrize("seed", range(12))
def test_a_crop_of_a_scaled_jpeg_has_about_pillows_pixels(seed: int, packages: str) -> None:
    crop = CROP.choose(1500, 1100, seed)
    assert psnr(pixels(CROP(large_jpeg(), seed)), pillow_crop(decoded(large_jpeg()), crop, 224, 224)) > 33


def test_a_jpeg_is_decoded_no_larger_than_its_crop_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = simplejpeg.decode_jpeg

    def spy(data: bytes, *args: Any, **options: Any) -> npt.NDArray[np.uint8]:
        seen.append(real(data, *args, **options))
        return seen[-1]

    monkeypatch.setattr(simplejpeg, "decode_jpeg", spy)
    RandomResizedCrop(224, scale=(0.95, 1.0), ratio=(1.3, 1.4))(large_jpeg(), 1)
    RandomResizedCrop(224, scale=(0.01, 0.02))(large_jpeg(), 1)
    ResizeCenterCrop(64)(large_jpeg())
    assert [image.shape[:2] for image in seen] == [(275, 375), (1100, 1500), (138, 188)]


def test_a_mirrored_crop_is_the_crop_mirrored(packages: str) -> None:
    for source in (JPEG, large()):  # the second is antialiased
        one, other = (RandomResizedCrop(96, scale=(0.9, 1), flip=flip)(source, 5) for flip in (0, 1))
        assert torch.equal(other, one.flip(2))


def test_fine_patterns_become_grey_and_not_other_patterns(packages: str) -> None:
    board = np.repeat((np.indices((900, 1200)).sum(0) % 2 * 255).astype(np.uint8)[..., None], 3, axis=2)
    for seed in range(8):
        result = RandomResizedCrop(100, scale=(0.5, 1))(board, seed)
        assert (result.float() - 127.5).abs().max() < 6
    assert (ResizeCenterCrop(100)(board).float() - 127.5).abs().max() < 6


SHAPES = [(375, 500), (374, 499), (500, 333), (257, 300), (100, 90), (256, 256), (800, 1100), (300, 1999)]
shaped = functools.cache(functools.partial(photo, seed=2))


@pytest.mark.parametrize("shape", SHAPES)
def test_an_evaluation_crop_has_pillows_pixels(shape: tuple[int, int], packages: str) -> None:
    image = shaped(*shape)
    assert psnr(pixels(ResizeCenterCrop(224)(image)), pillow_centre(image, 224, 256)) > 46
    assert psnr(pixels(ResizeCenterCrop(96, resize=100)(image)), pillow_centre(image, 96, 100)) > 46
    data = encode(image, quality=92)
    assert psnr(pixels(ResizeCenterCrop(224)(data)), pillow_centre(decoded(data), 224, 256)) > 38
    assert psnr(pixels(ResizeCenterCrop(64)(data)), pillow_centre(decoded(data), 64, 73)) > 34


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
def test_an_evaluation_crop_is_not_displaced_at_any_scale(scale: int) -> None:
    """A ramp shows a displacement as brightness: 255 levels over the width, so 1/10 of a pixel is 1/10 of a step."""
    height, width = 260 * scale + 3, 350 * scale + 5
    ramp = np.broadcast_to(np.linspace(0, 255, width)[None, :, None], (height, width, 3))
    data = encode(np.ascontiguousarray(ramp.round().astype(np.uint8)), quality=98, subsampling="4:4:4")
    found = pixels(ResizeCenterCrop(224)(data)).mean((0, 2))
    expected = pillow_centre(decoded(data), 224, 256).mean((0, 2))
    assert abs((found - expected).mean()) < 0.12 * 255 / 344


@pytest.mark.parametrize("shape", [(1, 5000), (5000, 1), (3, 3), (1, 1), (2000, 7)])
def test_images_of_any_shape_fill_the_crop(shape: tuple[int, int], packages: str) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype(np.uint8)
    for source in (image, encode(image), encode(image, format="png")):
        for seed in range(3):
            assert RandomResizedCrop((32, 48))(source, seed).shape == (3, 32, 48)
        assert ResizeCenterCrop((32, 48))(source).shape == (3, 32, 48)


def test_an_elongated_image_that_would_be_large_once_it_is_resized_is_refused() -> None:
    with pytest.raises(SampleError, match=r"1,024,000 x 256 pixels, more than max_pixels"):
        ResizeCenterCrop(224)(np.zeros((1, 4000, 3), np.uint8))


def test_the_same_seed_gives_the_same_crop_in_another_process() -> None:
    other = pickle.loads(pickle.dumps(CROP))
    assert is_seeded(other)
    assert torch.equal(other(JPEG, 11), CROP(JPEG, 11))
    assert not torch.equal(CROP(JPEG, 12), CROP(JPEG, 11))
    assert torch.equal(pickle.loads(pickle.dumps(ResizeCenterCrop(64)))(JPEG), ResizeCenterCrop(64)(JPEG))


def test_what_is_shown_of_a_transform_would_make_it() -> None:
    for made in (RandomResizedCrop((96, 128), flip=0), ResizeCenterCrop(160, max_pixels=10**9), DecodeImage("pil")):
        assert repr(eval(repr(made))) == repr(made)


# What is refused


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RandomResizedCrop(0), "size is 0: it must be at least 1"),
        (lambda: RandomResizedCrop((224, 0)), "width in size is 0"),
        (lambda: RandomResizedCrop((224, 224, 3)), "size is"),
        (lambda: RandomResizedCrop(8, scale=0.5), "scale is 0.5: it must be two numbers"),
        (lambda: RandomResizedCrop(8, scale=(0, 1)), r"scale is \(0, 1\): both must be above 0 and at most 1"),
        (lambda: RandomResizedCrop(8, scale=(0.5, 0.1)), "the lower one first"),
        (lambda: RandomResizedCrop(8, scale=("a", "b")), "two numbers"),
        (lambda: RandomResizedCrop(8, ratio=(1, math.inf)), "ratio is"),
        (lambda: RandomResizedCrop(8, ratio=(math.nan, 1)), "ratio is"),
        (lambda: RandomResizedCrop(8, flip=1.5), "flip is 1.5: it must be a number between 0 and 1"),
        (lambda: RandomResizedCrop(8, flip=True), "flip is True"),
        (lambda: RandomResizedCrop(8, max_pixels=0), "max_pixels is 0"),
        (lambda: ResizeCenterCrop(8, max_pixels="all"), "max_pixels is 'all'"),
        (lambda: ResizeCenterCrop(224, resize=200), "resize is 200, less than the crop's 224"),
        (lambda: ResizeCenterCrop(224, resize="large"), "resize is 'large'"),
        (lambda: DecodeImage("rgb8", max_pixels=0), "max_pixels is 0"),
        (lambda: DecodeImage("rgb9"), r"form is 'rgb9': it must be one of rgb8, rgb, torchrgb8"),
        (lambda: CROP(JPEG, None), "seed is None"),
        (lambda: CROP(JPEG, -1), "seed is -1"),
        (lambda: CROP(JPEG, 2**63), "seed is"),
    ],
)
def test_arguments_that_cannot_work_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ("a.jpg", "<class 'str'>"),
        (PHOTO[..., 0], r"uint8 \[375, 500\]"),
        (PHOTO.astype(np.float32), r"float32 \[375, 500, 3\]"),
        (PHOTO[:0], r"uint8 \[0, 500, 3\]"),
        (np.dstack([PHOTO, PHOTO[..., :1]]), r"uint8 \[375, 500, 4\]"),
        (torch.zeros(375, 500, 3, dtype=torch.uint8), r"torch.uint8 \[375, 500, 3\]"),
        (torch.zeros(2, 3, 4, 5), r"torch.float32 \[2, 3, 4, 5\]"),
    ],
)
def test_what_is_no_image_is_refused_with_what_it_is(data: Any, found: str) -> None:
    for transform in (functools.partial(CROP, seed=1), ResizeCenterCrop(224)):
        with pytest.raises(ArgumentError, match=f"the image is {found}: a transform takes bytes"):
            transform(data)
