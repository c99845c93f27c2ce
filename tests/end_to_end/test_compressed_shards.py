"""Compressed shards: read like plain ones, decompressed once per node, never from a copy of what is there no more."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support.folders import forked, status
from tests.support.tars import compressed, plain_tar, write_shard
from wdsdist import StreamingDataset
from wdsdist._util import warn_once
from wdsdist.errors import ArgumentError, CacheError, NotFoundError, ShardDamagedError
from wdsdist.storage import compression

NAMES = ["0.tar.gz", "1.tgz", "2.tar.zst", "3.tar"]
SAMPLES = 7


def write(folder: Path, name: str, prefix: str, samples: int = SAMPLES) -> Path:
    """Write a tar of some samples, compressed as its name says."""
    folder.mkdir(exist_ok=True, parents=True)
    path = write_shard(folder / f"{prefix}-plain", samples, prefix=prefix)
    (folder / name).write_bytes(compressed(path.read_bytes(), name))
    path.unlink()
    return folder / name


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder of shards compressed in every way, and a plain one."""
    for number, name in enumerate(NAMES):
        write(tmp_path / "mixed", name, f"s{number}-")
    return tmp_path / "mixed"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A data set of three compressed shards that wdsdist packed."""
    (tmp_path / "files").mkdir()
    for number in range(12):
        (tmp_path / "files" / f"{number:02}.txt").write_text(f"text {number}" * 100)
    wdsdist.pack(tmp_path / "files", tmp_path / "packed", shard_samples=4, compress="zst")
    return tmp_path / "packed"


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warn_once, "_logged", {})


def texts(shards: object, **options: object) -> dict[str, str]:
    dataset = StreamingDataset(shards, decode=True, **options)  # type: ignore[arg-type]
    return {sample["__key__"]: sample.get("txt") for sample in (dataset[n] for n in range(dataset.num_samples))}


def copies(folder: Path) -> dict[str, tuple[int, int]]:
    """The copies and indexes in a cache, and what changes when one is made anew."""
    found = [*folder.rglob("*.tar"), *folder.rglob("*.wdsindex")]
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


def test_compressed_and_plain_shards_are_indexed_and_read_together(mixed: Path, tmp_path: Path) -> None:
    manifest = wdsdist.index(mixed)
    assert [shard.name for shard in manifest.shards] == NAMES
    for shard in manifest.shards:
        tar_size = -1 if shard.name == "3.tar" else 10_240
        assert (shard.size, shard.tar_size) == ((mixed / shard.name).stat().st_size, tar_size)
    assert wdsdist.open(mixed).shards == manifest.shards
    assert wdsdist.open([mixed / "3.tar", mixed / "0.tar.gz"]).shards == (manifest.shards[3], manifest.shards[0])
    expected = {f"s{n}-{m:04}": f"s{n}-{m:04}.txt" for n in range(len(NAMES)) for m in range(SAMPLES)}
    assert texts(mixed, cache_dir=tmp_path / "cache") == expected
    assert len(list((tmp_path / "cache").rglob("*.tar"))) == len(NAMES) - 1
    assert wdsdist.verify(mixed) == []


def test_a_bomb_is_refused_and_fills_no_cache(tmp_path: Path, limit_expansion: Callable[..., None]) -> None:
    limit_expansion(100_000)
    path = tmp_path / "x.tar.gz"
    path.write_bytes(compressed(plain_tar([("a.bin", bytes(4 << 20))]), path.name))
    (tmp_path / "index.json").write_text(
        json.dumps({"wids_version": 1, "shardlist": [{"url": path.name, "nsamples": 1}]})
    )
    with pytest.raises(ShardDamagedError, match=r"x\.tar\.gz expands to over [\d,]+ bytes, more than 200 times"):
        wdsdist.index(path)
    with pytest.raises(ShardDamagedError, match=r"expands to over [\d,]+ bytes"):
        StreamingDataset(tmp_path, cache_dir=tmp_path / "cache")[0]
    assert not copies(tmp_path / "cache")


def test_each_shard_is_decompressed_once_and_its_process_says_so(
    packed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "wdsdist"):
        found = texts(packed, cache_dir=tmp_path / "cache")
    said = f"some shards are compressed: each is decompressed once on this node, into {tmp_path / 'cache'}"
    assert [record.getMessage() for record in caplog.records] == [said]
    assert len(found) == 12
    before = copies(tmp_path / "cache")
    caplog.clear()
    assert texts(packed, cache_dir=tmp_path / "cache") == found
    assert not caplog.records
    assert copies(tmp_path / "cache") == before


def test_many_processes_decompress_each_shard_once(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack = compression.unpack

    def counted(file: Path, *args: Any, **more: Any) -> None:
        with (tmp_path / "unpacked").open("a") as stream:
            stream.write(f"{file.name}\n")
        unpack(file, *args, **more)

    monkeypatch.setattr(compression, "unpack", counted)
    processes = [forked(lambda: texts(packed, cache_dir=tmp_path / "cache")) for _ in range(3)]
    assert [status(process) for process in processes] == [0, 0, 0]
    names = (tmp_path / "unpacked").read_text().split()
    assert sorted(names) == [f"shard-00000{number}.tar.zst" for number in range(3)]


@pytest.mark.parametrize("how", ["in place", "by a rename"])
def test_the_copy_of_a_shard_that_was_replaced_is_not_used(tmp_path: Path, how: str) -> None:
    path, cached = write(tmp_path / "shards", "x.tar.zst", "old"), {"cache_dir": tmp_path / "cache"}
    other = write(tmp_path / "other", "x.tar.zst", "new")
    for one in (path, other):  # to the same size, by a frame without data
        rest = 1000 - one.stat().st_size
        one.write_bytes(one.read_bytes() + b"\x50\x2a\x4d\x18" + (rest - 8).to_bytes(4, "little") + bytes(rest - 8))
    assert "old0000" in texts(path, **cached)
    before = path.stat()
    path.with_name(f"{path.name}.wdsindex").unlink()
    if how == "in place":
        path.write_bytes(other.read_bytes())
    else:
        other.replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert texts(path, **cached).keys() == {f"new{number:04}" for number in range(SAMPLES)}


def test_a_file_that_is_not_what_its_index_describes_is_damage(packed: Path, tmp_path: Path) -> None:
    path = packed / "shard-000000.tar.zst"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ShardDamagedError, match=r"shard-000000\.tar\.zst is cut or damaged"):
        StreamingDataset(packed, cache_dir=tmp_path / "cache")[0]
    path.write_bytes(bytes(content[:-1]))
    with pytest.raises(ShardDamagedError, match=r"shard-000000\.tar\.zst is 1 bytes short of its index"):
        StreamingDataset(packed, cache_dir=tmp_path / "cache")[0]
    path.unlink()
    with pytest.raises(NotFoundError, match=r"shard-000000\.tar\.zst does not exist"):
        StreamingDataset(packed, cache_dir=tmp_path / "cache")[0]
    assert not copies(tmp_path / "cache")


def test_a_full_cache_is_an_error_that_names_it(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(CacheError, match=r"/cache has no room for .*zst of [\d,]+ bytes \(No space left on device"):
        StreamingDataset(packed, cache_dir=tmp_path / "cache")[0]
    assert not copies(tmp_path / "cache")


def test_verify_finds_what_is_wrong_with_the_file_the_index_and_members(packed: Path) -> None:
    names = [f"shard-00000{number}.tar.zst" for number in range(3)]
    (packed / f"{names[0]}.wdsindex").unlink()
    shutil.copy(packed / f"{names[2]}.wdsindex", packed / f"{names[1]}.wdsindex")
    content = (packed / names[2]).read_bytes()
    (packed / names[2]).write_bytes(content[:-5])
    found = [(one.shard, one.part, one.problem) for one in wdsdist.verify(packed)]
    assert [(name, part) for name, part, _ in found] == [
        (names[0], "index"), (names[1], "index"), (names[2], "tar"), (names[2], "tar"), (names[2], "tar")
    ]  # fmt: skip
    assert "disagrees with the tar in digest, compressed file, keys" in found[1][2]
    assert "is 5 bytes short of what index.json gives" in found[2][2]
    assert found[3][2].startswith("is cut or damaged")


@pytest.mark.parametrize("tool", ["dali", "energon", "wids"])
def test_no_index_is_written_for_tools_that_could_not_read_them(packed: Path, tool: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{tool} cannot read shard-000000\.tar\.zst, which is compressed"):
        wdsdist.export(packed, tool)
