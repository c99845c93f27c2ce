"""Repair takes no copy that is not whole, and leaves alone what it cannot repair."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support.damage import flip
from tests.support.photos import encode, photo
from tests.support.tars import plain_tar
from tests.support.web import served
from wdsdist.diagnostics.verify import Repair
from wdsdist.shards import index as shardindex

NAMES = [f"shard-{number:06}.tar" for number in range(3)]


@pytest.fixture
def shards(shards: Path) -> Path:
    """The shards, and whole copies of them beside."""
    shutil.copytree(shards, shards.parent / "whole")
    return shards


def repaired(folder: Path, **more: object) -> list[Repair]:
    return wdsdist.repair(folder, wdsdist.verify(folder), **more)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


TAR, INDEX = NAMES[1], f"{NAMES[1]}.wdsindex"
HARMS: dict[str, Callable[[Path], object]] = {
    "lose index": lambda folder: (folder / INDEX).unlink(),
    "damage index": lambda folder: flip(folder / INDEX, 200),
    "swap index": lambda folder: shutil.copy(folder / f"{NAMES[2]}.wdsindex", folder / INDEX),
    "flip data": lambda folder: flip(folder / TAR, 600),
    "flip header": lambda folder: flip(folder / TAR, 3),
    "cut": lambda folder: (folder / TAR).write_bytes((folder / TAR).read_bytes()[:2000]),
    "lose": lambda folder: (folder / TAR).unlink(),
}
TAR_HARMS = ("flip data", "flip header", "cut", "lose")


@pytest.mark.parametrize("harm", ["lose index", "damage index", "swap index"])
def test_an_index_is_made_again_from_a_whole_tar(shards: Path, harm: str) -> None:
    before = contents(shards)
    HARMS[harm](shards)
    assert repaired(shards) == [Repair(NAMES[1], True, "indexed again")]
    assert contents(shards) == before
    assert wdsdist.verify(shards) == []


@pytest.mark.parametrize("harm", TAR_HARMS)
@pytest.mark.parametrize("remote", [False, True])
def test_a_damaged_tar_is_replaced_by_a_whole_copy(shards: Path, harm: str, remote: bool) -> None:
    before = contents(shards)
    HARMS[harm](shards)
    whole = shards.parent / "whole"
    with served(whole) as web:
        place = web.url if remote else str(whole)
        assert repaired(shards, source=place) == [Repair(NAMES[1], True, f"replaced by {place}/{NAMES[1]}")]
    assert contents(shards) == before


@pytest.mark.parametrize("harm", [*TAR_HARMS, "swap index"])
def test_a_copy_that_is_damaged_too_is_not_taken(shards: Path, harm: str) -> None:
    HARMS[harm](shards.parent / "whole")
    if harm == "swap index":
        shutil.copy(shards / NAMES[2], shards.parent / "whole" / NAMES[1])  # whole, but another shard
    flip(shards / TAR, 600)
    before = contents(shards)
    for source, reason in ((shards.parent / "whole", ""), (None, "there is nothing to fetch it from")):
        (left,) = repaired(shards, source=source)
        assert not left.done
        assert reason in left.what
        assert contents(shards) == before


@pytest.mark.parametrize("how", [{"key": "last-dot"}, {"on_error": "skip"}], ids=["key", "skip"])
def test_a_copy_is_checked_by_the_rules_that_its_shard_was_indexed_with(how: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    members = [("v1.0.txt", b"a"), ("v1.1.txt", b"b")] + [("v1.1.txt", b"c")] * ("on_error" in how)
    tar = tmp_path / "tars" / "x.tar"
    tar.write_bytes(plain_tar(members))
    shutil.copy(tar, tmp_path / "x.tar")
    wdsdist.index(tmp_path / "tars", **{"key": "last-dot", **how})
    flip(tar, 3)
    assert repaired(tmp_path / "tars", source=tmp_path) == [Repair("x.tar", True, f"replaced by {tmp_path}/x.tar")]


def test_an_index_that_stands_elsewhere_is_made_again_there(shards: Path, tmp_path: Path) -> None:
    for path in shards.glob("*.wdsindex"):
        path.unlink()
    own = wdsdist.index(sorted(shards.glob("*.tar")), output=tmp_path / "own")
    indexes = Path(f"{tmp_path}/own{shards}")
    before = contents(indexes)
    shutil.copy(indexes / f"{NAMES[2]}.wdsindex", indexes / f"{NAMES[1]}.wdsindex")
    flip(shards / TAR, 600)
    found = wdsdist.verify(own)
    (done,) = wdsdist.repair(own, found, source=tmp_path / "whole")
    assert done.done, done
    assert contents(indexes) == before
    assert wdsdist.verify(own) == []


@pytest.fixture
def remote(shards: Path) -> Iterator[str]:
    with served(shards) as web:
        yield web.url


def test_remote_shards_are_fetched_and_checked(shards: Path, remote: str) -> None:
    assert wdsdist.verify(remote, workers=1) == []
    flip(shards / TAR, 600)
    (shards / INDEX).unlink()
    (shards / NAMES[2]).unlink()
    found = wdsdist.verify(remote, workers=1)
    assert [(damage.shard, damage.part) for damage in found] == [
        (NAMES[1], "tar"), (NAMES[1], "index"), (NAMES[2], "tar"),
    ]  # fmt: skip
    assert [one.done for one in wdsdist.repair(remote, found)] == [False, False]


# Decoding


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    for number in range(4):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(encode(photo(64, 48, seed=number)))
        (tmp_path / "photos" / f"{number}.json").write_text("{}")
        (tmp_path / "photos" / f"{number}.raw").write_bytes(b"anything")
    return tmp_path / "photos"


def test_deep_verification_finds_members_that_do_not_decode(photos: Path, tmp_path: Path) -> None:
    (photos / "1.json").write_text("{")
    (photos / "2.jpg").write_bytes((photos / "2.jpg").read_bytes()[:-300])
    wdsdist.pack(photos, tmp_path / "shards", shuffle_seed=None)
    assert wdsdist.verify(tmp_path / "shards") == []
    found = wdsdist.verify(tmp_path / "shards", deep=True)
    assert [damage.part for damage in found] == ["member", "member"]
    assert [damage.problem.split(" at ")[0] for damage in found] == ["holds 1.json", "holds 2.jpg"]
    (left,) = wdsdist.repair(tmp_path / "shards", found)
    assert not left.done
    assert "packed so" in left.what


def test_many_bad_members_are_counted(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for number in range(40):
        (tmp_path / "source" / f"{number}.json").write_text("{")
    wdsdist.pack(tmp_path / "source", tmp_path / "shards")
    found = wdsdist.verify(tmp_path / "shards", deep=True)
    assert len(found) == 11
    assert found[-1].problem == "holds 30 more members that fail"


def test_an_index_of_headers_alone_is_no_damage_for_want_of_a_digest(tmp_path: Path) -> None:
    from dataclasses import replace

    from tests.support.tars import write_shard

    tar = write_shard(tmp_path / "x.tar", 3)
    wdsdist.index(tmp_path)
    known = shardindex.load(shardindex.beside(tar))
    shardindex.beside(tar).write_bytes(shardindex.dumps(replace(known, sha256="")))
    assert wdsdist.verify(tmp_path) == []
