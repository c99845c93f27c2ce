"""Fill a copy with a whole shard at once: one that is compressed, which is unpacked, or one without an index."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from wdsdist import storage
from wdsdist._util import warn_once
from wdsdist._util.files import sha256
from wdsdist.cache import chunk_file
from wdsdist.cache.locks import LockableFile
from wdsdist.errors import ShardDamagedError
from wdsdist.shards import scan_local
from wdsdist.shards.index import ShardIndex
from wdsdist.storage import compression

if TYPE_CHECKING:
    from wdsdist.cache.chunk_cache import ChunkCache
    from wdsdist.cache.copied_shard import CopiedShard


def fill(
    cache: ChunkCache, shard: CopiedShard, file: LockableFile, content: bytes | None, index: ShardIndex | None,
    deadline: storage.Deadline,
) -> ShardIndex:  # fmt: skip
    """Fetch a shard into the file of its new copy, and unpack it; return its index, which a scan makes if it has none.

    Args:
        cache: which has to have room.
        shard: compressed, or without an index.
        file: locked by this process alone.
        content: the bytes of the index; ``None`` if the shard has none.
        index: the same, loaded.
        deadline: of the download.

    Raises what `ChunkCache.open` raises.
    """

    def room(size: int) -> int:  # for an index that has to be made it is ample, unless members are very small
        return chunk_file.room_of(size, len(content) if content is not None else size // 16 + (1 << 16))

    version, stored = shard.version, shard.stored_size(deadline)
    if not shard.listed.is_compressed:
        packed_stored = None
        cache.reserve(shard, file, room(stored))
        _fetch(cache, shard, _path(file), deadline)
    else:
        warn_once.warn(f"some shards are compressed: each is decompressed once on this node, into {cache.root}")
        packed_room = stored if shard.is_remote else 0
        cache.reserve(shard, file, packed_room)
        with _packed(cache, shard, deadline) as packed:
            if packed.stat().st_size != stored:
                raise ShardDamagedError(
                    f"{shard.shown} has {packed.stat().st_size:,} bytes but index.json says {stored:,}: fetch or pack "
                    f"it again"
                )
            size = index.size if index is not None else shard.size
            if size < 0 and cache.limit is not None:
                size = compression.unpacked_size(packed, shard.shown)
            cache.reserve(shard, file, packed_room + room(max(0, size)))
            compression.unpack(packed, _path(file), size=size, label=shard.shown)
            packed_stored = scan_local.stored(packed) if index is None else None
    if shard.current_version() != version:
        raise ShardDamagedError(f"{shard.shown} has changed while it was read: try again once it is at rest")
    if index is None:
        if packed_stored is None and shard.listed.sha256 not in ("", sha256(_path(file))):
            raise ShardDamagedError(f"{shard.shown} has another digest than index.json gives: upload it again")
        index = scan_local.scan_shard(_path(file), label=shard.shown, key_rule=shard.key_rule)
        index = shard.checked(dataclasses.replace(index, stored=packed_stored))
    return index


def _path(file: IO[bytes] | LockableFile) -> Path:
    return Path(f"/proc/self/fd/{file.fileno()}")


@contextlib.contextmanager
def _packed(cache: ChunkCache, shard: CopiedShard, deadline: storage.Deadline) -> Iterator[Path]:
    """Yield the path of a compressed shard; a remote one is fetched into a file without a name."""
    if not shard.is_remote:
        yield storage.local_path(shard.location)
        return
    with tempfile.TemporaryFile(dir=cache.root) as packed:
        _fetch(cache, shard, _path(packed), deadline)
        yield _path(packed)


def _fetch(cache: ChunkCache, shard: CopiedShard, path: Path, deadline: storage.Deadline) -> None:
    """Fetch all bytes of a shard into a file."""
    size = shard.listed.size if shard.listed.size >= 0 else None
    cache.finish(functools.partial(storage.fetch, shard.location, path, shard.options, size=size, deadline=deadline))
