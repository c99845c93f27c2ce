"""Cache counters: hits, fetched shards and bytes, and retries."""

from __future__ import annotations

from typing import NamedTuple


class Counters(NamedTuple):
    """Cache counters of one process since it began; a tuple, because it is also a row of shared memory.

    >>> Counters(cache_hits=3, shards_fetched=1) - Counters(cache_hits=1)
    Counters(cache_hits=2, shards_fetched=1, bytes_fetched=0, retries=0)
    """

    cache_hits: int = 0
    """Opens of a remote shard that was in the cache, prefetched or from an earlier run."""
    shards_fetched: int = 0
    """Remote shards fetched, ahead of time or when needed."""
    bytes_fetched: int = 0
    """Of these shards, and of parts of others."""
    retries: int = 0
    """Requests to the store that were retried after a failure."""

    def __sub__(self, before: Counters) -> Counters:
        return Counters(*[now - then for now, then in zip(self, before, strict=True)])
