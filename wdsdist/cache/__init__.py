"""One verified local copy of each remote shard per node, bounded, shared by all its processes.

Nothing but flock and rename keeps it right: whatever process is killed, its locks are free and what it left is swept.
Shards that are local already are read where they lie.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from wdsdist.cache.locks import LockableFile, PlantedError
from wdsdist.cache.paths import copy_key
from wdsdist.cache.pins import Pinned
from wdsdist.cache.priorities import Need
from wdsdist.cache.shard_cache import TIMEOUT, FetchAhead, ShardCache
from wdsdist.shards.manifest import Manifest

__all__ = [
    "TIMEOUT",
    "FetchAhead",
    "Need",
    "Pinned",
    "ShardCache",
    "copy_key",
    "cached_path",
    "kept",
    "local_shard",
    "refetch",
]


def local_shard(manifest: Manifest, number: int, cache_dir: Path | None = None) -> Path:
    """Return the local path of a shard, after fetching it where it is remote and not cached yet.

    It is not pinned: a process that shares the folder and has a limit may evict it. Raises what `ShardCache.pin` does.
    """
    with ShardCache(cache_dir).pin(manifest, number) as pinned:
        return pinned.path


def cached_path(manifest: Manifest, number: int, cache_dir: Path | None = None) -> Path:
    """Return where the local copy of a remote shard is, or would be."""
    return ShardCache(cache_dir).path(manifest, number)


@contextlib.contextmanager
def kept(copy: Path) -> Iterator[None]:
    """Keep a copy from being evicted, whatever it holds; where there is none, do nothing."""
    try:
        file = LockableFile(copy)
    except (FileNotFoundError, PlantedError):
        yield
        return
    with contextlib.closing(file):
        file.lock(alone=False)
        yield


def refetch(manifest: Manifest, number: int, cache_dir: Path | None = None) -> Path:
    """Fetch a remote shard even where there is a copy, which it replaces once it has proved to be whole.

    Raises what `ShardCache.pin` raises; the copy stays as it is then.
    """
    return ShardCache(cache_dir).refetch(manifest, number)
