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
]


def cached_path(manifest: Manifest, number: int, cache_dir: Path | None = None) -> Path:
    """Return the path of the cached copy of a remote shard, which need not exist."""
    return ShardCache(cache_dir).path(manifest, number)


@contextlib.contextmanager
def kept(copy: Path) -> Iterator[None]:
    """Protect a cached copy from eviction within a block; without a copy, do nothing."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(FileNotFoundError, PlantedError):
            stack.enter_context(LockableFile(copy)).lock(alone=False)
        yield


def has_part(copy: Path) -> bool:
    """Return whether there is a sparse copy of a shard, by the path that its whole copy would have."""
    return CopyPaths(copy.parent, copy.name).sparse.exists()
