"""One verified local copy of each remote shard per node. Shards that are local already are read where they lie.

A shard is fetched under a lock into a temporary file, its size and digest are checked, and only then does it get its
name: a file that bears a shard's name is whole. What is fetched stays; the cache has no limit yet. Of a compressed
shard, local or remote, the copy is the tar that is in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from wdsdist import shardindex, storage, tarindex, unpacking
from wdsdist.errors import IndexFormatError, ShardDamagedError
from wdsdist.manifest import Manifest, Shard
from wdsdist.node import user_cache_dir


def local_shard(manifest: Manifest, number: int, cache_dir: Path | None = None) -> Path:
    """Return the local path of a shard's tar, after fetching or decompressing it where there is no copy of it yet.

    Args:
        manifest: the data set.
        number: which of its shards.
        cache_dir: where fetched shards are kept; by default ``shards`` in the user's cache folder.

    Raises `ShardNotFoundError` where the shard does not exist, `StorageError` where it cannot be had, and
    `ShardDamagedError` where it is not what the manifest promises.
    """
    location = manifest.location(number)
    if not is_copied(manifest, number):
        return storage.local_path(location)
    path = cached_path(manifest, number, cache_dir)
    if not _is_current(path, location, manifest.shard(number)):
        with _alone(path):
            if not _is_current(path, location, manifest.shard(number)):  # another process may have fetched it meanwhile
                _fetch(manifest, number, location, path)
    return path


def is_copied(manifest: Manifest, number: int) -> bool:
    """Say whether a shard is read from a copy in the cache."""
    return storage.is_remote(manifest.location(number)) or manifest.shard(number).is_compressed


def cached_path(manifest: Manifest, number: int, cache_dir: Path | None = None) -> Path:
    """Return where the copy of a remote or compressed shard is, or would be."""
    folder, name = storage.split(manifest.location(number))
    if manifest.shard(number).is_compressed:
        name = unpacking.copy_name(name)
    # Two stores may hold different shards under one name.
    return (cache_dir or user_cache_dir() / "shards") / hashlib.sha256(folder.encode()).hexdigest()[:24] / name


def refetch(manifest: Manifest, number: int, cache_dir: Path | None = None) -> Path:
    """Fetch or decompress a shard even where there is a copy, which it replaces once it has proved to be whole.

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


def _is_current(path: Path, location: str, listed: Shard) -> bool:
    """Say whether a cached copy is of the shard that the manifest lists, not of one that was uploaded before it."""
    if listed.is_compressed:
        return unpacking.is_copy(path, location, listed)
    try:
        if listed.size >= 0 and path.stat().st_size != listed.size:
            return False
        return not listed.sha256 or tarindex.shard_index(path).sha256 == listed.sha256
    except (FileNotFoundError, ShardDamagedError, IndexFormatError):
        return False


def _fetch(manifest: Manifest, number: int, location: str, path: Path) -> None:
    options = manifest.storage_options
    shard = manifest.shard(number)
    if not storage.is_remote(location):
        unpacking.make_copy(storage.local_path(location), path, location, shard, listed_in=manifest.base)
        return
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=path.parent) as folder:
        temporary = Path(folder) / storage.split(location)[1]
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
        if storage.exists(storage.beside(location, shardindex.SUFFIX), options):
            storage.fetch(storage.beside(location, shardindex.SUFFIX), index, options)
        if shard.is_compressed:
            unpacking.make_copy(temporary, path, location, shard, listed_in=manifest.base)
            return
        # Without its index an old copy counts for nothing, so no process can pair it with the new index.
        kept.unlink(missing_ok=True)
        temporary.replace(path)
        if index.exists():
            index.replace(kept)
