"""Pixels in a .npy file, as packing stores them: the crops take them where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wdsdist
from tests.support.photos import photo
from wdsdist.diagnostics.verify import verify
from wdsdist.errors import ArgumentError, SampleError
from wdsdist.packing import Images
from wdsdist.samples.encoders import encode
from wdsdist.samples.images.transforms import RandomResizedCrop, ResizeCenterCrop, image_of
from wdsdist.samples.sample_spec import Decoder

RAW = encode("npy", photo(120, 160))


def test_pixels_in_a_npy_file_are_looked_at_where_they_lie() -> None:
    data = memoryview(RAW)
    pixels, scale = image_of(data).decode(10, 10)
    assert (pixels.shape, scale) == ((120, 160, 3), 1)
    assert np.shares_memory(pixels, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("kind", [RandomResizedCrop, ResizeCenterCrop])
def test_crops_get_the_member_itself_and_no_copy(kind: type[Any]) -> None:
    class Probe(kind):  # type: ignore[misc]
        def __call__(self, data: Any, seed: int = 0) -> Any:
            return type(data)

    assert Decoder({"npy": Probe(8)})("npy", memoryview(RAW)) is memoryview
    assert Decoder({"npy": type})("npy", memoryview(RAW)) is bytes


@pytest.mark.parametrize("crop", [RandomResizedCrop(48), ResizeCenterCrop(48)])
def test_crops_of_a_npy_file_are_those_of_its_array_and_leave_it_as_it_is(crop: Any) -> None:
    for seed in range(8):
        seeds = (seed,) if isinstance(crop, RandomResizedCrop) else ()
        assert (crop(memoryview(RAW), *seeds) == crop(photo(120, 160), *seeds)).all()
    assert encode("npy", photo(120, 160)) == RAW


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (RAW[:-1], "another length than its header says"),
        (RAW[:20], "another length than its header says"),
        (RAW, "160 x 120 pixels, more than max_pixels, 19,199"),
        (encode("npy", photo(8, 8)[..., 0]), r"holds uint8 \[8, 8\]: an image is uint8 \[height, width, 3\]"),
        (encode("npy", photo(8, 8).astype(np.float32)), r"holds float32 \[8, 8, 3\]"),
        (encode("npy", np.zeros((0, 8, 3), np.uint8)), r"holds uint8 \[0, 8, 3\]"),
        (encode("npy", np.asfortranarray(photo(8, 8))), "an image is uint8"),
    ],
)
def test_a_npy_file_of_something_else_is_a_bad_sample(data: bytes, reason: str) -> None:
    with pytest.raises(SampleError, match=reason):
        ResizeCenterCrop(4, max_pixels=19_199)(data)


def test_a_data_set_packed_as_pixels_has_them_under_the_field_image(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(3):
        (tmp_path / "photos" / f"{number}.png").write_bytes(encode("png", photo(12, 16)))
    packed = wdsdist.pack(tmp_path / "photos", tmp_path / "raw", images=Images(store="raw"))
    dataset = wdsdist.StreamingDataset(packed, fields=("image",), decode={"image": ResizeCenterCrop(8)})
    assert dataset[0]["image"].shape == (3, 8, 8)
    assert verify(packed, fields=("image",)) == []
    arrays = wdsdist.pack([{"npy": photo(8, 8)}], tmp_path / "arrays")  # of which none is an image
    with pytest.raises(ArgumentError, match=r"fields names 'image', but the data set has no member any image: .* npy"):
        wdsdist.StreamingDataset(arrays, fields=("image",))
    assert len(verify(arrays, fields=("image",))) == 1
