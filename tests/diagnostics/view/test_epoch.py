"""The epoch that the page shows is the one that training plays."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import wdsdist
from tests.support.photos import encode, photo
from wdsdist.diagnostics.view import epoch
from wdsdist.diagnostics.view.describe import Style
from wdsdist.errors import ArgumentError
from wdsdist.samples.images.transforms import RandomResizedCrop
from wdsdist.shards.manifest import Manifest


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    made = ({"__key__": f"{n:03}", "jpg": encode(photo(40, 50, seed=n)), "cls": n} for n in range(24))
    return wdsdist.pack(made, tmp_path_factory.mktemp("epoch") / "shards", shard_samples=6, shuffle_seed=None)


def training(manifest: Manifest, rank: int, **more: Any) -> list[Any]:
    dataset = wdsdist.StreamingDataset(manifest, num_replicas=2, rank=rank, seed=7, **more)
    loader = wdsdist.StreamingDataLoader(dataset, batch_size=4, num_workers=0)
    loader.set_epoch(3)
    return list(loader)


CHOICE = {"ranks": 2, "batch_size": 4, "seed": 7, "epoch": 3}


def test_batches_are_those_of_a_loader(photos: Manifest) -> None:
    for rank in range(2):
        batches = training(photos, rank, decode=True)
        assert len(batches) == 3 == epoch.picture(photos, CHOICE)["batches_per_rank"]
        for number, batch in enumerate(batches):
            found = epoch.batch(photos, CHOICE, rank=rank, number=number, style=Style())["samples"]
            assert [one["key"] for one in found] == batch["__key__"]
            assert [photos.column("key")[one["number"]] for one in found] == batch["__key__"]


def test_crops_are_those_of_training(photos: Manifest) -> None:
    decode = {"image": RandomResizedCrop(16)}
    found = epoch.batch(photos, CHOICE, rank=1, number=2, style=Style(), decode=decode)["samples"]
    trained = training(photos, 1, decode=decode)[2]["jpg"]
    for sample, pixels in zip(found, trained, strict=True):
        url = next(one["about"]["url"] for one in sample["members"] if one["extension"] == "jpg")
        shown = np.array(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))
        assert np.array_equal(shown, pixels.permute(1, 2, 0).numpy())


def test_a_transform_that_fails_shows_its_error_in_the_place_of_the_sample(photos: Manifest) -> None:
    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["cls"] % 2:
            raise KeyError("caption")
        return sample

    found = epoch.batch(photos, CHOICE, rank=0, number=0, style=Style(), transform=transform)["samples"]
    trained = training(photos, 0, decode=True)[0]["cls"]
    assert [one.get("error") for one in found] == [
        "KeyError: 'caption'" if one % 2 else None for one in trained.tolist()
    ]


def test_the_picture_names_the_shards_of_each_batch(photos: Manifest) -> None:
    found = epoch.picture(photos, CHOICE)
    assert (found["ranks"], found["batches"], found["samples"]) == ([0, 1], [0, 1, 2], 24)
    for rank in range(2):
        for number, batch in enumerate(training(photos, rank, decode=True)):
            shards = {name: batch["__shard__"].count(name) for name in set(batch["__shard__"])}
            cell = found["cells"][rank * 3 + number]
            assert {found["shards"][str(shard)]: count for shard, count in cell} == shards


def test_many_ranks_and_batches_are_spread_evenly(tmp_path: Path) -> None:
    manifest = wdsdist.pack(({"cls": 0} for _ in range(8000)), tmp_path / "shards")
    found = epoch.picture(manifest, {**CHOICE, "ranks": 40, "batch_size": 1})
    assert (len(found["ranks"]), len(found["batches"]), found["ranks"][-1], found["batches"][-1]) == (24, 160, 39, 199)


def test_a_world_too_large_for_the_data_has_no_batches_and_bad_numbers_are_refused(photos: Manifest) -> None:
    assert epoch.picture(photos, {**CHOICE, "ranks": 64, "batch_size": 64})["cells"] == []
    for rank, number, message in ((0, 3, "there is no batch 3: each rank has 3"), (2, 0, "rank is 2")):
        with pytest.raises(ArgumentError, match=message):
            epoch.batch(photos, CHOICE, rank=rank, number=number, style=Style())
    with pytest.raises(ArgumentError, match="ranks is 0"):
        epoch.picture(photos, {**CHOICE, "ranks": 0})
