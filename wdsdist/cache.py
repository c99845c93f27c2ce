"""One verified local copy of each remote shard per node. Shards that are local already are read where they lie.

A shard is fetched under a lock into a temporary file, its size and digest are checked, and only then does it get its
name: a file that bears a shard's name is whole. What is fetched stays; the cache has no limit yet.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from wdsdist import shardindex, storage, tarindex
from wdsdist.errors import IndexFormatError, ShardDamagedError
from wdsdist.manifest import Manifest, Shard
from wdsdist.node import user_cache_dir


@dataclass(slots=True)
class CacheCounts:
    """What a process has had from the cache."""

    hits: int = 0
    fetches: int = 0
    bytes_fetched: int = 0
    retries: int = 0


def local_shard(
    manifest: Manifest, number: int, cache_dir: Path | None = None, *, counts: CacheCounts | None = None
) -> Path:
    """Return the local path of a shard, after fetching it where it is remote and not cached yet.

    Args:
        manifest: the data set.
        number: which of its shards.
        cache_dir: where fetched shards are kept; by default ``shards`` in the user's cache folder.
        counts: is told of the hit or of the fetch.

    Raises `ShardNotFoundError` where the shard does not exist, `StorageError` where it cannot be had, and
    `ShardDamagedError` where it is not what the manifest promises.
    """
    location = manifest.location(number)
    if not storage.is_remote(location):
        return storage.local_path(location)
    path = cached_path(manifest, number, cache_dir)
    counts = counts or CacheCounts()
    if not _is_current(path, manifest.shard(number)):
        with _alone(path):
            if not _is_current(path, manifest.shard(number)):  # another process may have fetched it meanwhile
                _fetch(manifest, number, location, path)
                counts.fetches += 1
                counts.bytes_fetched += path.stat().st_size
                return path
    counts.hits += 1
    return path


def cached_path(manifest: Manifest, number: int, cache_dir: Path | None = None) -> Path:
    """Return where the local copy of a remote shard is, or would be."""
    folder, name = storage.split(manifest.location(number))
    # Two stores may hold different shards under one name.
    return (cache_dir or user_cache_dir() / "shards") / hashlib.sha256(folder.encode()).hexdigest()[:24] / name


def refetch(manifest: Manifest, number: int, cache_dir: Path | None = None) -> Path:
    """Fetch a remote shard even where there is a copy, which it replaces once it has proved to be whole.

    Raises what `local_shard` raises; the copy stays as it is then.
    """
    path = cached_path(manifest, number, cache_dir)
    with _alone(path):
        _fetch(manifest, number, manifest.location(number), path)
    return path


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from fetching the same shard."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(path.with_name(f".{path.name}.lock")):
        yield


def _is_current(path: Path, listed: Shard) -> bool:
    """Say whether a cached copy is of the shard that the manifest lists, not of one that was uploaded before it."""
    try:
        if listed.size >= 0 and path.stat().st_size != listed.size:
            return False
        return not listed.sha256 or tarindex.shard_index(path).sha256 == listed.sha256
    except (FileNotFoundError, ShardDamagedError, IndexFormatError):
        return False


def _fetch(manifest: Manifest, number: int, location: str, path: Path) -> None:
    options = manifest.storage_options
    shard = manifest.shard(number)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=path.parent) as folder:
        temporary = Path(folder) / path.name
        storage.fetch(location, temporary, options)
        size = temporary.stat().st_size
        if shard.size >= 0 and size != shard.size:
            raise ShardDamagedError(
                f"{storage.shown(location)} has {size:,} bytes but its index.json says {shard.size:,}: upload it again"
            )
        if shard.sha256 and storage.sha256(temporary) != shard.sha256:
            raise ShardDamagedError(
                f"{storage.shown(location)} does not have the digest that its index.json gives: upload it again"
            )
        index, kept = shardindex.beside(temporary), shardindex.beside(path)
        # Without its index an old copy counts for nothing, so no process can pair it with the new index.
        kept.unlink(missing_ok=True)
        if storage.exists(storage.beside(location, shardindex.SUFFIX), options):
            storage.fetch(storage.beside(location, shardindex.SUFFIX), index, options)
        temporary.replace(path)
        if index.exists():
            index.replace(kept)
