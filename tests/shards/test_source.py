"""The contract of `ShardSource`: local files, and copies of remote, compressed and staged shards."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import wdsdist
from tests.support.web import served
from wdsdist._util.array_types import Int64s
from wdsdist.errors import NotFoundError, ShardDamagedError
from wdsdist.samples.member_reader import open_source
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.source import CacheOptions, Counters, LocalShards, ShardSource

SHARDS, SAMPLES = 3, 8
KINDS = ("local", "remote", "without ranges", "compressed", "remote and compressed", "staged")


def content(number: int) -> bytes:
    return np.random.default_rng(number).bytes(9000)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Path]:
    """A folder of plain shards, and one of compressed ones."""
    folder = tmp_path_factory.mktemp("packed")
    samples = [{"__key__": f"{number:04}", "bin": content(number)} for number in range(SHARDS * SAMPLES)]
    found: dict[str | None, Path] = {None: folder / "plain", "zst": folder / "zst"}
    for compress, path in found.items():
        wdsdist.pack(iter(samples), path, shard_samples=SAMPLES, shuffle_seed=None, compress=compress)
    return found


@pytest.fixture(params=KINDS)
def manifest(request: pytest.FixtureRequest, packed: dict[str | None, Path]) -> Iterator[Manifest]:
    folder = packed["zst" if "compressed" in request.param else None]
    if request.param in ("local", "compressed"):
        yield wdsdist.open(folder)
    elif request.param == "staged":
        yield wdsdist.open(folder).staged()
    else:
        with served(folder, ranges=request.param != "without ranges") as web:
            yield wdsdist.open(web.url)


@pytest.fixture
def source(manifest: Manifest, tmp_path: Path) -> ShardSource:
    return open_source(manifest, CacheOptions(tmp_path / "cache", timeout=60))


def of(*members: int) -> Callable[[ShardIndex], Int64s]:
    return lambda index: np.array(members, np.int64)


def test_the_members_of_a_batch_are_readable_until_release_and_views_longer(source: ShardSource) -> None:
    opened = source.open({0: of(2, 3), 2: of(7)})
    assert list(opened) == [0, 2]
    assert [bytes(opened[0].member(number, 0)) for number in (2, 3)] == [content(2), content(3)]
    kept = opened[2].member(7, 0)
    source.release()
    again = source.open({1: None, 2: of(0)})
    assert [again[1].key(number) for number in range(SAMPLES)] == [f"{number:04}" for number in range(8, 16)]
    assert [bytes(again[1].member(number, 0)) for number in range(SAMPLES)] == list(map(content, range(8, 16)))
    assert bytes(kept) == content(23)
    assert bytes(again[2].member(5, 0)) == content(21)  # a substitute, which the batch did not ask for


def test_a_source_moves_to_another_process_without_what_it_holds(source: ShardSource) -> None:
    held = source.open({0: None})
    moved = pickle.loads(pickle.dumps(source))
    assert bytes(moved.open({0: of(1)})[0].member(1, 0)) == content(1)
    assert bytes(held[0].member(1, 0)) == content(1)


def test_views_choose_samples_by_their_own_numbers(manifest: Manifest, tmp_path: Path) -> None:
    view = manifest.select(keys=["0003", "0005", "0017"])
    source = open_source(view, CacheOptions(tmp_path / "cache"))
    opened = source.open({0: of(5)})[0]
    assert (opened.num_samples, opened.stored(1), bytes(opened.member(opened.stored(1), 0))) == (2, 5, content(5))
    other = source.with_manifest(manifest)
    assert other.open({0: of(0)})[0].num_samples == SAMPLES


def test_a_shard_that_is_gone_is_an_error(packed: dict[str | None, Path], tmp_path: Path) -> None:
    for compress, folder in packed.items():
        copy = tmp_path / str(compress)
        copy.mkdir()
        for path in folder.iterdir():
            if "000001" not in path.name:
                (copy / path.name).write_bytes(path.read_bytes())
        with served(copy) as web:
            here = wdsdist.open(copy)
            for manifest in (here, here.staged(), wdsdist.open(web.url)):
                with pytest.raises(NotFoundError, match=r"shard-000001\S* does not exist"):
                    open_source(manifest, CacheOptions(tmp_path / "cache", timeout=5)).open({0: of(1), 1: of(1)})


def test_a_source_with_a_limit_makes_room(packed: dict[str | None, Path], tmp_path: Path) -> None:
    manifest = wdsdist.open(packed[None])
    assert not open_source(manifest).is_bounded
    assert not open_source(manifest.staged(), CacheOptions(tmp_path / "cache")).is_bounded
    assert open_source(manifest.staged(), CacheOptions(tmp_path / "cache", 10**9)).is_bounded


def test_local_shards_count_nothing(packed: dict[str | None, Path]) -> None:
    source = open_source(wdsdist.open(packed[None]))
    assert isinstance(source, LocalShards)
    source.open({0: None})
    assert source.counters() == Counters()


@pytest.mark.parametrize("change", ["cut", "altered"])
def test_a_local_shard_that_is_altered_while_it_is_mapped_is_an_error(
    packed: dict[str | None, Path], tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(packed[None], tmp_path, dirs_exist_ok=True)
    source = open_source(wdsdist.open(tmp_path))
    source.open({0: None})
    if change == "altered":  # which is looked for from time to time; a cut file would kill the process
        monkeypatch.setattr("wdsdist.shards.source._BETWEEN_LOOKS", 0.0)
    with next(iter(sorted(tmp_path.glob("*0.tar")))).open("r+b") as shard:
        shard.truncate(1000) if change == "cut" else shard.write(b"X")
    with pytest.raises(ShardDamagedError, match="was altered while it was being read"):
        source.open({0: None})


def test_a_local_shard_that_is_touched_or_replaced_is_read_on(
    packed: dict[str | None, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wdsdist.shards.source._BETWEEN_LOOKS", 0.0)
    shutil.copytree(packed[None], tmp_path, dirs_exist_ok=True)
    source = open_source(wdsdist.open(tmp_path))
    before = source.open({0: None})[0].member(0, 0)
    path = sorted(tmp_path.glob("*0.tar"))[0]
    path.touch()
    assert source.open({0: None})[0].member(0, 0) == before
    new = tmp_path / "new"
    new.write_bytes(b"other")
    new.replace(path)
    assert source.open({0: None})[0].member(0, 0) == before


def test_members_of_local_shards_are_verified_on_request(packed: dict[str | None, Path], tmp_path: Path) -> None:
    shutil.copytree(packed[None], tmp_path, dirs_exist_ok=True)
    shard = min(tmp_path.glob("*.tar"))
    data = shard.read_bytes()
    shard.write_bytes(data.replace(content(3), content(2)))
    opened = open_source(wdsdist.open(tmp_path)).open({0: None})[0]
    opened.verify(np.array([1, 2]))
    with pytest.raises(ShardDamagedError, match="member 'bin' of sample '0003'"):
        opened.verify(np.array([2, 3]))


def test_an_index_with_another_digest_than_the_list_is_an_error(packed: dict[str | None, Path], tmp_path: Path) -> None:
    shutil.copytree(packed[None], tmp_path, dirs_exist_ok=True)
    manifest = wdsdist.open(tmp_path)
    listed = tmp_path / "index.json"
    listed.write_text(listed.read_text().replace(manifest.shard(1).sha256, "0" * 64))
    source = open_source(wdsdist.open(tmp_path))
    source.open({0: None})
    with pytest.raises(ShardDamagedError, match=r"was indexed with another digest than index\.json gives"):
        source.open({1: None})
