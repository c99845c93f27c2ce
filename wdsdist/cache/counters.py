"""Cache statistics: hits, downloads, bytes and retries of one process, or of one event."""

from __future__ import annotations

import operator
from typing import NamedTuple


class Counters(NamedTuple):
    """Cache statistics of one process, or of one event: hits, downloads, bytes, retries.

    >>> Counters(cache_hits=3, shards_fetched=1) - Counters(cache_hits=1)
    Counters(cache_hits=2, shards_fetched=1, bytes_fetched=0, retries=0)
    """

    cache_hits: int = 0
    """Opens of a remote shard that was in the cache, or the parts needed of it, prefetched or from an earlier run."""
    shards_fetched: int = 0
    """Remote shards fetched, ahead of time or when needed."""
    bytes_fetched: int = 0
    """Of these shards, and of parts of others."""
    retries: int = 0
    """Requests to the store that were retried after a failure, and fetches of a shard whose bytes were wrong."""

    def __sub__(self, before: Counters) -> Counters:
        return Counters(*[now - then for now, then in zip(self, before, strict=True)])

    def plus(self, more: Counters) -> Counters:
        """Return the sums."""
        return Counters(*map(operator.add, self, more))
