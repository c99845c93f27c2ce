"""What others put into a cache folder, or into its place: it is not believed, not followed and not written through."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.sources import Shards
from wdsdist.cache.folder import CATALOG, LOCKS
from wdsdist.errors import CacheError
from wdsdist.shards.index import beside
from wdsdist.shards.manifest import Manifest

STRANGER = 12345
"""A user and a group that do not exist."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    return folder


def read(remote: Manifest, folder: Path) -> bytes:
    return bytes(Shards(remote, folder).shard(0).content)


@pytest.mark.parametrize("name", ["cache", "link"])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_folder_that_others_can_write_is_refused(
    remote: Manifest, folder: Path, tmp_path: Path, mode: int, name: str
) -> None:
    (tmp_path / "link").symlink_to(folder)
    folder.chmod(mode)
    with pytest.raises(CacheError, match=rf"others can write it \(mode {mode:04o}\).*`chmod go-w {tmp_path / name}`"):
        read(remote, tmp_path / name)
    assert list(folder.iterdir()) == []
    folder.chmod(mode & ~0o022)
    read(remote, tmp_path / name)
    folder.chmod(mode)
    with pytest.raises(CacheError, match="others can write it"):  # with what is in it
        read(remote, tmp_path / name)


@as_root
@pytest.mark.parametrize(
    ("user", "group", "message"),
    [
        (STRANGER, -1, r"belongs to user 12345, not to user 0.*choose a cache_dir that belongs"),
        (-1, STRANGER, "others can write it"),
    ],
)
def test_a_folder_of_another_user_or_group_is_refused(
    remote: Manifest, folder: Path, user: int, group: int, message: str
) -> None:
    folder.chmod(0o770)
    read(remote, folder)  # root's group has no other member
    os.chown(folder, user, group)
    folder.chmod(0o770)
    with pytest.raises(CacheError, match=message):
        read(remote, folder)


def test_a_folder_that_anybody_can_replace_is_refused(remote: Manifest, tmp_path: Path) -> None:
    parent = tmp_path / "open"
    parent.mkdir()
    parent.chmod(0o777)
    (tmp_path / "link").symlink_to(parent)
    for path in (parent / "cache", parent / "deep" / "cache", tmp_path / "link" / "cache"):
        with pytest.raises(CacheError, match=r"has mode 0777.*`chmod \+t"):
            read(remote, path)
    parent.chmod(0o1777)  # as /tmp is
    read(remote, parent / "cache")


def test_a_folder_is_closed_whatever_the_umask(remote: Manifest, tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        read(remote, tmp_path / "a" / "b" / "cache")
    finally:
        os.umask(mask)
    made = [*(tmp_path / "a").rglob("*")]
    assert len(made) > 5
    assert all(not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) for path in made)
    assert (tmp_path / "a" / "b" / "cache").stat().st_mode & 0o777 == 0o700


PLANTS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "dangling link": lambda path, victim: path.symlink_to(victim.with_name("none")),
    "folder": lambda path, victim: path.mkdir(),
    "pipe": lambda path, victim: os.mkfifo(path),
    "others' file": lambda path, victim: (path.write_bytes(b"planted"), path.chmod(0o666)),
}


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("where", ["copy", "index", "locks", "catalog", "folder"])
def test_what_is_planted_in_the_place_of_a_file_is_harmless(
    remote: Manifest, folder: Path, tmp_path: Path, packed: Path, plant: str, where: str
) -> None:
    """It is replaced, or the error names it; nothing is read or written through it."""
    shards = Shards(remote, folder)
    copy = shards.path(0)
    path = {
        "copy": copy, "index": beside(copy), "locks": folder / LOCKS, "catalog": folder / CATALOG,
        "folder": copy.parent,
    }[where]  # fmt: skip
    if where in ("copy", "index"):
        copy.parent.mkdir(mode=0o700)
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    PLANTS[plant](path, victim)
    found = b""
    with contextlib.suppress(CacheError):
        found = bytes(shards.shard(0).content)
    assert found in (b"", (packed / "00.tar").read_bytes())
    assert victim.read_bytes() == b"mine"
    assert not victim.with_name("none").exists()


def test_an_index_that_is_planted_is_not_believed(remote: Manifest, folder: Path, packed: Path) -> None:
    read(remote, folder)
    index = beside(Shards(remote, folder).path(0))
    index.chmod(0o666)
    assert read(remote, folder) == (packed / "00.tar").read_bytes()
    index.write_bytes(beside(packed / "01.tar").read_bytes())  # of another shard
    assert read(remote, folder) == (packed / "00.tar").read_bytes()


def test_files_of_others_are_neither_counted_nor_touched(remote: Manifest, folder: Path) -> None:
    mine = folder / "mine"
    mine.write_bytes(bytes(10**6))
    (folder / "0123").mkdir()
    (folder / "0123" / "notes-x.tar").write_bytes(bytes(10**6))
    shards = Shards(remote, folder, limit=600_000)
    for number in range(4):
        shards.shard(number)
        shards.source.release()
    assert mine.exists()
    assert (folder / "0123" / "notes-x.tar").exists()


def test_a_folder_that_cannot_be_made_is_an_error(remote: Manifest, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "cache", Path("/proc/cache")):
        with pytest.raises(CacheError, match="choose another cache_dir"):
            read(remote, path)
