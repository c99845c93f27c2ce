"""Crops of masks: the part that the image of the sample gets, Pillow's nearest pixels, values as they are stored."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import wdsdist
from tests.support.photos import encode, exif
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.samples.images.transforms import RandomResizedCrop, ResizeCenterCrop

HEIGHT, WIDTH = 150, 210
CLASSES = np.random.default_rng(0).integers(0, 21, (HEIGHT, WIDTH), dtype=np.uint8)
SIDE = (
    128  # at which no pixel of the result lies just between two of a part of such a mask: Pillow rounds such as it will
)
CROP = RandomResizedCrop(SIDE, mask=True)


def png(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "png", **options)
    return buffer.getvalue()


def palette() -> Image.Image:
    image = Image.fromarray(CLASSES, "P")
    image.putpalette(np.random.default_rng(1).integers(0, 256, 768, dtype=np.uint8).tobytes())
    return image


def cut(image: Image.Image, seed: int) -> np.ndarray[Any, Any]:
    """Return what Pillow makes of the part that a seed takes."""
    left, top, width, height, flip = CROP.choose(*image.size, seed)
    part = image.crop((left, top, left + width, top + height)).resize((SIDE, SIDE), Image.Resampling.NEAREST)
    return np.asarray(part)[:, :: -1 if flip else 1]


MASKS = {
    "palette": palette(),
    "grey": Image.fromarray(CLASSES),
    "16 bits": Image.fromarray(CLASSES.astype(np.uint16) * 3000),
    "single bits": Image.fromarray(CLASSES > 9),
}


def test_16_bits_of_the_other_byte_order_are_the_same_numbers() -> None:
    numbers = (CLASSES.astype(np.uint16) * 3000).astype(">u2")
    buffer = io.BytesIO()
    Image.frombytes("I;16B", (WIDTH, HEIGHT), numbers.tobytes()).save(buffer, "tiff")
    expected = CROP(numbers.astype(np.uint16), 5)
    for mask in (buffer.getvalue(), numbers):
        found = CROP(mask, 5)
        assert found.dtype == torch.int32
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", MASKS)
def test_a_random_crop_of_a_mask_has_pillows_nearest_pixels(kind: str) -> None:
    image = MASKS[kind]
    for seed in range(10):
        found = CROP(memoryview(png(image)), seed)
        assert found.dtype == (torch.int32 if kind == "16 bits" else torch.uint8)
        np.testing.assert_array_equal(found, cut(image, seed))


def test_a_mask_is_cut_where_its_image_is_at_random_and_in_the_centre(tmp_path: Path) -> None:
    """The red of each pixel of the image is where it lies, and so is the value of its mask."""
    across = np.broadcast_to(np.arange(WIDTH, dtype=np.uint8), (HEIGHT, WIDTH))
    down = np.broadcast_to(np.arange(HEIGHT, dtype=np.uint8)[:, None], (HEIGHT, WIDTH))
    picture = encode(np.stack([across, down, across], 2), quality=98, subsampling=0)
    samples = ({"jpg": picture, "x.png": across, "y.npy": down.astype(">u2")} for _ in range(12))
    wdsdist.pack(samples, tmp_path)
    for crop in (RandomResizedCrop, ResizeCenterCrop):
        decode = {"jpg": crop(60), "x.png": crop(60, mask=True), "y.npy": crop(60, mask=True)}
        dataset = wdsdist.StreamingDataset(tmp_path, decode=decode, seed=3)
        for batch in wdsdist.StreamingDataLoader(dataset, batch_size=6, num_workers=0):
            masks = torch.stack([batch["x.png"], batch["y.npy"]], 1)
            assert masks.shape == (6, 2, 60, 60)
            assert (batch["jpg"][:, :2].int() - masks.int()).abs().float().mean() < 1.5
            assert (batch["jpg"][:, :2].int() - masks.int()).abs().max() <= 5


def test_the_central_crop_of_a_mask_has_the_geometry_of_its_images() -> None:
    crop = ResizeCenterCrop(50, resize=75, mask=True)  # half the size: pixels 1, 3, 5, ... of the mask
    np.testing.assert_array_equal(crop(png(palette())), CLASSES[1::2, 1::2][12:62, 28:78])


def test_a_mask_can_be_smaller_than_its_image_upright_and_of_several_channels() -> None:
    small = RandomResizedCrop(24, mask=True)(CLASSES, seed=5)
    large = CROP(torch.from_numpy(CLASSES), seed=5)
    assert small.shape == (24, 24)
    assert set(small.unique().tolist()) <= set(CLASSES.ravel().tolist())
    assert large.shape == (SIDE, SIDE)
    turned = ResizeCenterCrop(HEIGHT, resize=HEIGHT, mask=True)(png(palette(), exif=exif(3)))
    np.testing.assert_array_equal(turned, CLASSES[::-1, ::-1][:, 30:180])
    colours = CROP(png(Image.fromarray(np.stack([CLASSES, CLASSES + 1, CLASSES + 2], 2))), seed=5)
    np.testing.assert_array_equal(colours, torch.stack([large, large + 1, large + 2]))


def test_what_is_no_mask_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"the mask is uint8 \[3, 4, 3\]: it must be numbers \[height, width\]"):
        CROP(np.zeros((3, 4, 3), np.uint8), seed=1)
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(7))
    with pytest.raises(SampleError, match=r"the mask is float64 \[7\]"):
        CROP(buffer.getvalue(), seed=1)
    with pytest.raises(SampleError, match="210 x 150 pixels, more than max_pixels, 1,000"):
        RandomResizedCrop(9, mask=True, max_pixels=1000)(png(palette()), seed=1)
    with pytest.raises(ArgumentError, match="mask is 'nearest': it must be True or False"):
        ResizeCenterCrop(9, mask="nearest")  # type: ignore[arg-type]
    assert repr(CROP).endswith("flip=0.5, mask=True)")
