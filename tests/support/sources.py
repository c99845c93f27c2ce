"""The shards of a data set as loaders open them, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wdsdist.cache.cached_shards import CachedShards
from wdsdist.cache.chunk_cache import ChunkCache
from wdsdist.cache.copied_shard import CopiedShard
from wdsdist.samples.member_reader import open_source
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.source import CacheOptions, OpenShard, ShardSource


class Shards:
    """The shards of a data set, whole, through a cache if they are copied."""

    def __init__(
        self, manifest: Manifest, cache: Path | None = None, *, limit: int | None = None, timeout: float = 30.0
    ) -> None:
        self.manifest = manifest
        self.options = CacheOptions(cache, limit, timeout)
        self.source: ShardSource = open_source(manifest, self.options)

    def shard(self, number: int) -> OpenShard:
        """Return a shard with all its members readable."""
        return self.source.open({number: None})[number]

    def samples(self) -> Iterator[tuple[str, dict[str, bytes]]]:
        """Yield the key and the members of every sample, by their extensions as fields name them."""
        for number in range(len(self.manifest.counts)):
            shard = self.shard(number)
            for sample in range(shard.index.num_samples):
                members = enumerate(shard.layout(sample))
                yield shard.key(sample), {name: bytes(shard.member(sample, place)) for place, name in members}

    @property
    def cache(self) -> ChunkCache:
        assert isinstance(self.source, CachedShards)
        return self.source.cache

    def path(self, number: int) -> Path:
        """Return the path of the copy of a shard."""
        return self.cache.path(CopiedShard(self.manifest, number))

    def key(self, number: int) -> str:
        return CopiedShard(self.manifest, number).key
