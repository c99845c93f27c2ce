"""Copies that are made whole: of compressed shards, which are unpacked, and of shards without an index."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from wdsdist import storage
from wdsdist._util import warn_once
from wdsdist._util.files import sha256
from wdsdist.cache import chunk_file
from wdsdist.cache.locks import LockableFile
from wdsdist.errors import ShardDamagedError, StorageError
from wdsdist.shards import index as shard_index
from wdsdist.shards import scan_local
from wdsdist.shards.index import ShardIndex, Stored
from wdsdist.storage import compression

if TYPE_CHECKING:
    from wdsdist.cache.chunk_cache import ChunkCache, OpenCopy
    from wdsdist.cache.copied_shard import CopiedShard


def create(
    cache: ChunkCache, shard: CopiedShard, content: bytes | None, index: ShardIndex | None, deadline: storage.Deadline
) -> OpenCopy | None:
    """Create the whole copy of a shard; ``None`` if it was evicted at once.

    Args:
        cache: where to.
        shard: compressed, or without an index.
        content: the bytes of its index; ``None`` if it has none, so that the tar is scanned.
        index: the same, loaded.
        deadline: of the download.

    Raises what `ChunkCache.open` raises.
    """
    _ = shard.version  # raises if a local shard is not there
    stored = shard.stored_size(deadline)
    is_packed = shard.listed.is_compressed
    file = cache.new_file(shard, stored if shard.is_remote or not is_packed else 0)
    try:
        if is_packed:
            warn_once.warn(f"some shards are compressed: each is decompressed once on this node, into {cache.root}")
            with _packed(cache, shard, deadline) as packed:
                if packed.stat().st_size != stored:
                    raise ShardDamagedError(
                        f"{shard.shown} has {packed.stat().st_size:,} bytes but index.json says {stored:,}: fetch or "
                        f"pack it again"
                    )
                size = index.size if index is not None else shard.size
                if size < 0 and cache.limit is not None:
                    size = compression.unpacked_size(packed, shard.shown)
                file = _with_room(cache, shard, file, stored + _room(content, max(0, size)))
                compression.unpack(packed, _path(file), size=size, label=shard.shown)
                packed_file = scan_local.stored(packed) if index is None else index.file
        else:
            file = _with_room(cache, shard, file, _room(content, stored))
            if shard.is_remote:
                _fetch(cache, shard, _path(file), deadline)
            else:
                shutil.copyfile(storage.local_path(shard.location), _path(file))
        if shard.current_version() != shard.version:
            raise ShardDamagedError(f"{shard.shown} has changed while it was read: try again once it is at rest")
        if index is None:
            if not is_packed and shard.listed.sha256 not in ("", sha256(_path(file))):
                raise ShardDamagedError(f"{shard.shown} has another digest than index.json gives: upload it again")
            index = scan_local.scan_shard(_path(file), label=shard.shown, key_rule=shard.key_rule)
            if is_packed:
                index = dataclasses.replace(index, stored=Stored(packed_file.size, packed_file.sha256))
            index = shard.checked(index)
            content = shard_index.dumps(index)
        content = content or b""
        chunk_file.initialise(
            file, index.size, source=shard.source, version=shard.version, index=len(content), is_whole=True
        )
        if not file.is_in_memory:
            room = chunk_file.room_of(index.size, len(content))
            cache.catalog.reserve(shard.key, room, most=room, source=shard.source)
    except BaseException:
        cache.give_up(shard, file)
        raise
    return cache.finish(shard, file, index, content)


def _with_room(cache: ChunkCache, shard: CopiedShard, file: LockableFile, room: int) -> LockableFile:
    """Reserve room in the cache for a new copy; without room, return a file in memory instead."""
    if file.is_in_memory or cache.catalog.reserve(shard.key, room, most=room):
        return file
    return cache.give_up(shard, file)


def _room(content: bytes | None, size: int) -> int:
    """Return the room of a copy; for an index that has to be made it is ample, unless members are very small."""
    return chunk_file.room_of(size, len(content) if content is not None else size // 16 + (1 << 16))


def _path(file: LockableFile) -> Path:
    return Path(f"/proc/self/fd/{file.fileno()}")


@contextlib.contextmanager
def _packed(cache: ChunkCache, shard: CopiedShard, deadline: storage.Deadline) -> Iterator[Path]:
    """Yield the path of a compressed shard; a remote one is fetched into a file without a name."""
    if not shard.is_remote:
        yield storage.local_path(shard.location)
        return
    import tempfile

    with tempfile.TemporaryFile(dir=cache.root) as packed:
        path = Path(f"/proc/self/fd/{packed.fileno()}")
        _fetch(cache, shard, path, deadline)
        yield path


def _fetch(cache: ChunkCache, shard: CopiedShard, path: Path, deadline: storage.Deadline) -> None:
    """Fetch all bytes of a shard into a file."""
    size = shard.listed.size if shard.listed.size >= 0 else None
    try:
        done = storage.fetch(shard.location, path, shard.options, size=size, deadline=deadline)
    except StorageError as error:
        if error.kind == "length":
            raise ShardDamagedError(f"{error}: upload it again") from error
        raise
    cache.count(bytes_fetched=done.bytes, retries=done.retries)
