"""One verified local copy of each remote shard per node. Shards that are local already are read where they lie.

A shard is fetched under a lock into a temporary file, its size and digest are checked, and only then does it get its
name: a file that bears a shard's name is whole. What is fetched stays; the cache has no limit yet.
"""

from __future__ import annotations

import hashlib
import mmap
import tempfile
from pathlib import Path

from filelock import FileLock

from wdsdist import shardindex, storage
from wdsdist.errors import ShardDamagedError
from wdsdist.manifest import Manifest
from wdsdist.node import user_cache_dir


def local_shard(manifest: Manifest, number: int, cache_dir: Path | None = None) -> Path:
    """Return the local path of a shard, after fetching it where it is remote and not cached yet.

    Args:
        manifest: the data set.
        number: which of its shards.
        cache_dir: where fetched shards are kept; by default ``shards`` in the user's cache folder.

    Raises `ShardNotFoundError` where the shard does not exist, `StorageError` where it cannot be had, and
    `ShardDamagedError` where it is not what the manifest promises.
    """
    location = manifest.location(number)
    if not storage.is_remote(location):
        return Path(location.removeprefix("file://"))
    folder, name = storage.split(location)
    # Two stores may hold different shards under one name.
    place = (cache_dir or user_cache_dir() / "shards") / hashlib.sha256(folder.encode()).hexdigest()[:24]
    path = place / name
    if not path.exists():
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(place / f".{name}.lock"):
            if not path.exists():  # another process may have fetched it meanwhile
                _fetch(manifest, number, location, path)
    return path


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
        if shard.sha256 and _sha256(temporary) != shard.sha256:
            raise ShardDamagedError(
                f"{storage.shown(location)} does not have the digest that its index.json gives: upload it again"
            )
        if storage.exists(location + shardindex.SUFFIX, options):
            index = Path(folder) / (path.name + shardindex.SUFFIX)
            storage.fetch(location + shardindex.SUFFIX, index, options)
            index.replace(path.with_name(index.name))
        temporary.replace(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return hashlib.sha256(content).hexdigest()
