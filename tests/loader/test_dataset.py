"""The data set by itself: indexing, fields, decoding, and its samples without a loader."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.utils.data import random_split

import wdsdist
from tests.support.damage import open_files_limited
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import StateError, StorageError

TOTAL = 103


def test_a_sample_has_its_key_its_shard_and_its_members(shards: Path) -> None:
    sample = StreamingDataset(shards)[32]
    assert sample == {"__key__": "k32", "__shard__": "2.tar", "cls": b"32", "txt": b"xxxx"}


def test_samples_are_indexed_in_the_order_of_the_shards(shards: Path) -> None:
    dataset = StreamingDataset(shards, decode=True)
    assert [dataset[i]["cls"] for i in range(dataset.num_samples)] == list(range(TOTAL))
    assert dataset[-1]["cls"] == TOTAL - 1
    for index in (TOTAL, -TOTAL - 1):
        with pytest.raises(IndexError, match="has 103"):
            dataset[index]


def test_too_many_open_files_are_an_error_that_says_so(shards: Path) -> None:
    dataset = StreamingDataset(shards)
    for more in range(3):  # for the index, its map, the tar, its map
        pattern = r"shard .*0\.tar cannot be read: Too many open files: raise the limit"
        with open_files_limited(more), pytest.raises(StorageError, match=pattern):
            dataset[0]
    assert dataset[0]["cls"] == b"0"


def test_fields_choose_members_and_alternatives(shards: Path) -> None:
    assert StreamingDataset(shards, fields=("CLS",))[5].keys() == {"__key__", "__shard__", "cls"}
    assert StreamingDataset(shards, fields=["caption;txt"])[5]["caption"] == b"x" * 5
    assert StreamingDataset(shards, fields=("cls", "jpg?"))[5]["jpg"] is None


def test_a_cache_below_the_home_folder_can_be_named_by_a_tilde(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert StreamingDataset(shards, cache_dir="~/cache").cache.folder == tmp_path / "cache"


@pytest.mark.parametrize(("name", "value"), [("world", 2), ("samples_per_epoch", 20)])
def test_random_split_of_a_part_of_the_samples_is_refused(shards: Path, name: str, value: int) -> None:
    options = {"num_replicas": 2, "rank": 1} if name == "world" else {name: value}
    dataset = StreamingDataset(shards, **options)  # type: ignore[arg-type]
    with pytest.raises(StateError, match=r"random_split would split only the first \d+ of 103 samples, .*\.split\("):
        random_split(dataset, [0.5, 0.5])


def test_its_text_says_what_it_reads_and_how(shards: Path) -> None:
    manifest = wdsdist.open(shards)
    dataset = StreamingDataset(manifest.select(sample=5), seed=7, rank=1, num_replicas=2)
    dataset.set_epoch(3)
    assert repr(dataset) == (
        f"StreamingDataset(Manifest('{shards}': 5 of {manifest.num_samples} samples in {len(manifest.counts)} shards, "
        f"{manifest.num_bytes:,} bytes, fields cls, txt), order='shard', shuffle=True, "
        "seed=7, rank=1, num_replicas=2, epoch=3, samples_per_epoch=5)"
    )


def test_its_length_is_the_samples_of_this_rank_or_of_all(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = StreamingDataset(shards)
    assert len(dataset) == TOTAL
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (len(dataset), len(dataset.of_all_ranks()), len(dataset)) == (26, TOTAL, 26)
    assert len(StreamingDataset(shards, drop_last=True)) == 25
    assert len(StreamingDataset(shards, samples_per_epoch=41)) == 11


@pytest.mark.parametrize("stage", [False, True])
def test_threads_may_read_samples_and_iterate_loaders_of_one_data_set(tmp_path: Path, stage: bool) -> None:
    data = wdsdist.pack(({"cls": number} for number in range(210)), tmp_path / "shards", shard_samples=3)
    dataset = StreamingDataset(data, decode=True, stage=stage, cache_dir=tmp_path / "cache")

    def read(_: int) -> set[int]:
        loader = StreamingDataLoader(dataset, 21, num_workers=0)
        return {number for batch in loader for number in batch["cls"].tolist()}

    with ThreadPoolExecutor(4) as executor:
        passes, classes = executor.map(read, range(4)), executor.map(lambda n: dataset[n * 11 % 210]["cls"], range(210))
        assert sum(classes) == sum(range(210))
        assert list(passes) == [set(range(210))] * 4
