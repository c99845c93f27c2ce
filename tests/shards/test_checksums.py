"""Checksums of members: what verifies parts of a shard, in indexes that are made anew and in those made before."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import wdsdist
from tests.support.tars import plain_tar
from wdsdist.shards import checksums, scan
from wdsdist.shards import index as shardindex
from wdsdist.shards.index import ShardIndex

LONG = "n" * 200
"""A name that needs headers of its own in a tar."""


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    """Three samples of a text and a label, one with a long name, and a hidden file between them."""
    members = [("0.txt", b"zero"), ("0.cls", b"7"), (".hidden", b"x" * 3000), (f"{LONG}.txt", b"long" * 500)]
    path = tmp_path / "00.tar"
    path.write_bytes(plain_tar([*members, (f"{LONG}.cls", b"8"), ("2.txt", b""), ("2.cls", b"9")], format=1))
    return path


@pytest.fixture
def index(tar: Path) -> ShardIndex:
    return scan.scan_shard(tar)


def all_of(index: ShardIndex) -> np.ndarray:
    return np.arange(len(index.offsets))


def without(index: ShardIndex) -> ShardIndex:
    """Return an index as it was made before there were checksums."""
    return dataclasses.replace(index, checksums=None)


def fetched(content: bytes, offsets: np.ndarray, lengths: np.ndarray) -> bytes:
    """Return what a sparse copy of a tar holds: zeros where nothing was fetched."""
    found = bytearray(len(content))
    for start, stop in zip(offsets.tolist(), (offsets + lengths).tolist(), strict=True):
        found[start:stop] = content[start:stop]
    return bytes(found)


def test_a_scan_gives_each_member_the_checksum_of_its_data(index: ShardIndex, tar: Path) -> None:
    assert index.checksums is not None
    assert len(set(index.checksums.tolist())) == len(index.offsets) == 6
    again = shardindex.load(shardindex.dumps(index), "x")
    assert again.checksums is not None
    assert again.checksums.tolist() == index.checksums.tolist()
    assert again.of_samples(np.array([2, 0])).checksums.tolist() == index.checksums[[4, 5, 0, 1]].tolist()  # type: ignore[union-attr]


def test_packing_writes_the_checksums_that_a_scan_finds(tmp_path: Path) -> None:
    large = bytes(range(256)) * (3 << 12)  # more than one buffer
    samples = [{"__key__": str(number), "txt": b"text" * number, "bin": large[: number << 20]} for number in range(4)]
    packed = wdsdist.pack(samples, tmp_path / "shards", workers=1)
    shard = tmp_path / "shards" / packed.shard(0).name
    written, scanned = shardindex.load(shardindex.beside(shard)), scan.scan_shard(shard)
    assert written.checksums is not None
    assert written.checksums.tolist() == scanned.checksums.tolist()  # type: ignore[union-attr]


def test_altered_data_is_found_by_its_member(index: ShardIndex, tar: Path) -> None:
    content = bytearray(tar.read_bytes())
    assert not len(checksums.wrong(index, all_of(index), content))
    content[index.offsets[2] + 5] ^= 1
    assert checksums.wrong(index, all_of(index), content).tolist() == [2]
    assert not len(checksums.wrong(index, np.array([0, 1, 3]), content))
    said = str(checksums.damage(index, 2, "s3://bucket/00.tar"))
    assert (
        f"shard s3://bucket/00.tar does not hold what its index says: the data of member 'txt' of sample '{LONG}'"
        in said
    )


@pytest.mark.parametrize("has_checksums", [True, False])
def test_what_is_needed_suffices_to_check_any_member(index: ShardIndex, tar: Path, has_checksums: bool) -> None:
    index = index if has_checksums else without(index)
    for member in all_of(index):
        chosen = np.array([member])
        offsets, lengths = checksums.needed(index, chosen)
        assert not len(checksums.wrong(index, chosen, fetched(tar.read_bytes(), offsets, lengths)))
        assert int(index.offsets[member]) + int(index.sizes[member]) == int(offsets[0] + lengths[0])
        assert lengths[0] == index.sizes[member] or not has_checksums


def test_without_checksums_another_tar_is_found_by_its_headers(index: ShardIndex, tar: Path) -> None:
    old = without(index)
    other = plain_tar([("0.txt", b"zerO"), ("1.cls", b"7")]) + bytes(tar.stat().st_size)
    assert checksums.wrong(old, np.array([0, 1]), other).tolist() == [1]
    assert "the data of member 'cls' of sample '0'" in str(checksums.damage(old, 1, "00.tar"))


def test_verify_finds_checksums_that_are_not_those_of_the_tar(tar: Path) -> None:
    wdsdist.index(tar.parent)
    place = shardindex.beside(tar)
    index = shardindex.load(place)
    assert index.checksums is not None
    place.write_bytes(shardindex.dumps(dataclasses.replace(index, checksums=index.checksums + np.uint32(1))))
    (found,) = wdsdist.verify(tar.parent)
    assert "disagrees with the tar in checksums of members" in str(found)
    place.write_bytes(shardindex.dumps(without(index)))
    assert not list(wdsdist.verify(tar.parent))
