"""Which parts of shards an epoch is said to read, and which it then asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import wdsdist
from tests.support.memory_store import MemoryStore
from wdsdist.errors import ArgumentError
from wdsdist.samples.encoders import encode
from wdsdist.samples.needed_parts import parts_read


@pytest.mark.parametrize("fields", [("cls",), None])
def test_of_shards_of_which_little_is_read_that_is_counted(fields: tuple[str, ...] | None, tmp_path: Path) -> None:
    folder, cache = tmp_path / "shards", tmp_path / "cache"
    wdsdist.pack(({"bin": bytes(40_000), "cls": b"7"} for _ in range(120)), folder, shard_samples=40)
    with MemoryStore({path.name: path.read_bytes() for path in folder.iterdir()}) as store:
        data = wdsdist.open(store.url)
        data = data if fields else data.select(keys=data.column("key")[::10].tolist())
        read, ranges = parts_read(data.counts, data.sizes, manifest=data, fields=fields)
        store.requests.clear()
        dataset = wdsdist.StreamingDataset(data, fields=fields, cache_dir=cache)
        assert sum(len(batch["cls"]) for batch in wdsdist.StreamingDataLoader(dataset, 4, num_workers=0))
        asked = [one for one in store.requests if one.verb == "read" and one.path.endswith(".tar")]
    assert ranges.sum() == pytest.approx(len(asked), rel=0.1)
    assert read.sum() == pytest.approx(sum((one.stop or 0) - (one.start or 0) for one in asked), rel=0.1)
    assert 0 < read.sum() < 0.2 * data.sizes.sum()


def test_of_a_view_without_samples_nothing_is_counted(tmp_path: Path) -> None:
    wdsdist.pack([{"cls": b"7"}], tmp_path)
    data = wdsdist.open(tmp_path)
    empty = data.select("\"key\" = 'none'", allow_empty=True)
    assert parts_read(empty.counts, empty.sizes, manifest=empty)[1].tolist() == [0]


def test_a_field_that_no_sample_has_is_refused(tmp_path: Path) -> None:
    wdsdist.pack([{"cls": b"7"}], tmp_path)
    data = wdsdist.open(tmp_path)
    with pytest.raises(ArgumentError, match=r"a shard of .* has no member 'jpg': it has cls"):
        parts_read(data.counts, data.sizes, manifest=data, fields=("jpg",))
    parts_read(data.counts, data.sizes, manifest=data, fields=("jpg?", "cls"))


def test_pixels_that_were_packed_are_counted_as_images(tmp_path: Path) -> None:
    images = ({"png": encode("png", np.zeros((160, 120, 3), np.uint8)), "bin": bytes(90_000)} for _ in range(40))
    wdsdist.pack(images, tmp_path, images=wdsdist.packing.Images(store="raw"))
    data = wdsdist.open(tmp_path)
    found = [parts_read(data.counts, data.sizes, manifest=data, fields=(name,))[0] for name in ("image", "npy")]
    assert found[0].tolist() == found[1].tolist() != [0]
