"""What others put into a cache folder, or into its place: it is not believed, not followed and not written through."""

from __future__ import annotations

import contextlib
import dataclasses
import grp
import json
import os
import pwd
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wdsdist
from tests.support import folders
from tests.support.damage import flip
from tests.support.memory_store import MemoryStore
from wdsdist._util.files import TEMPORARY
from wdsdist._util.ownership import why_not_own
from wdsdist.cache import ShardCache, cached_path, copies
from wdsdist.cache.folders import SOURCE, make_root
from wdsdist.cache.priorities import Need, Reader, all_needs
from wdsdist.errors import CacheError
from wdsdist.samples.shard_reader import ShardReader
from wdsdist.shards import index as shardindex
from wdsdist.shards import scan_local as tarindex
from wdsdist.shards.manifest import Manifest

STRANGER = 12345
"""A user and a group that do not exist."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    return folder


def pin(remote: Manifest, folder: Path) -> None:
    ShardCache(folder, timeout=60).pin(remote, 0).close()


class TestAFolder:
    @pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
    def test_that_others_can_write_is_refused_with_what_to_do(self, remote: Manifest, folder: Path, mode: int) -> None:
        folder.chmod(mode)
        with pytest.raises(CacheError, match=rf"others can write it \(mode {mode:04o}\).*`chmod go-w {folder}`"):
            pin(remote, folder)
        assert list(folder.iterdir()) == []
        folder.chmod(mode & ~0o022)
        pin(remote, folder)

    def test_that_others_can_write_is_refused_with_what_is_in_it(self, remote: Manifest, folder: Path) -> None:
        pin(remote, folder)
        folder.chmod(0o777)
        with pytest.raises(CacheError, match="others can write it"):
            pin(remote, folder)

    @as_root
    def test_of_another_user_is_refused(self, remote: Manifest, folder: Path) -> None:
        os.chown(folder, STRANGER, -1)
        with pytest.raises(CacheError, match=r"belongs to user 12345, not to user 0.*choose a cache_dir that belongs"):
            pin(remote, folder)

    def test_that_a_link_leads_to_is_looked_at(self, remote: Manifest, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(folder)
        pin(remote, tmp_path / "link")
        folder.chmod(0o777)
        with pytest.raises(CacheError, match="others can write it"):
            pin(remote, tmp_path / "link")

    @as_root
    def test_that_a_group_with_others_in_it_can_write_is_refused(self, remote: Manifest, folder: Path) -> None:
        folder.chmod(0o770)
        pin(remote, folder)  # root's group has no other member
        os.chown(folder, -1, STRANGER)
        folder.chmod(0o770)
        with pytest.raises(CacheError, match="others can write it"):
            pin(remote, folder)

    def test_that_anybody_can_put_another_one_in_place_of_is_refused(self, remote: Manifest, tmp_path: Path) -> None:
        parent = tmp_path / "open"
        parent.mkdir()
        parent.chmod(0o777)
        (tmp_path / "link").symlink_to(parent)
        for path in (parent / "cache", parent / "deep" / "cache", tmp_path / "link" / "cache"):
            with pytest.raises(CacheError, match=r"has mode 0777.*`chmod \+t"):
                pin(remote, path)
        parent.chmod(0o1777)  # as /tmp is
        pin(remote, parent / "cache")

    @as_root
    def test_in_one_that_a_group_shares_is_this_users_own(self, remote: Manifest, tmp_path: Path) -> None:
        project = tmp_path / "project"
        project.mkdir()
        os.chown(project, STRANGER, STRANGER)
        project.chmod(0o2770)
        pin(remote, project / "cache")

    def test_is_taken_as_it_is_where_the_user_says_so(
        self, remote: Manifest, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder.chmod(0o777)
        monkeypatch.setenv("WDSDIST_TRUST_CACHE_DIR", "1")
        pin(remote, folder)

    def test_is_closed_whatever_the_umask(self, remote: Manifest, tmp_path: Path) -> None:
        mask = os.umask(0)
        try:
            pin(remote, tmp_path / "a" / "b" / "cache")
        finally:
            os.umask(mask)
        made = [path for path in (tmp_path / "a").rglob("*") if path.is_dir() or path.suffix]
        assert len(made) > 5
        assert [path for path in made if why_not_own(path.stat())] == []

    def test_is_taken_below_a_user_cache_that_was_made_whatever_the_umask(
        self, store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WDSDIST_CACHE_DIR", str(tmp_path / "home" / "cache"))
        mask = os.umask(0)
        try:
            data = wdsdist.open(f"{store.url}/train")  # whose index.json is kept there
            ShardCache().pin(data, 0).close()
        finally:
            os.umask(mask)
        assert (tmp_path / "home" / "cache" / "shards").is_dir()


def test_a_group_of_one_is_its_only_member(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    found = tmp_path.stat()
    user = pwd.struct_passwd(("alice", "x", os.geteuid(), found.st_gid, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
    for name, members, is_own in [
        ("alice", [], True), ("alice", ["alice"], True), ("alice", ["bob"], False), ("users", [], False)
    ]:  # fmt: skip
        monkeypatch.setattr(grp, "getgrgid", lambda gid, name=name, members=members: _group(name, gid, members))
        why_not_own.__globals__["_has_only"].cache_clear()
        assert (why_not_own(found) == "") is is_own
    why_not_own.__globals__["_has_only"].cache_clear()


def _group(name: str, gid: int, members: list[str]) -> grp.struct_group:
    return grp.struct_group((name, "x", gid, members))


def give_away(path: Path) -> None:
    os.chown(path, STRANGER, -1)


def leave_open(path: Path) -> None:
    path.chmod(0o666)


def replace_by_link(path: Path) -> None:
    elsewhere = path.parent.parent.parent / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


WAYS = [leave_open, replace_by_link, pytest.param(give_away, marks=as_root)]


def forge(copy: Path, remote: Manifest) -> None:
    """Change a byte of a sample, and write the stamp that says that it was verified."""
    flip(copy, 512)
    with copy.open("rb") as stream:
        copies.stamp(stream.fileno(), copy.with_name(f"{copy.name}.wdsstamp"), remote.shard(0).sha256, "")


def forged(index: Path) -> bytes:
    """Return an index that gives a sample another key."""
    right = shardindex.load(index)
    keys = np.asarray(right.key_bytes).tobytes().replace(b"shard00-0001", b"shard66-0001")
    return shardindex.dumps(dataclasses.replace(right, key_bytes=np.frombuffer(keys, np.uint8)))


class TestWhatIsPlanted:
    """Each forgery is one that passes where it is this user's own, as the first test shows."""

    def test_looks_right(self, remote: Manifest, folder: Path, packed: Path) -> None:
        pin(remote, folder)
        forge(cached_path(remote, 0, folder), remote)
        with ShardCache(folder).pin(remote, 0) as pinned:
            assert pinned.path.read_bytes() != (packed / "00.tar").read_bytes()

    @pytest.mark.parametrize("way", WAYS)
    def test_as_a_stamp_is_not_believed(
        self, remote: Manifest, folder: Path, packed: Path, way: Callable[[Path], None]
    ) -> None:
        pin(remote, folder)
        copy = cached_path(remote, 0, folder)
        forge(copy, remote)
        way(copy.with_name("00.tar.wdsstamp"))
        with ShardCache(folder).pin(remote, 0) as pinned:
            assert pinned.path.read_bytes() == (packed / "00.tar").read_bytes()

    @pytest.mark.parametrize("way", WAYS)
    def test_as_a_copy_is_not_believed(
        self, remote: Manifest, folder: Path, packed: Path, way: Callable[[Path], None]
    ) -> None:
        pin(remote, folder)
        copy = cached_path(remote, 0, folder)
        flip(copy, 512)
        way(copy)
        with copy.open("rb") as stream:
            stamp = copies.Stamp.of(os.fstat(stream.fileno()), remote.shard(0).sha256, "")
        stamp.write(copy.with_name("00.tar.wdsstamp"))
        with ShardCache(folder).pin(remote, 0) as pinned:
            assert pinned.path.read_bytes() == (packed / "00.tar").read_bytes()
            assert not copy.is_symlink()
            assert why_not_own(copy.stat()) == ""

    @pytest.mark.parametrize("way", WAYS)
    def test_as_an_index_is_not_believed(
        self, remote: Manifest, folder: Path, packed: Path, way: Callable[[Path], None]
    ) -> None:
        pin(remote, folder)
        index = cached_path(remote, 0, folder).with_name("00.tar.wdsindex")
        right = index.read_bytes()
        index.write_bytes(forged(index))
        assert shardindex.load(index).key(1) == "shard66-0001"
        way(index)
        with ShardCache(folder).pin(remote, 0) as pinned:
            assert pinned.index.key(1) == "shard00-0001"
        assert index.read_bytes() == right
        assert not index.is_symlink()
        assert why_not_own(index.stat()) == ""

    def test_as_a_folder_of_a_store_is_not_followed(self, remote: Manifest, folder: Path, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        part = elsewhere / "precious.wdspart"
        part.write_bytes(b"precious")
        cached_path(remote, 0, folder).parent.symlink_to(elsewhere)
        with pytest.raises(CacheError, match="must be a folder of the cache but is a link or a file: remove it"):
            pin(remote, folder)
        assert [path.name for path in elsewhere.iterdir()] == ["precious.wdspart"]

    def test_as_the_folder_of_readers_is_not_followed(self, remote: Manifest, folder: Path, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "0123456789abcdef").write_bytes(b"precious")
        (folder / "readers").symlink_to(elsewhere)
        with pytest.raises(CacheError, match="readers must be a folder of the cache but is a link"):
            pin(remote, folder)
        assert (elsewhere / "0123456789abcdef").read_bytes() == b"precious"

    def test_among_the_readers_is_not_followed(self, tmp_path: Path, folder: Path) -> None:
        reader = Reader(folder)
        reader.join()
        reader.expect([Need("a", 0)])
        (tmp_path / "list").write_text(json.dumps({"job": "", "upcoming": [["b", 0]], "claims": []}))
        (known,) = folder.glob("*.json")
        known.unlink()
        known.symlink_to(tmp_path / "list")
        (folder / "0123456789abcdef").symlink_to(tmp_path / "list")
        assert all_needs(folder).ranks == {}
        assert not (folder / "0123456789abcdef").is_symlink()
        (folder / f"{known.stem}.new").symlink_to(tmp_path / "list")
        reader.expect([Need("c", 0)])
        assert set(all_needs(folder).ranks) == {"c"}
        assert "b" in (tmp_path / "list").read_text()

    @pytest.mark.parametrize("name", ["00.tar", "00.tar.wdsstamp", "00.tar.wdsindex"])
    @pytest.mark.timeout(60)
    def test_as_a_named_pipe_keeps_nobody_waiting(self, remote: Manifest, folder: Path, name: str) -> None:
        pin(remote, folder)
        path = cached_path(remote, 0, folder).with_name(name)
        path.unlink()
        os.mkfifo(path)
        with ShardCache(folder, timeout=30).pin(remote, 0) as pinned:
            assert pinned.index.key(0) == "shard00-0000"

    def test_as_a_part_is_swept(self, remote: Manifest, folder: Path, tmp_path: Path) -> None:
        pin(remote, folder)
        (tmp_path / "precious").write_bytes(b"precious")
        part = cached_path(remote, 1, folder).with_name("01.tar.wdspart")
        part.symlink_to(tmp_path / "precious")
        ShardCache(folder).pin(remote, 1).close()
        assert not part.is_symlink()
        assert (tmp_path / "precious").read_bytes() == b"precious"

    def test_as_a_copy_while_it_is_evicted_loses_nothing(
        self, remote: Manifest, folder: Path, tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The name leads elsewhere after the file was opened and looked at."""
        pin(remote, folder)
        copy, precious = cached_path(remote, 0, folder), tmp_path / "precious"
        precious.write_bytes(b"precious")
        truncate = os.truncate

        def planted(path: str | Path, size: int) -> None:
            copy.unlink()
            copy.symlink_to(precious)
            truncate(path, size)

        monkeypatch.setattr(os, "truncate", planted)
        ShardCache(folder, limit=room, timeout=60).pin(remote, 1).close()
        assert precious.read_bytes() == b"precious"


def test_a_cache_of_an_earlier_version_is_used_and_closed(
    store: MemoryStore, remote: Manifest, folder: Path, no_hash: Callable[[], None]
) -> None:
    """Its files had the mode that the umask left, which let a group write them in a folder that it could not enter."""
    pin(remote, folder)
    (folder / "readers").chmod(0o777)
    for note in folder.rglob(SOURCE):  # it made none
        note.unlink()
    mine = [path for path in folder.rglob("*") if path.is_file()]
    for path in mine:
        path.chmod(0o666)
    store.requests.clear()
    for hashed in (True, False):
        if not hashed:
            no_hash()
        assert ShardReader(remote, ShardCache(folder)).shard(0).key(0) == "shard00-0000"
    assert store.requests == []
    assert {path.name for path in folder.rglob("*") if why_not_own(path.stat())} == {".lock", ".waiting"}


@as_root
def test_users_do_not_share_a_cache(remote: Manifest, folder: Path) -> None:
    pin(remote, folder)
    folder.chmod(0o755)
    folder.parent.chmod(0o755)

    def read() -> None:
        os.setuid(STRANGER)
        with pytest.raises(CacheError, match="belongs to user 0, not to user 12345"):
            pin(remote, folder)

    with _open_to_all(folder):
        assert folders.status(folders.forked(read)) == 0


@contextlib.contextmanager
def _open_to_all(folder: Path) -> Iterator[None]:
    closed = [parent for parent in folder.parents if not parent.stat().st_mode & 0o001]
    for parent in closed:
        parent.chmod(0o711)
    yield
    for parent in closed:
        parent.chmod(0o700)


@as_root
def test_an_index_that_another_user_left_in_the_users_cache_is_not_believed(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDSDIST_CACHE_DIR", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    (data / "00.tar").write_bytes((packed / "00.tar").read_bytes())
    make = os.open

    def not_there(path: Any, *how: Any, **more: Any) -> int:
        if isinstance(path, Path) and path.parent == data and path.name.startswith(TEMPORARY):
            raise PermissionError
        return make(path, *how, **more)

    monkeypatch.setattr(os, "open", not_there)
    assert tarindex.shard_index(data / "00.tar").key(1) == "shard00-0001"
    (index,) = (tmp_path / "cache" / "indexes").iterdir()
    content = forged(index)
    index.write_bytes(content)
    assert tarindex.shard_index(data / "00.tar").key(1) == "shard66-0001"  # one of one's own is believed
    for way in (give_away, leave_open, replace_by_link):
        index.write_bytes(content)
        way(index)
        assert tarindex.shard_index(data / "00.tar").key(1) == "shard00-0001"
        assert not index.is_symlink()
    make_root(tmp_path / "cache" / "shards")


def test_a_link_that_hides_another_is_seen_through(tmp_path: Path) -> None:
    """The system says what is open, not what its name says."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "first").symlink_to(tmp_path / "second")
    (tmp_path / "second").symlink_to(tmp_path / "open")
    with pytest.raises(CacheError, match="others can write it"):
        make_root(tmp_path / "first")
    assert subprocess.run(["ls", str(tmp_path / "open")], capture_output=True, check=True).stdout == b""
