"""Data sets of one stream whose samples are made differently: each by its own fields, decoder and transform."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wdsdist
from tests.support import tars
from wdsdist import Ragged, StreamingDataLoader, StreamingDataset
from wdsdist.errors import SampleError
from wdsdist.samples.images.transforms import seeded

TOTAL = 24
"""Samples of each data set."""


MEMBERS: dict[str, dict[str, Callable[[int], bytes]]] = {
    "photos": {"jpg": lambda number: b"j" * number, "cls": lambda number: b"%d" % number},
    "drawings": {"png": lambda number: b"p" * number, "json": lambda number: json.dumps({"label": number}).encode()},
    "vectors": {"npy": lambda number: tars.npy_bytes(np.full(3, number)), "txt": lambda number: b"text %d" % number},
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Data sets of the same keys and no member in common; the first shard is empty."""
    folders = {}
    for name, members in MEMBERS.items():
        folders[name] = folder = tmp_path_factory.mktemp(name)
        for shard, numbers in enumerate((range(0), range(10), range(10, TOTAL))):
            files = [(f"k{number}.{extension}", make(number)) for number in numbers for extension, make in
                     members.items()]  # fmt: skip
            (folder / f"{shard}.tar").write_bytes(tars.plain_tar(files))
        wdsdist.index(folder)
    return folders


def label_of_json(sample: dict[str, Any]) -> dict[str, Any]:
    """Make the sample of a drawing one of a photo, with a tensor as its label."""
    return {
        "__dataset__": sample["__dataset__"], "__key__": sample["__key__"], "__shard__": sample["__shard__"],
        "jpg": sample["png"], "cls": sample["json"]["label"],
    }  # fmt: skip


def photos(sets: dict[str, Path], **more: Any) -> StreamingDataset:
    return StreamingDataset(sets["photos"], **{"decode": True, **more})


def drawings(sets: dict[str, Path], **more: Any) -> StreamingDataset:
    return StreamingDataset(sets["drawings"], **{"decode": True, "transform": label_of_json, **more})


def mixed(sets: dict[str, Path], **options: Any) -> StreamingDataset:
    return wdsdist.mix({"photos": (photos(sets), 3), "drawings": (drawings(sets), 1)}, **options)


def seen(loader: Any) -> list[list[tuple[str, str, int, int]]]:
    """Return data set, key, length of the image and label of each sample, by batches."""
    return [
        list(zip(batch["__dataset__"], batch["__key__"], map(len, batch["jpg"]), batch["cls"].tolist(), strict=True))
        for batch in loader
    ]


def test_arrays_of_each_data_set_have_the_type_that_its_index_notes(tmp_path: Path) -> None:
    types = {"a": np.uint16, "b": np.int64, "c": np.uint16}
    for name, dtype in types.items():
        wdsdist.pack([{"ids": np.arange(5, dtype=dtype)}] * 6, tmp_path / name)
    data = wdsdist.concat({name: tmp_path / name for name in types}, decode=True)
    assert {(sample["__dataset__"], sample["ids"].dtype.name) for sample in data} == {
        (name, np.dtype(dtype).name) for name, dtype in types.items()
    }
    alike = wdsdist.mix({tmp_path / "a": 1, tmp_path / "c": 1}, decode=True)
    assert all(batch["ids"].tolist() == [[*range(5)]] * 4 for batch in StreamingDataLoader(alike, 4, num_workers=0))


def check(batches: list[list[tuple[str, str, int, int]]]) -> None:
    for batch in batches:
        assert Counter(name for name, *_ in batch) == {"photos": 6, "drawings": 2}
        assert all(key == f"k{number}" and size == number for _, key, size, number in batch)


@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), (2, "forkserver")])
def test_samples_are_made_as_their_data_set_says(sets: dict[str, Path], workers: int, start: str | None) -> None:
    dataset = mixed(sets, num_replicas=1, rank=0)
    loader = StreamingDataLoader(dataset, 8, num_workers=workers, multiprocessing_context=start)
    epochs = [seen(loader), seen(loader)]
    check(epochs[0] + epochs[1])
    alone = StreamingDataLoader(mixed(sets, num_replicas=1, rank=0), 8, num_workers=0)
    assert epochs == [seen(alone), seen(alone)]


def test_single_samples_are_those_of_each_data_set(sets: dict[str, Path]) -> None:
    dataset = pickle.loads(pickle.dumps(mixed(sets)))
    assert (dataset[7]["__dataset__"], dataset[7]["cls"]) == ("photos", 7)
    assert {**dataset[TOTAL + 7], "jpg": b""} == {
        "__dataset__": "drawings", "__key__": "k7", "__shard__": "1.tar", "jpg": b"", "cls": 7,
    }  # fmt: skip
    assert all(f"k{sample['cls']}" == sample["__key__"] for sample in dataset)


@pytest.mark.parametrize("workers", [0, 1])
def test_raw_members_stay_columns_of_bytes(sets: dict[str, Path], workers: int) -> None:
    one = {name: StreamingDataset(sets[name], fields=(f"x;{field}",)) for name, field in
           (("photos", "jpg"), ("drawings", "png"))}  # fmt: skip
    dataset = wdsdist.concat(one)
    assert dataset.sample_reader.is_light
    (batch,) = StreamingDataLoader(dataset, 2 * TOTAL, num_workers=workers)
    assert isinstance(batch["x"], Ragged)
    kinds = Counter((name, bytes(data[:1])) for name, data in zip(batch["__dataset__"], batch["x"], strict=True))
    assert kinds == {("photos", b"j"): TOTAL - 1, ("drawings", b"p"): TOTAL - 1,
                     ("photos", b""): 1, ("drawings", b""): 1}  # fmt: skip


def test_joined_data_sets_keep_the_recipes_of_their_own_parts(sets: dict[str, Path]) -> None:
    inner = wdsdist.concat([photos(sets), drawings(sets)])
    dataset = wdsdist.mix({"vectors": (StreamingDataset(sets["vectors"], decode=True), 1), "images": (inner, 2)})
    assert dataset[5]["txt"] == "text 5"
    assert [dataset[TOTAL * part + 5]["cls"] for part in (1, 2)] == [5, 5]
    assert dataset[2 * TOTAL + 5]["__dataset__"] == "images"


@seeded
def drawn(sample: dict[str, Any], seed: int) -> tuple[int, int]:
    return sample["cls"], seed


def test_a_seeded_transform_of_one_data_set_draws_by_the_seed_of_the_mix(sets: dict[str, Path]) -> None:
    def play(seed: int, workers: int) -> list[Any]:
        shares = {"a": (photos(sets, transform=drawn), 1), "b": (StreamingDataset(sets["drawings"]), 1)}
        loader = StreamingDataLoader(wdsdist.mix(shares, seed=seed), 8, num_workers=workers, collate_fn=list)
        return [one for batch in loader for one in batch if isinstance(one, tuple)]

    assert play(0, 0) == play(0, 2)
    assert {seed for _, seed in play(0, 0)}.isdisjoint(seed for _, seed in play(1, 0))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("decode", "transform"), [(None, None), (True, None), (True, dict), (None, torch.utils.data.default_convert)]
)
def test_batches_of_different_fields_say_which_data_sets_differ(
    sets: dict[str, Path], workers: int, decode: Any, transform: Any
) -> None:
    both = {name: (StreamingDataset(sets[name], decode=decode, transform=transform), 1) for name in
            ("photos", "drawings")}  # fmt: skip
    message = (
        r"samples 'k\d+' of '(photos|drawings)' and 'k\d+' of '(photos|drawings)' do not have the same fields "
        r"\(cls, jpg, json, png in one only\): name the fields that all samples have"
    )
    with pytest.raises(SampleError, match=message):
        next(iter(StreamingDataLoader(wdsdist.mix(both), 4, num_workers=workers)))
