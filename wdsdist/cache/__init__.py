"""The shard cache: one verified local copy of each remote shard per node, bounded, shared by all processes.

Consistency rests on flock and rename alone: where a process is killed, the system frees its locks and other processes
delete its files. Local shards are read in place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from wdsdist.cache.copies import Pinned
from wdsdist.cache.folders import CopyPaths, copy_key
from wdsdist.cache.locks import LockableFile, PlantedError
from wdsdist.cache.parts import Members, PartNeeds, PinnedPart, damaged_members
from wdsdist.cache.priorities import Need
from wdsdist.cache.shard_cache import TIMEOUT, ShardCache
from wdsdist.shards.manifest import Manifest

__all__ = [
    "TIMEOUT",
    "Members",
    "Need",
    "PartNeeds",
    "Pinned",
    "PinnedPart",
    "ShardCache",
    "copy_key",
    "cached_path",
    "damaged_members",
    "has_part",
    "kept",
    "local_shard",
    "refetch",
]


def local_shard(manifest: Manifest, number: int, cache_dir: Path | None = None) -> Path:
    """Return the local path of a shard, fetched into the cache where it is remote.

    It is not pinned: a process that shares the folder and has a limit may evict it. Raises what `ShardCache.pin` does.
    """
    with ShardCache(cache_dir).pin(manifest, number) as pinned:
        return pinned.path


def cached_path(manifest: Manifest, number: int, cache_dir: Path | None = None) -> Path:
    """Return the path of the cached copy of a remote shard, which need not exist."""
    return ShardCache(cache_dir).path(manifest, number)


@contextlib.contextmanager
def kept(copy: Path) -> Iterator[None]:
    """Protect a cached copy from eviction within a block; without a copy, do nothing."""
    try:
        file = LockableFile(copy)
    except (FileNotFoundError, PlantedError):
        yield
        return
    with contextlib.closing(file):
        file.lock(alone=False)
        yield


def has_part(copy: Path) -> bool:
    """Return whether there is a sparse copy of a shard, by the path that its whole copy would have."""
    return CopyPaths(copy.parent, copy.name).sparse.exists()


def refetch(manifest: Manifest, number: int, cache_dir: Path | None = None) -> Path:
    """Fetch a remote shard again, and replace its cached copy once the new one is verified.

    Raises what `ShardCache.pin` raises, and keeps the old copy then.
    """
    with ShardCache(cache_dir).pin(manifest, number, anew=True) as pinned:
        return pinned.path
