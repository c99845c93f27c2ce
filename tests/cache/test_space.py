"""The space of a cache folder: what is installed or discarded while others change the folder."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import wdsdist
from tests.support.memory_store import MemoryStore
from tests.support.tars import plain_tar
from wdsdist.cache import ShardCache
from wdsdist.cache.folders import copy_paths
from wdsdist.cache.locks import LockableFile
from wdsdist.cache.space import CacheSpace
from wdsdist.cache.usage import STAMP_BYTES
from wdsdist.shards.manifest import Manifest
from wdsdist.storage import Deadline


def test_an_index_that_outgrows_its_reservation_is_not_kept(tmp_path: Path) -> None:
    """That of a shard without one is made here, and longer than expected where members are small and keys are long."""
    tar, key = plain_tar([(f"{number:04}{'k' * 90}.cls", b"1") for number in range(2000)]), "0000" + "k" * 90
    source = tmp_path / "source"
    source.mkdir()
    (source / "00.tar").write_bytes(tar)
    wdsdist.index(source)
    index = (source / "00.tar.wdsindex").stat().st_size
    reserved = len(tar) + len(tar) // 16 + (1 << 16) + STAMP_BYTES
    assert len(tar) + index + STAMP_BYTES > reserved
    with MemoryStore({name: (source / name).read_bytes() for name in ("00.tar", "index.json")}) as store:
        cache = ShardCache(tmp_path / "cache", limit=reserved)
        for _ in range(2):
            with cache.pin(wdsdist.open(store.url), 0) as pinned:
                assert pinned.index.key(0) == key
                files = [path for path in pinned.path.parent.iterdir() if path.name.startswith("00.tar")]
                assert sum(path.stat().st_size for path in files) <= reserved
        assert store.paths("read").count("00.tar") == 1


def test_a_copy_that_has_taken_the_place_of_a_discarded_one_stays(remote: Manifest, tmp_path: Path) -> None:
    """To lock a file alone releases its lock first: others may evict and fetch the shard in that moment."""
    root = tmp_path / "cache"
    ShardCache(root).pin(remote, 0).close()
    paths = copy_paths(root, remote, 0)
    content = paths.copy.read_bytes()
    with closing(LockableFile(paths.copy)) as file:
        assert file.lock(alone=True)
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").replace(paths.copy)
        CacheSpace(root, None).discard(paths, file, Deadline(60))
    assert paths.copy.read_bytes() == content
    assert paths.stamp.exists()
