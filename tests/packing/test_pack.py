"""What packing writes, and that other tools read it."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import random
import shutil
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support.packing import DataBytes, files_in
from tests.support.tars import listing
from wdsdist._util import pools
from wdsdist.errors import ArgumentError
from wdsdist.packing import pack, writer
from wdsdist.packing.destination import Destination
from wdsdist.packing.members import FilePayload, Sample
from wdsdist.packing.plan import make_plan
from wdsdist.packing.writer import BUFFER
from wdsdist.shards import index as shardindex
from wdsdist.shards import open as catalog
from wdsdist.shards import scan as tarindex
from wdsdist.shards.shard_indexes import local_index
from wdsdist.shards.tar.reader import END


def tars(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tar"))


def test_one_process_writes_two_shards_of_files_at_a_time(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, fsync = threading.Barrier(2, timeout=110), os.fsync

    def synced(descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            both.wait()  # broken, unless another one is begun before this one is written
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    assert len(pack(source, tmp_path / "dest", shard_samples=20, workers=1).shards) == 2


def test_a_process_with_threads_is_not_forked_and_gets_the_same_bytes(
    source: Path, tmp_path: Path, data_bytes: DataBytes, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    methods: list[str] = []

    class Recorded(pools.Processes):
        def __init__(self, workers: int, *, mp_context: Any, **more: Any) -> None:
            methods.append(mp_context.get_start_method())
            super().__init__(workers, mp_context, **more)

    monkeypatch.setattr(pools, "Processes", Recorded)
    pack(source, tmp_path / "forked", shard_samples=6, workers=2)
    request.getfixturevalue("thread")
    pack(source, tmp_path / "served", shard_samples=6, workers=2)
    assert methods == ["fork", "forkserver"]
    assert data_bytes(tmp_path / "forked") == data_bytes(tmp_path / "served")


def test_the_bytes_are_the_same_wherever_source_and_destination_lie(
    source: Path, tmp_path: Path, data_bytes: DataBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(source, tmp_path / "elsewhere" / "copy", copy_function=shutil.copyfile)  # with times of its own
    pack(source, tmp_path / "one", shard_samples=6)
    monkeypatch.setenv("HOME", str(tmp_path / "deep"))
    pack(tmp_path / "elsewhere" / "copy", "~/down/two", shard_samples=6)
    found = data_bytes(tmp_path / "one")
    assert found == data_bytes(tmp_path / "deep" / "down" / "two")
    assert not any(str(tmp_path).encode() in content for content in found.values())


def test_seed_and_source_order_decide_what_lies_where(source: Path, tmp_path: Path) -> None:
    def keys(name: str, seed: int | None) -> list[str]:
        manifest = pack(source, tmp_path / name, shuffle_seed=seed, shard_samples=15)
        indexes = [local_index(Path(manifest.location(n))) for n in range(len(manifest.counts))]
        return [index.key(sample) for index in indexes for sample in range(index.num_samples)]

    in_order = keys("none", None)
    assert in_order == sorted(in_order, key=str.encode)
    assert sorted(keys("0", 0)) == sorted(keys("1", 1)) == sorted(in_order)
    assert len({tuple(keys("0", 0)), tuple(keys("1", 1)), tuple(in_order)}) == 3


def test_the_index_beside_a_shard_is_that_of_a_scan(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "dest", shard_samples=11)
    for path in tars(tmp_path / "dest"):
        beside = path.with_name(path.name + shardindex.SUFFIX).read_bytes()
        assert beside == shardindex.dumps(tarindex.scan_shard(path))


def test_the_manifest_is_a_wids_index_with_our_notes(source: Path, tmp_path: Path) -> None:
    (source / ".hidden").write_text("")
    manifest = pack(source, tmp_path / "dest", shard_samples=16, shuffle_seed=7)
    written = json.loads((tmp_path / "dest" / "index.json").read_bytes())
    assert (written["__kind__"], written["wids_version"]) == ("wids-shard-index-v1", 1)
    assert written["shardlist"] == [
        {
            "url": path.name,
            "nsamples": samples,
            "filesize": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path, samples in zip(tars(tmp_path / "dest"), (16, 16, 8), strict=True)
    ]
    assert written["wdsdist"].pop("index_sha256")
    assert written["wdsdist"] == {
        "version": 1,
        "num_samples": 40,
        "source": {"kind": "folder"},
        "shuffle_seed": 7,
        "fields": ["bin", "meta.json"],
        "payload_bytes": sum(len(data) for name, data in files_in(source).items() if name != ".hidden"),
        "with_checksums": 3,
        "skipped": {"hidden file or folder": 1},
    }
    assert repr(manifest) == repr(catalog.open(tmp_path / "dest"))
    assert manifest.fingerprint == catalog.open(tmp_path / "dest").fingerprint
    assert manifest.num_samples == 40


def test_a_sample_above_the_limit_gets_a_shard_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for name, size in (("a", 100), ("b", 50_000), ("c", 100)):
        (tmp_path / "source" / f"{name}.bin").write_bytes(bytes(size))
    manifest = pack(tmp_path / "source", tmp_path / "dest", shard_bytes=4096, shuffle_seed=None)
    assert manifest.counts.tolist() == [1, 1, 1]
    assert manifest.sizes.tolist() == [2048, 512 + 50_176 + 1024, 2048]


def test_samples_of_all_sizes_around_that_of_a_buffer_are_copied_whole(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    sizes = [0, 1, *(BUFFER * times - 512 + more for times in (1, 2) for more in (-512, -1, 0, 1, 511, 512, 513))]
    content = {f"{number:02}.bin": random.Random(number).randbytes(size) for number, size in enumerate(sizes)}
    content |= {f"small{number:03}.bin": random.Random(number).randbytes(20_000) for number in range(200)}
    for name, data in content.items():
        (tmp_path / "source" / name).write_bytes(data)
    pack(tmp_path / "source", tmp_path / "dest", workers=1)
    with tarfile.open(tmp_path / "dest" / "shard-000000.tar") as tar:
        found = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    assert found == content


@pytest.mark.parametrize("name", list(inspect.signature(pack).parameters)[2:])
def test_an_option_of_no_type_that_it_can_have_is_refused(source: Path, tmp_path: Path, name: str) -> None:
    numbers = {"shard_bytes": 0, "shard_samples": 0, "workers": 0, "shuffle_seed": -1}
    for value in (object(), numbers.get(name, object())):
        with pytest.raises(ArgumentError, match=f"^({name}|storage_options) |{name}="):
            pack(source, tmp_path / "dest", **{name: value})
    assert not (tmp_path / "dest").exists()


@pytest.mark.parametrize("target", [".", "shards", "part0/shards"])
def test_a_destination_inside_the_source_is_refused(source: Path, target: str) -> None:
    before = files_in(source)
    with pytest.raises(ArgumentError, match=r"lies inside the source .*: choose a folder outside it"):
        pack(source, source / target)
    assert files_in(source) == before


# Which samples go into which shard


SIZES = st.lists(st.integers(1, 40).map(lambda blocks: 512 * blocks), min_size=1, max_size=200).map(np.array)
SEEDS = st.none() | st.integers(0, 2**64 - 1)
ROOMS = st.integers(1, 60_000) | st.integers(1, 120).map(lambda blocks: 512 * blocks)
LIMITS = st.none() | st.integers(1, 50)


@given(sizes=SIZES, seed=SEEDS, limit=LIMITS, room=ROOMS)
def test_every_sample_is_in_one_shard_and_every_shard_keeps_the_limits(
    sizes: np.ndarray, seed: int | None, limit: int | None, room: int
) -> None:
    plan = make_plan(sizes, shuffle_seed=seed, shard_bytes=room, shard_samples=limit)
    shards = [plan.samples(shard) for shard in range(len(plan))]
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(sizes)))
    for shard, size in zip(shards, plan.sizes.tolist(), strict=True):
        assert size == sizes[shard].sum() + len(END)
        assert 1 <= len(shard) <= (limit or len(sizes))
        assert size <= room or len(shard) == 1
    for shard, size, following in zip(shards, plan.sizes.tolist(), shards[1:], strict=False):
        assert size + sizes[following[0]] > room or len(shard) == limit


def test_the_order_of_a_seed_never_changes() -> None:
    # Data sets packed by one version must be continued by the next one: a new order needs a new record version.
    plan = make_plan(np.full(10, 512), shuffle_seed=0, shard_bytes=10**6, shard_samples=None)
    assert plan.order.tolist() == [3, 5, 6, 0, 2, 8, 9, 7, 4, 1]


# Packing into compressed shards: the same tars as without, as whole, as resumable, as deterministic


def plain(content: bytes) -> bytes:
    """Decompress all frames of a shard."""
    return zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True).read()


def test_the_shards_hold_the_tars_that_packing_writes_otherwise(
    source: Path, tmp_path: Path, data_bytes: DataBytes
) -> None:
    pack(source, tmp_path / "plain", shard_bytes=20_000)
    manifest = pack(source, tmp_path / "zst", shard_bytes=20_000, compress="zst")
    expected, found = data_bytes(tmp_path / "plain"), data_bytes(tmp_path / "zst")
    tars = [name for name in expected if name.endswith(".tar")]
    assert len(tars) > 3
    assert {plain(found[f"{name}.zst"]) for name in tars} == {expected[name] for name in tars}
    assert found.keys() == {"index.json"} | {f"{name}.zst{end}" for name in tars for end in ("", ".wdsindex")}
    for name, listed in zip(sorted(tars), manifest.shards, strict=True):
        index = shardindex.load(tmp_path / "zst" / f"{name}.zst.wdsindex")
        assert index.stored == shardindex.Stored(listed.size, listed.sha256)
        assert shardindex.dumps(replace(index, stored=None)) == expected[f"{name}.wdsindex"]
        assert (listed.size, listed.tar_size) == (len(found[f"{name}.zst"]), len(expected[name]))
    assert not wdsdist.verify(tmp_path / "zst", deep=True)


def test_a_large_sample_that_breaks_off_leaves_no_trace_in_the_compressed_shard(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * (3 << 12))

    def samples(*, broken: bool) -> Iterator[Sample]:
        whole, lost = FilePayload(str(large), large.stat().st_size), FilePayload("/nowhere", 5)
        yield "a", [("txt", b"1")]
        if broken:
            yield "b", [("bin", whole), ("txt", lost)]
        yield "c", [("bin", whole)]
        yield "d", [("txt", b"2")]
        if broken:
            yield "e", [("bin", whole), ("txt", lost)]

    found = []
    for number, broken in enumerate((False, True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        written = writer.write_shard(Destination(str(folder)), "x.tar.zst", samples(broken=broken), "", "skip", "zst:3")
        content = (folder / "x.tar.zst").read_bytes()
        assert (written.listed.size, written.listed.tar_size) == (len(content), len(plain(content)))
        assert written.listed.sha256 == hashlib.sha256(content).hexdigest()
        assert [one.key for one in written.left_out] == ["b", "e"] * broken
        found.append(plain(content))
    assert found[0] == found[1]
    assert len(listing(found[0])) == 3
