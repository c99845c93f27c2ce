"""Which members of a sample are read, and by which name they are decoded: images of several types in one field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wdsdist
from tests.support.photos import encode, photo
from tests.support.tars import plain_tar
from wdsdist.errors import SampleError
from wdsdist.samples.fields import IMAGE_TYPES, Fields
from wdsdist.samples.sample_spec import Decoder
from wdsdist.transforms import RandomResizedCrop, ResizeCenterCrop

TYPES = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "webp": "webp", "bmp": "bmp", "tif": "tiff", "gif": "gif"}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven samples, each with an image of another type."""
    folder = tmp_path_factory.mktemp("mixed")
    members = []
    for number, (extension, kind) in enumerate(TYPES.items()):
        members += [(f"{number}.cls", b"%d" % number), (f"{number}.{extension}", encode(photo(40, 60), format=kind))]
    (folder / "0.tar").write_bytes(plain_tar(members))
    wdsdist.index(folder)
    return folder


def batch_of(folder: Path, **options: Any) -> dict[str, Any]:
    dataset = wdsdist.StreamingDataset(folder, shuffle=False, **options)
    return next(iter(wdsdist.StreamingDataLoader(dataset, len(TYPES), num_workers=0)))


@pytest.mark.parametrize("crop", [RandomResizedCrop(16), ResizeCenterCrop(16, resize=16)])
@pytest.mark.parametrize(
    ("field", "name", "decoded_as"),
    [
        ("jpg;jpeg;png;webp;bmp;tif;gif", "jpg", "jpg"),
        ("image", "image", "image"),
        ("picture;image", "picture", "picture"),
        ("jpg;image", "jpg", "image"),
    ],
)
def test_images_of_several_types_are_decoded_by_the_name_of_their_field(
    field: str, name: str, decoded_as: str, crop: Any, mixed: Path
) -> None:
    batch = batch_of(mixed, fields=(field, "cls"), decode={decoded_as: crop, "cls": int})
    assert batch[name].shape == (len(TYPES), 3, 16, 16)
    assert batch["cls"].tolist() == list(range(len(TYPES)))


@pytest.mark.parametrize("decode", ["rgb8", "torchrgb"])
def test_image_forms_decode_every_type(decode: str, mixed: Path) -> None:
    shape = (40, 60, 3) if decode == "rgb8" else (3, 40, 60)
    assert batch_of(mixed, fields=("image",), decode=decode)["image"].shape == (len(TYPES), *shape)


def test_every_type_that_image_means_is_decoded_by_pillow() -> None:
    from PIL import Image

    Image.init()
    assert {f".{extension}" for extension in IMAGE_TYPES} <= Image.EXTENSION.keys()


def test_a_function_for_the_extension_itself_comes_first(mixed: Path) -> None:
    decode = {"jpg": lambda data: 1, "png": lambda data: 2, "image": lambda data: 3}
    found = batch_of(mixed, fields=("image",), decode=decode)["image"].tolist()
    assert found == [1, 3, 2, 3, 3, 3, 3]


def test_raw_arrays_are_found_by_the_name_of_their_field(tmp_path: Path) -> None:
    members = [(f"{number}.{'bin' if number % 2 else 'dat'}", np.int16(number).tobytes()) for number in range(7)]
    (tmp_path / "0.tar").write_bytes(plain_tar(members))
    wdsdist.index(tmp_path)
    batch = batch_of(tmp_path, fields=("bin;dat",), decode={"bin": np.int16})
    assert batch["bin"].flatten().tolist() == list(range(7))


@pytest.mark.parametrize("extension", ["png", "webp"])
def test_a_type_without_a_function_is_an_error_that_says_what_to_name(extension: str, mixed: Path) -> None:
    others = {name: ResizeCenterCrop(16, resize=16) for name in TYPES if name != extension}
    with pytest.raises(SampleError, match=r"field 'image' does not stack: .*'image': function"):
        batch_of(mixed, fields=("image",), decode=others)


def test_what_is_no_image_is_named_with_its_own_extension(tmp_path: Path) -> None:
    (tmp_path / "0.tar").write_bytes(plain_tar([("a.webp", b"<html>")]))
    wdsdist.index(tmp_path)
    with pytest.raises(SampleError, match=r"member a\.webp"):
        wdsdist.StreamingDataset(tmp_path, fields=("image",), decode={"image": ResizeCenterCrop(16)})[0]


@pytest.mark.parametrize(
    ("fields", "layout", "message"),
    [
        (("image",), ("cls", "txt"), "has no member any image: it has cls, txt$"),
        (("txt",), ("jpeg", "cls"), "has no member 'txt': it has cls, jpeg$"),
        (("jpg;png",), ("jpeg", "cls"), "it has cls, jpeg; ask for either as 'jpg;png;jpeg', any image as 'image'$"),
        (("image", "cls"), ("cls", "heic"), "has cls, heic; if your Pillow reads it, ask for it as 'image;heic'$"),
    ],
)
def test_a_field_that_a_sample_lacks_is_named_with_what_to_ask_for(
    fields: tuple[str, ...], layout: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SampleError, match=message):
        Fields(fields).choose(layout)


def test_an_image_of_any_type_is_found_also_of_a_rare_one_that_is_named() -> None:
    assert Fields(("image",)).choose(("png", "jpg")) == (("image", "jpg", 1),)
    assert Fields(("image;heic",)).choose(("cls", "heic")) == (("image", "heic", 1),)
    assert Decoder({"image": len})("heic", b"four", field="image") == 4
