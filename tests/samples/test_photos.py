"""A folder of photos as users have them: several spellings of extensions, several shapes, and a damaged file."""

from __future__ import annotations

from pathlib import Path

import pytest

import wdsdist
from tests.support.photos import encode, photo
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import SampleError
from wdsdist.transforms import RandomResizedCrop

EXTENSIONS = ("jpg", "JPEG", "png", "Jpg")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for number in range(16):
        folder, extension = root / "photos" / ("cat", "dog")[number % 2], EXTENSIONS[number % len(EXTENSIONS)]
        folder.mkdir(parents=True, exist_ok=True)
        data = encode(photo(40 + number, 60), format="png" if extension == "png" else "jpeg")
        (folder / f"{number}.{extension}").write_bytes(data[: len(data) // 2] if number == 5 else data)
    wdsdist.pack(root / "photos", root / "shards", class_folders=True)
    return root / "shards"


def test_image_means_every_type_and_a_damaged_file_is_replaced(shards: Path) -> None:
    decode = {"image": RandomResizedCrop(32), "cls": int}
    dataset = StreamingDataset(shards, fields=("image", "cls"), decode=decode, on_error="replace")
    (batch,) = StreamingDataLoader(dataset, batch_size=16, num_workers=0)
    assert batch["image"].shape == (16, 3, 32, 32)
    assert sorted(set(batch["cls"].tolist())) == [0, 1]
    assert len(set(batch["__key__"])) == 15


def test_without_a_policy_the_error_names_the_field_the_member_and_the_shard(shards: Path) -> None:
    dataset = StreamingDataset(shards, fields=("image", "cls"), decode="rgb8")
    with pytest.raises(SampleError, match=r"\.tar: member dog/5\.jpeg: a JPEG of .* damaged .* on_error=") as caught:
        [dataset[number] for number in range(16)]
    assert (caught.value.field, caught.value.reason[:6]) == ("image", "a JPEG")


def test_photos_of_several_shapes_are_an_error_with_the_crop_that_makes_them_alike(shards: Path) -> None:
    dataset = StreamingDataset(shards, fields=("image",), decode="rgb8", on_error="replace")
    with pytest.raises(SampleError, match=r"'image' does not stack: .*\{'image': wdsdist\.transforms\.ResizeCenter"):
        list(StreamingDataLoader(dataset, batch_size=16, num_workers=0))
