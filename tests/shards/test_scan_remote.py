"""Tars in stores: the same index as of a local copy, by their headers where that is less to read, else streamed."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

import wdsdist
from tests.support.sources import Shards
from tests.support.tars import plain_tar
from tests.support.web import Web, served
from wdsdist import storage
from wdsdist.errors import ShardDamagedError
from wdsdist.shards import index as shardindex
from wdsdist.shards import scan
from wdsdist.shards.index import ShardIndex

LARGE = [(f"{number}.bin", bytes([number]) * 5_000_000) for number in range(4)]
SMALL = [(f"{number:05}.txt", b"x" * 2000) for number in range(2000)]
MEMBERS = {"large.tar": LARGE, "small.tar": SMALL, "tiny.tar": SMALL[:3]}


@functools.cache
def tar(name: str) -> bytes:
    """Return one of the tars; made for the first test that needs it, not for the collection."""
    return plain_tar(MEMBERS[name])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "www").mkdir()
    for name in MEMBERS:
        (tmp_path / "www" / name).write_bytes(tar(name))
    return tmp_path / "www"


@pytest.fixture
def web(folder: Path) -> Iterator[Web]:
    with served(folder) as server:
        yield server


@pytest.fixture
def memory(folder: Path) -> Iterator[str]:
    store = fsspec.filesystem("memory")
    for path in folder.iterdir():
        store.pipe_file(f"/train/{path.name}", path.read_bytes())
    yield "memory://train"
    store.rm("/train", recursive=True)


def same_but_digest(found: ShardIndex, wanted: ShardIndex) -> bool:
    """Whether two indexes agree; the first need not know the digest, and then has no checksums either."""
    of_data = {"sha256", "checksums"}
    if found.sha256:
        assert found.sha256 == wanted.sha256
        of_data.remove("checksums")
    return all(
        np.array_equal(getattr(found, field.name), getattr(wanted, field.name))
        for field in dataclasses.fields(found)
        if field.name not in of_data
    )


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("store", ["web", "memory"])
def test_a_remote_tar_has_the_index_of_a_local_copy(
    name: str, store: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue(store)
    url = f"{place if isinstance(place, str) else place.url}/{name}"
    found = scan.scan_remote(url, storage.stat(url).size)
    assert same_but_digest(found, scan.scan_shard(folder / name))
    assert bool(found.sha256) == (name != "large.tar")
    if not isinstance(place, str):  # only headers of large members are read; others are streamed after a few requests
        assert place.sent < (0 if name == "large.tar" else len(tar(name))) + 1.2 * (1 << 20)


def test_a_server_without_ranges_streams_the_whole(folder: Path) -> None:
    with served(folder, ranges=False) as web:
        found = scan.scan_remote(f"{web.url}/large.tar", len(tar("large.tar")))
    assert found.sha256 == scan.scan_shard(folder / "large.tar").sha256
    assert web.sent < 2.5 * len(tar("large.tar"))  # for a part it is not asked to send the whole


def test_a_remote_tar_that_is_cut_is_damage_that_names_its_url(web: Web, folder: Path) -> None:
    for cut in (12_000_000, len(tar("large.tar")) - 10_000):
        (folder / "cut.tar").write_bytes(tar("large.tar")[:cut])
        with pytest.raises(ShardDamagedError, match=rf"^{web.url}/cut\.tar: .* at byte [\d,]+ of {cut:,}"):
            scan.scan_remote(f"{web.url}/cut.tar", cut)


def test_the_indexes_are_written_beside_the_shards_where_that_can_be(memory: str, folder: Path) -> None:
    made = wdsdist.index(memory)
    found = wdsdist.open(memory)
    assert found.fingerprint == made.fingerprint
    assert [(shard.name, shard.num_samples) for shard in found.shards] == [
        ("large.tar", 4), ("small.tar", 2000), ("tiny.tar", 3),
    ]  # fmt: skip
    (folder / "tiny").write_bytes(storage.read(f"{memory}/tiny.tar.wdsindex"))
    assert same_but_digest(shardindex.load(folder / "tiny"), scan.scan_shard(folder / "tiny.tar"))
    reader = Shards(found)
    assert [bytes(reader.shard(0).member(n, 0)[:1]) for n in range(4)] == [bytes([n]) for n in range(4)]


def test_indexes_in_a_folder_of_their_own_name_the_shards_by_url(
    web: Web, tmp_path: Path, no_scan: Callable[[], None]
) -> None:
    seen = []
    names = [f"{web.url}/{name}" for name in MEMBERS]
    made = wdsdist.index(names, output=tmp_path / "own", progress=seen.append)
    host = web.url.partition("://")[2]
    assert {path.relative_to(tmp_path / "own").as_posix() for path in (tmp_path / "own").rglob("*.*x")} == {
        f"{host}/{name}.wdsindex" for name in MEMBERS
    }
    found = wdsdist.open(tmp_path / "own", allow_elsewhere=True)
    assert [found.location(number) for number in range(3)] == names
    assert found.fingerprint == made.fingerprint
    assert [state.shards_done for state in seen] == [0, 1, 2, 3]
    no_scan()
    shard = Shards(found, tmp_path / "cache").shard(0)
    assert bytes(shard.member(3, 0)) == LARGE[3][1]
    assert seen[-1].bytes_done == seen[-1].bytes == sum(len(tar(name)) for name in MEMBERS)


def test_a_damaged_remote_tar_is_left_out_on_request(memory: str, tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/train/tiny.tar", tar("tiny.tar")[:3000])
    fsspec.filesystem("memory").pipe_file("/train/x-twice.tar", plain_tar([("a.txt", b"1"), ("a.txt", b"2")]))
    tars = f"{memory}/{{tiny,x-twice,y}}.tar"
    fsspec.filesystem("memory").pipe_file("/train/y.tar", plain_tar(SMALL[:5]))
    whole = wdsdist.index(tars, on_error="skip")
    report = [json.loads(line) for line in storage.read(f"{memory}/index-report.jsonl").splitlines()]
    assert [(line["key"], line["shard"]) for line in report] == [(None, "tiny.tar"), ("a", "x-twice.tar")]
    assert [(shard.name, shard.num_samples) for shard in whole.shards] == [("x-twice.tar", 0), ("y.tar", 5)]
    assert wdsdist.verify(whole, workers=1) == []
    reader = Shards(wdsdist.open(memory), tmp_path / "cache")
    counts = [reader.shard(number).index.num_samples for number in range(len(whole.counts))]
    assert counts == whole.counts.tolist()
