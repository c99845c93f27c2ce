"""`open_source`: the source of a data set's shards, local or cached; the cache is loaded only if it is needed."""

from __future__ import annotations

from wdsdist.shards.manifest import Manifest
from wdsdist.shards.source import CacheOptions, LocalShards, ShardSource


def open_source(manifest: Manifest, cache: CacheOptions | None = None) -> ShardSource:
    """Return the source of a data set's shards: local files that are read in place, or copies in a cache."""
    if not manifest.is_copied.any():
        return LocalShards(manifest)
    from wdsdist.cache.cached_shards import CachedShards
    from wdsdist.cache.chunk_cache import ChunkCache

    return CachedShards(manifest, ChunkCache(cache or CacheOptions()))
