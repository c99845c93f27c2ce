"""The data set by itself: indexing, fields, decoding, splits for a foreign DataLoader, damaged shards."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, random_split

import wdsdist
from tests.support import tars
from tests.support.damage import open_files_limited
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import (
    ArgumentError,
    NotFoundError,
    SampleError,
    ShardDamagedError,
    StateError,
    StorageError,
    WdsdistError,
)

TOTAL = 103


def classes(samples: object) -> list[int]:
    return [sample["cls"] for sample in samples]  # type: ignore[attr-defined]


def test_a_sample_has_its_key_its_shard_and_its_members(shards: Path) -> None:
    sample = StreamingDataset(shards)[32]
    assert sample == {"__key__": "k32", "__shard__": "002.tar", "cls": b"32", "txt": b"xxxx"}


def test_samples_are_indexed_in_the_order_of_the_shards(shards: Path) -> None:
    dataset = StreamingDataset(shards, decode=True)
    assert [dataset[i]["cls"] for i in range(dataset.num_samples)] == list(range(TOTAL))
    assert dataset[-1]["cls"] == TOTAL - 1


@pytest.mark.parametrize("index", [TOTAL, -TOTAL - 1])
def test_an_index_outside_the_data_set_is_refused(shards: Path, index: int) -> None:
    with pytest.raises(IndexError, match="103 samples"):
        StreamingDataset(shards)[index]


def test_too_many_open_files_are_an_error_that_says_so(shards: Path) -> None:
    dataset = StreamingDataset(shards)
    for more in range(3):  # for the index, its map, the tar, its map
        told = r"shard .*000\.tar cannot be opened \(Too many open files\): raise the limit"
        with open_files_limited(more), pytest.raises(StorageError, match=told):
            dataset[0]
    assert dataset[0]["cls"] == b"0"


def test_it_is_an_iterable_dataset_for_torch(shards: Path) -> None:
    assert isinstance(StreamingDataset(shards), IterableDataset)


def test_fields_choose_members_and_alternatives(shards: Path) -> None:
    assert StreamingDataset(shards, fields=("CLS",))[5].keys() == {"__key__", "__shard__", "cls"}
    assert StreamingDataset(shards, fields=["caption;txt"])[5]["caption"] == b"x" * 5


def test_a_field_that_a_sample_lacks_is_an_error_that_says_what_it_has(shards: Path) -> None:
    with pytest.raises(SampleError, match=r"sample 'k5' of 000\.tar has no member 'jpg' or 'png': it has cls, txt"):
        StreamingDataset(shards, fields=("jpg;png",))[5]


def test_fields_given_as_one_string_are_refused(shards: Path) -> None:
    with pytest.raises(ArgumentError, match="must be a list of extensions"):
        StreamingDataset(shards, fields="jpg")


def test_a_transform_gets_the_decoded_sample(shards: Path) -> None:
    dataset = StreamingDataset(shards, decode=True, transform=lambda sample: sample["cls"] * 2)
    assert dataset[7] == 14


def test_a_member_that_does_not_decode_is_named(tmp_path: Path, shards: Path) -> None:
    dataset = StreamingDataset(shards, decode={"txt": lambda data: int(data)})
    with pytest.raises(SampleError, match=r"000\.tar: member k5\.txt: 5 bytes do not decode as 'txt'"):
        dataset[5]


def test_a_column_calls_a_decode_function_once_for_each_member_up_to_the_bad_one(shards: Path) -> None:
    called = []

    def decode(data: bytes) -> int:
        called.append(data)
        return int(data) if len(called) < 5 else 1 // 0

    dataset = StreamingDataset(shards, fields=("cls",), decode={"cls": decode})
    first, *_ = StreamingDataLoader(StreamingDataset(shards, fields=("cls",)), batch_size=8, num_workers=0)
    name = rf"{first['__shard__'][4]}: member {first['__key__'][4]}\.cls"
    with pytest.raises(SampleError, match=f"{name}: .*ZeroDivision"):
        next(iter(StreamingDataLoader(dataset, batch_size=8, num_workers=0)))
    assert called == list(map(bytes, first["cls"]))[:5]


def test_decode_of_what_no_sample_has_is_refused_before_the_first(shards: Path) -> None:
    with pytest.raises(ArgumentError, match=r"decode names 'clas', which no sample has: did you mean 'cls'\?"):
        StreamingDataset(shards, decode={"clas": int})
    with pytest.raises(ArgumentError, match="decode names 'image', which no sample has: they have cls, txt"):
        StreamingDataset(shards, decode={"image": bytes})
    with pytest.raises(ArgumentError, match="decode names 'jpg', which no sample has: they have cls, txt"):
        StreamingDataset(shards, decode={"jpg": bytes})
    assert StreamingDataset(shards, decode={"CLS": int, "embedding?": bytes})[5]["cls"] == 5
    assert StreamingDataset(shards, decode={"cls": int, "jpg": bytes, "jpeg": bytes})[5]["cls"] == 5
    assert StreamingDataset(shards, fields=("caption;txt",), decode={"caption": len})[5]["caption"] == 5


def test_in_several_data_sets_decode_may_name_what_one_of_them_has(shards: Path, tmp_path: Path) -> None:
    wdsdist.pack([{"json": {"a": 1}}], tmp_path / "other")
    dataset = wdsdist.concat([shards, tmp_path / "other"], decode={"cls": int, "json": json.loads})
    assert (dataset[5]["cls"], dataset[-1]["json"]) == (5, {"a": 1})


def test_without_a_loader_it_yields_the_samples_of_its_rank(shards: Path) -> None:
    ranks = [classes(StreamingDataset(shards, decode=True, num_replicas=3, rank=rank)) for rank in range(3)]
    assert {len(rank) for rank in ranks} == {35}
    counts = Counter(chain.from_iterable(ranks))
    assert counts.keys() == set(range(TOTAL))
    assert counts.total() == 105


def test_a_cache_below_the_home_folder_can_be_named_by_a_tilde(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert StreamingDataset(shards, cache_dir="~/cache").cache.folder == tmp_path / "cache"


def test_set_epoch_chooses_the_epoch_and_without_it_the_same_one_comes_again(shards: Path) -> None:
    dataset = StreamingDataset(shards, decode=True)
    first = classes(dataset)
    with pytest.warns(UserWarning, match="without set_epoch each pass plays epoch 0"):
        assert classes(dataset) == first
    assert classes(dataset) == first  # the warning comes once
    dataset.set_epoch(1)
    second = classes(dataset)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(TOTAL))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_foreign_loader_gets_the_same_batches_for_any_number_of_workers(shards: Path, workers: int) -> None:
    def batches(workers: int) -> list[list[int]]:
        dataset = StreamingDataset(shards, decode=True, fields=("cls",), batch_size=8, num_replicas=2, rank=1)
        return [batch["cls"].tolist() for batch in DataLoader(dataset, batch_size=8, num_workers=workers)]

    assert batches(workers) == batches(0)
    assert len(batches(workers)) == 7


def test_a_foreign_loader_with_persistent_workers_follows_set_epoch(shards: Path) -> None:
    dataset = StreamingDataset(shards, decode=True, fields=("cls",), batch_size=8)
    loader = DataLoader(dataset, batch_size=8, num_workers=2, persistent_workers=True)

    def epoch() -> list[int]:
        return torch.cat([batch["cls"] for batch in loader]).tolist()

    zero = epoch()
    dataset.set_epoch(1)
    one = epoch()
    assert zero != one
    dataset.set_epoch(0)
    assert epoch() == zero
    assert epoch() == zero
    dataset.set_epoch(1)
    assert epoch() == one


def test_without_shuffle_one_rank_reads_in_the_order_of_the_shards(shards: Path) -> None:
    assert classes(StreamingDataset(shards, decode=True, shuffle=False)) == list(range(TOTAL))


@pytest.mark.parametrize(("name", "value"), [("world", 2), ("samples_per_epoch", 20)])
def test_random_split_of_a_part_of_the_samples_is_refused(shards: Path, name: str, value: int) -> None:
    options = {"num_replicas": 2, "rank": 1} if name == "world" else {name: value}
    dataset = StreamingDataset(shards, **options)  # type: ignore[arg-type]
    with pytest.raises(StateError, match=r"random_split would divide the first \d+ of 103 samples .*\.split\("):
        random_split(dataset, [0.5, 0.5])


def test_random_split_of_all_samples_works(shards: Path) -> None:
    parts = random_split(StreamingDataset(shards, decode=True), [0.5, 0.5])  # type: ignore[arg-type]
    assert sorted(sample["cls"] for part in parts for sample in part) == list(range(TOTAL))


class TestBadArguments:
    def test_a_rank_outside_the_world_is_refused(self, shards: Path) -> None:
        with pytest.raises(ArgumentError, match=r"rank is 4 but num_replicas is 4"):
            StreamingDataset(shards, num_replicas=4, rank=4)

    @pytest.mark.parametrize(
        ("argument", "value", "limit"),
        [
            ("seed", -1, "between 0 and"),
            ("seed", 2**64, "between 0 and"),
            ("shuffle_window", 0, "at least 1"),
            ("num_canonical_replicas", 0, "between 1 and 1,048,576"),
            ("batch_size", 0, "between 1 and"),
        ],
    )
    def test_a_number_outside_its_limits_is_refused_with_the_limits(
        self, shards: Path, argument: str, value: int, limit: str
    ) -> None:
        with pytest.raises(ArgumentError, match=f"{argument} is {value:,}: it must be {limit}"):
            StreamingDataset(shards, **{argument: value})  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"cache_dir": ""}, "cache_dir is '': it must be a path; write '.'"),
            ({"cache_dir": 3}, "cache_dir is 3: it must be a path"),
            ({"fields": (name for name in ("cls",))}, "fields is .*: it must be a list"),
            ({"shuffle": "no"}, "shuffle is 'no': it must be True or False"),
            ({"stage": None}, "stage is None: it must be True or False"),
            ({"allow_elsewhere": "no"}, "allow_elsewhere is 'no': it must be True or False"),
            ({"on_error": "replace", "quarantine": ""}, "quarantine is '': it must be a path"),
        ],
    )
    def test_a_value_that_cannot_be_meant_is_refused(
        self, shards: Path, arguments: dict[str, object], message: str
    ) -> None:
        with pytest.raises(WdsdistError, match=message):
            StreamingDataset(shards, **arguments)  # type: ignore[arg-type]

    def test_an_unknown_order_is_refused(self, shards: Path) -> None:
        with pytest.raises(ArgumentError, match="order is 'random': it can be 'shard' or 'sampler'"):
            StreamingDataset(shards, order="random")  # type: ignore[arg-type]

    @pytest.mark.parametrize(("epoch", "error"), [(-1, ArgumentError), (1.5, ArgumentError)])
    def test_an_epoch_that_is_no_natural_number_is_refused(
        self, shards: Path, epoch: int, error: type[Exception]
    ) -> None:
        with pytest.raises(error, match=f"epoch is {epoch}"):
            StreamingDataset(shards).set_epoch(epoch)

    def test_a_folder_without_an_index_is_refused_with_the_way_to_make_one(self, shards: Path, tmp_path: Path) -> None:
        shutil.copy(shards / "000.tar", tmp_path)
        with pytest.raises(NotFoundError, match=r"holds 1 tar files but no index.json: run `wdsdist index"):
            StreamingDataset(tmp_path)


@pytest.mark.parametrize("take", [wdsdist.open, wdsdist.index, lambda command: wdsdist.pack(command, "out")])
def test_a_location_is_never_run_as_a_command(
    take: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((FileNotFoundError, ArgumentError)):
        take("pipe:touch ran.tar")
    assert not Path("ran.tar").exists()


class TestDamagedShards:
    @pytest.fixture
    def copied(self, shards: Path, tmp_path: Path) -> Path:
        return shutil.copytree(shards, tmp_path / "copy")

    def read_all(self, folder: Path) -> list[int]:
        return classes(StreamingDataset(folder, decode=True))

    def test_a_missing_shard_is_an_error(self, copied: Path) -> None:
        (copied / "003.tar").unlink()
        with pytest.raises(NotFoundError, match=r"003\.tar does not exist"):
            self.read_all(copied)

    def test_a_shard_that_is_cut_short_is_an_error_with_both_sizes(self, copied: Path) -> None:
        size = (copied / "003.tar").stat().st_size
        with (copied / "003.tar").open("r+b") as stream:
            stream.truncate(size - 512)
        with pytest.raises(ShardDamagedError, match=rf"003\.tar is 512 bytes short of its index \({size:,}\)"):
            self.read_all(copied)

    def test_a_shard_without_its_closing_blocks_is_an_error(self, copied: Path) -> None:
        with (copied / "003.tar").open("r+b") as stream:
            stream.seek(-1, 2)
            stream.write(b"x")
        with pytest.raises(ShardDamagedError, match="two zero blocks"):
            self.read_all(copied)

    def test_a_shard_that_was_replaced_after_it_was_indexed_is_an_error(self, copied: Path) -> None:
        shutil.copy(copied / "003.tar", copied / "000.tar")
        with pytest.raises(ShardDamagedError, match=r"000\.tar"):
            self.read_all(copied)
        (copied / "000.tar.wdsindex").unlink()  # scanned anew, it still is not what index.json promises
        with pytest.raises(ShardDamagedError, match=r"000\.tar has [\d,]+ bytes but its index says"):
            self.read_all(copied)

    def test_a_shard_of_the_same_size_with_other_content_is_an_error_once_it_is_scanned(self, copied: Path) -> None:
        with (copied / "003.tar").open("r+b") as stream:
            stream.seek(512)  # the first byte of the first member
            stream.write(b"9")
        (copied / "003.tar.wdsindex").unlink()
        with pytest.raises(ShardDamagedError, match=r"003\.tar was indexed with another digest than index.json gives"):
            self.read_all(copied)

    def test_a_shard_that_was_replaced_by_another_of_the_same_size_is_an_error(self, tmp_path: Path) -> None:
        for shard in range(2):
            tars.write_shard(tmp_path / f"{shard}.tar", 10, prefix=f"s{shard}-")
        wdsdist.index(tmp_path)
        shutil.copy(tmp_path / "1.tar", tmp_path / "0.tar")
        with pytest.raises(ShardDamagedError, match=r"0\.tar does not hold what its index says"):
            list(StreamingDataset(tmp_path))

    def test_a_manifest_that_counts_other_samples_than_the_shard_holds_is_an_error(self, copied: Path) -> None:
        listed = json.loads((copied / "index.json").read_text())
        listed["shardlist"][3]["nsamples"] -= 1
        del listed["wdsdist"]
        (copied / "index.json").write_text(json.dumps(listed))
        with pytest.raises(ShardDamagedError, match=r"003\.tar has 41 samples but its index says 40"):
            self.read_all(copied)


def test_remote_shards_are_fetched_once_and_verified(shards: Path, tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in shards.iterdir():
        memory.pipe_file(f"/bucket/{path.name}", path.read_bytes())
    cache = tmp_path / "cache"
    try:
        for _ in range(2):
            dataset = StreamingDataset("memory://bucket", decode=True, cache_dir=cache)
            assert sorted(classes(dataset)) == list(range(TOTAL))
            memory.rm("/bucket/000.tar") if memory.exists("/bucket/000.tar") else None
        assert len(list(cache.rglob("*.tar"))) == 5  # the empty shard is never needed
        memory.pipe_file("/bucket/003.tar", (shards / "003.tar").read_bytes()[:-512])
        with pytest.raises(ShardDamagedError, match=r"memory://bucket/003\.tar .* [\d,]+ bytes where there should"):
            classes(StreamingDataset("memory://bucket", decode=True, cache_dir=tmp_path / "other"))
        altered = bytearray((shards / "003.tar").read_bytes())
        altered[512] ^= 1
        memory.pipe_file("/bucket/003.tar", bytes(altered))
        with pytest.raises(ShardDamagedError, match=r"memory://bucket/003\.tar does not have the digest"):
            classes(StreamingDataset("memory://bucket", decode=True, cache_dir=tmp_path / "other"))
        assert not list((tmp_path / "other").rglob("003.tar"))
    finally:
        memory.rm("/bucket", recursive=True)


def test_remote_shards_that_were_uploaded_anew_are_fetched_anew(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    try:
        for prefix in ("old", "new"):
            folder = tmp_path / prefix
            folder.mkdir()
            tars.write_shard(folder / "0.tar", 5, prefix=prefix)
            wdsdist.index(folder)
            for path in folder.iterdir():
                memory.pipe_file(f"/again/{path.name}", path.read_bytes())
            dataset = StreamingDataset("memory://again", cache_dir=tmp_path / "cache")
            assert {sample["__key__"][:3] for sample in dataset} == {prefix}
    finally:
        memory.rm("/again", recursive=True)


def test_its_manifest_says_what_it_holds(shards: Path) -> None:
    dataset = StreamingDataset(shards)
    assert dataset.num_samples == dataset.manifest.num_samples == wdsdist.open(shards).num_samples == TOTAL


def test_its_text_says_what_it_reads_and_how(shards: Path) -> None:
    manifest = wdsdist.open(shards)
    dataset = StreamingDataset(manifest.select(sample=5), seed=7, rank=1, num_replicas=2)
    dataset.set_epoch(3)
    assert repr(dataset) == (
        f"StreamingDataset(Manifest('{shards}': 5 of {manifest.num_samples} samples in {len(manifest.counts)} shards, "
        f"{manifest.num_bytes:,} bytes, fields cls, txt), order='shard', shuffle=True, "
        "seed=7, rank=1, num_replicas=2, epoch=3, samples_per_epoch=5)"
    )


def test_its_text_needs_no_rank(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = StreamingDataset(shards)
    monkeypatch.setenv("RANK", "nonsense")
    assert repr(dataset).endswith("seed=0, epoch=0, samples_per_epoch=103)")
