"""Whatever a data set holds, also links planted in its folder: nothing is written outside that, or the output's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import wdsdist
from tests.support.tars import write_shard
from wdsdist.errors import DestinationError, DestinationExistsError, IndexFormatError, ShardDamagedError


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class World:
    """A data set, a home beside it that must stay as it is, and whole copies of the shards for repairs."""

    def __init__(self, root: Path) -> None:
        self.data, self.home, self.whole, self.out = (root / name for name in ("data", "home", "whole", "out"))
        for folder in (self.data, self.home, self.whole):
            folder.mkdir()
        write_shard(self.whole / "x.tar", 3)
        (self.home / "x.tar").write_bytes(b"damaged, or of another purpose")
        (self.home / "notes").write_bytes(b"the user's")
        self.before = contents(self.home)

    def lists(self, *names: str) -> Path:
        """Write the index.json of the data set."""
        listed = [{"url": name, "nsamples": 3} for name in names]
        (self.data / "index.json").write_text(json.dumps({"wids_version": 1, "shardlist": listed}))
        return self.data

    def check(self) -> None:
        assert contents(self.home) == self.before


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("name", ["../home/x.tar", "{home}/x.tar", "file://{home}/x.tar", "sub/../../home/x.tar"])
def test_repair_does_not_replace_what_an_index_names_elsewhere(world: World, name: str) -> None:
    folder = world.lists(name.format(home=world.home))
    (folder / "sub").mkdir()
    with pytest.raises(IndexFormatError):
        wdsdist.verify(folder)
    with pytest.raises(IndexFormatError):
        wdsdist.repair(folder, [], source=world.whole)
    command = [sys.executable, "-m", "wdsdist", "verify", folder, "--repair", "--source", world.whole]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 2
    assert "may lie outside" in done.stderr
    world.check()


def test_that_one_may_be_read_does_not_let_it_be_replaced(world: World) -> None:
    manifest = wdsdist.open(world.lists("../home/x.tar"), allow_elsewhere=True)
    (done,) = wdsdist.repair(manifest, wdsdist.verify(manifest), source=world.whole)
    assert not done.done
    assert "lies outside" in done.what
    world.check()


def test_what_the_user_names_himself_is_repaired_where_it_lies(world: World) -> None:
    shutil.copy(world.whole / "x.tar", world.home / "x.tar")
    manifest = wdsdist.index(world.home / "x.tar", output=world.out)
    (world.home / "x.tar").write_bytes(b"damaged")
    (done,) = wdsdist.repair(manifest, wdsdist.verify(manifest), source=world.whole)
    assert done.done, done


@pytest.mark.parametrize("harm", ["tar", "index"])
def test_repair_does_not_write_through_a_link_to_a_folder(world: World, harm: str) -> None:
    if harm == "index":
        shutil.copy(world.whole / "x.tar", world.home / "x.tar")
        world.before = contents(world.home)
    (world.data / "sub").symlink_to(world.home)
    folder = world.lists("sub/x.tar")
    found = wdsdist.verify(folder)
    assert {damage.part for damage in found} >= {harm}
    (done,) = wdsdist.repair(folder, found, source=world.whole)
    assert not done.done
    assert "behind a link out of it" in done.what
    world.check()


def test_repair_replaces_a_link_to_a_file_and_not_the_file(world: World) -> None:
    (world.data / "x.tar").symlink_to(world.home / "x.tar")
    folder = world.lists("x.tar")
    (done,) = wdsdist.repair(folder, wdsdist.verify(folder), source=world.whole)
    assert done.done, done
    assert not (folder / "x.tar").is_symlink()
    world.check()


def test_an_index_made_while_reading_is_not_kept_behind_a_link(world: World, user_cache: Path) -> None:
    shutil.copy(world.whole / "x.tar", world.home / "x.tar")
    world.before = contents(world.home)
    (world.data / "sub").symlink_to(world.home)
    folder = world.lists("sub/x.tar")
    assert len(list(wdsdist.StreamingDataset(folder, num_replicas=1, rank=0))) == 3
    assert list((user_cache / "indexes").iterdir())
    for kind in ("dali", "wids", "timm"):
        wdsdist.export(folder, kind, output=world.out, workers=1)
    wdsdist.pack(folder, world.out, workers=1)
    world.check()


@pytest.mark.parametrize("name", ["index.json", "x.tar.wdsindex"])
def test_indexing_replaces_links_that_were_planted_where_it_writes(world: World, name: str) -> None:
    shutil.copy(world.whole / "x.tar", world.data / "x.tar")
    (world.data / name).symlink_to(world.home / "notes")
    wdsdist.index(world.data)
    assert not (world.data / name).is_symlink()
    world.check()


@pytest.mark.parametrize(
    ("format", "name", "target"),
    [
        ("energon", ".nv-meta", "home"), ("energon", ".nv-meta", "home/new"), ("energon", "x.tar.idx", "home/notes"),
        ("dali", "x.idx", "home/notes"), ("wids", "wids.json", "home/notes"), ("timm", "_info.json", "home/notes"),
    ],
)  # fmt: skip
def test_an_export_does_not_write_through_links(world: World, format: str, name: str, target: str) -> None:  # noqa: A002
    shutil.copy(world.whole / "x.tar", world.data / "x.tar")
    (world.data / name).symlink_to(world.home.parent / target)
    folder = world.lists("x.tar")
    if name == ".nv-meta":
        with pytest.raises(DestinationError, match="is a link out of"):
            wdsdist.export(folder, format)
    else:
        assert wdsdist.export(folder, format)
        assert not (folder / name).is_symlink()
    world.check()


@pytest.mark.parametrize(
    "name",
    [
        "index.json", ".wdsdist-pack.json", ".wdsdist-pack.lock", "shard-000000.tar", "shard-000000.tar.wdsindex",
        "pack-report.jsonl", ".tmp-0123456789abcdef-shard-000000.tar",
    ],
)  # fmt: skip
@pytest.mark.parametrize("overwrite", [False, True])
def test_packing_does_not_write_through_links(world: World, name: str, overwrite: bool) -> None:
    (world.out).mkdir()
    (world.out / name).symlink_to(world.home / "notes")
    try:
        wdsdist.pack([{"txt": "a"}], world.out, overwrite=overwrite)
    except (DestinationExistsError, DestinationError):
        pass
    else:
        assert not (world.out / name).is_symlink()
    world.check()


def test_packing_does_not_empty_a_folder_behind_a_link(world: World) -> None:
    world.out.mkdir()
    (world.out / ".tmp-0123456789abcdef-source").symlink_to(world.home)
    wdsdist.pack([{"txt": "a"}], world.out)
    world.check()


def test_a_pipe_in_the_place_of_a_shard_is_an_error_and_no_wait(world: World) -> None:
    os.mkfifo(world.data / "x.tar")
    folder = world.lists("x.tar")
    with pytest.raises(ShardDamagedError, match="is a folder, pipe or device"):
        list(wdsdist.StreamingDataset(folder, num_replicas=1, rank=0))
    assert "is a folder, pipe or device" in wdsdist.verify(folder)[0].problem
