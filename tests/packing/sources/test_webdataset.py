"""WebDataset shards as a source: split, merged and shuffled anew, with nothing lost."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds
from hypothesis import given
from hypothesis import strategies as st

from tests.support.packing import contents, packed_members
from tests.support.tars import plain_tar, write_shard
from tests.support.trees import PHOTOS, unpack
from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing import pack
from wdsdist.packing.sources import find
from wdsdist.packing.sources.webdataset import contents_of, packed_key
from wdsdist.shards import open as catalog
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.shard_indexes import local_index
from wdsdist.shards.tar import FIRST_DOT, LAST_DOT


def write_tars(folder: Path, *shards: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, members in enumerate(shards):
        (folder / f"{number:03}.tar").write_bytes(plain_tar(members.items(), format=tarfile.PAX_FORMAT))
    return folder


def test_what_wdsdist_packed_is_packed_anew_with_its_classes(tmp_path: Path) -> None:
    packed = pack(unpack(tmp_path / "photos", PHOTOS), tmp_path / "small", shard_samples=5, class_folders=True)
    merged = [
        pack(tmp_path / "small", tmp_path / f"merged-{workers}", shard_samples=20, shuffle_seed=3, workers=workers)
        for workers in (1, 2, 3)
    ]
    assert len({one.fingerprint for one in merged}) == 1
    assert [shard.num_samples for shard in merged[0].shards] == [20, 16]
    assert merged[0].extra["classes"] == packed.extra["classes"] == ["Zebra", "cat", "dog"]
    assert packed_members(tmp_path / "merged-1") == packed_members(tmp_path / "small")
    split = pack(tmp_path / "merged-2" / "index.json", tmp_path / "split", shard_samples=1, shuffle_seed=None)
    assert len(split.shards) == 36


@pytest.mark.parametrize("how", ["folder", "pattern", "list", "forced", "manifest"])
def test_tars_of_others_are_packed_however_they_are_named(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "tars"
    folder.mkdir()
    with wds.ShardWriter(str(folder / "%03d.tar"), maxcount=7, verbose=0) as sink:
        for number in range(20):
            sink.write({"__key__": f"a/{number:04}", "txt": f"text {number}", "cls": number % 3})
    (folder / "README.md").write_text("notes")
    source: object = {
        "folder": folder,
        "pattern": str(folder / "{000..002}.tar"),
        "list": [folder / "000.tar", str(folder / "001.tar"), folder / "002.tar"],
        "forced": folder / "000.tar",
        "manifest": catalog.open(str(folder / "{000..002}.tar")),
    }[how]
    found = find(source, kind="webdataset" if how == "forced" else None)  # type: ignore[arg-type]
    count = 7 if how == "forced" else 20
    expected = {f"a/{number:04}.{extension}": data for number in range(count)
                for extension, data in (("txt", b"text %d" % number), ("cls", b"%d" % (number % 3)))}  # fmt: skip
    assert contents(found) == expected
    assert found.kind == "webdataset"
    assert found.contents.sizes.tolist() == [2048] * count


def test_keys_that_occur_again_carry_the_number_of_their_shard_and_nothing_is_lost(tmp_path: Path) -> None:
    write_tars(
        tmp_path / "in",
        {"1.txt": b"a", "2.txt": b"b", "2~2.txt": b"c"},
        {"1.txt": b"d", "2.txt": b"e", "./3.txt": b"f"},
        {"1.json": b"g", "3.txt": b"h"},
    )
    manifest = pack(tmp_path / "in", tmp_path / "out", shuffle_seed=None)
    assert packed_members(tmp_path / "out") == {
        "1.txt": b"a", "2.txt": b"b", "2~2.txt": b"c", "1~~2.txt": b"d", "2~~2.txt": b"e", "3.txt": b"f",
        "1~~3.json": b"g", "3~~3.txt": b"h",
    }  # fmt: skip
    assert manifest.extra["renamed_keys"] == 4
    assert manifest.num_samples == 8


def test_sizes_are_exact_for_names_that_need_more_than_a_header(tmp_path: Path) -> None:
    names = ("1", "é", "./2", "x" * 95, "x" * 96, "x" * 97, "y/" * 80 + "z", "1~2")
    write_tars(tmp_path / "in", {f"{name}.txt": b"data" for name in names}, {f"{'x' * 95}.txt": b"", "1.txt": b""})
    manifest = pack(tmp_path / "in", tmp_path / "out")  # which compares the sizes with those planned
    assert manifest.num_samples == 10
    assert find(tmp_path / "in").contents.sizes.sum() + 1024 == manifest.shards[0].size


def test_the_shards_themselves_are_never_packed_over(tmp_path: Path) -> None:
    pack(unpack(tmp_path / "photos", PHOTOS), tmp_path / "shards", shard_samples=5)
    with pytest.raises(ArgumentError, match="lies inside the source"):
        pack(tmp_path / "shards", tmp_path / "shards", shard_samples=9, overwrite=True)


def test_a_shard_that_was_replaced_after_it_was_indexed_is_an_error(tmp_path: Path) -> None:
    write_shard(tmp_path / "in.tar", 3)
    local_index(tmp_path / "in.tar")
    write_shard(tmp_path / "in.tar", 3, prefix="simple")
    with pytest.raises(SourceError, match=r"in\.tar does not hold sample sample000\d where its index says"):
        pack([tmp_path / "in.tar"], tmp_path / "out")  # type: ignore[arg-type]


def test_the_fingerprint_is_of_the_shards_not_of_where_they_lie(tmp_path: Path) -> None:
    write_tars(tmp_path / "a", {"1.txt": b"data"}, {"2.txt": b"data"})
    before = find(tmp_path / "a").digest
    assert find((tmp_path / "a").rename(tmp_path / "b")).digest == before
    write_tars(tmp_path / "c", {"1.txt": b"data"}, {"2.txt": b"dada"})
    assert find(tmp_path / "c").digest != before
    assert len(list(find(tmp_path / "c").take(np.array([1])))) == 1


# Keys that several shards hold, against what a dict of all keys gives

keys = st.lists(
    st.sampled_from(["a", "b", "ab", "a~2", "a~~2", "a~", "./a", "/b", "é", "~2"]),
    max_size=9,
    unique_by=packed_key,  # a shard holds a key only once
)


def index(of: list[str]) -> ShardIndex:
    """An index of samples with one member each."""
    encoded = [key.encode() for key in of]
    zeros = np.zeros(len(of), np.int64)
    return ShardIndex(
        size=0, sha256="", extensions=("x",), sample_starts=np.arange(len(of) + 1), offsets=zeros, sizes=zeros,
        extension_ids=zeros.astype(np.uint32), key_starts=np.cumsum([0, *map(len, encoded)], dtype=np.int64),
        key_bytes=np.frombuffer(b"".join(encoded), np.uint8),
    )  # fmt: skip


@pytest.mark.parametrize("escape", [False, True])
@given(st.lists(keys, min_size=1, max_size=12))
def test_a_key_that_an_earlier_shard_holds_carries_the_number_of_its_own(escape: bool, shards: list[list[str]]) -> None:
    rule = LAST_DOT if escape else FIRST_DOT
    merged = contents_of(["a.tar"] * len(shards), [replace(index(shard), key_rule=rule) for shard in shards], {})
    samples = merged.take(np.arange(sum(map(len, shards))))
    expected, seen, separator = [], set(), "~"
    while any(separator in key for shard in shards for key in shard):
        separator += "~"
    for number, key in ((number, packed_key(key)) for number, shard in enumerate(shards, 1) for key in shard):
        expected.append(f"{key}{separator}{number}" if key in seen else key)
        seen.add(key)
    assert [key for key, _ in samples] == expected
