"""Cache counters: how often shards were found in the cache, fetched, and asked for again."""

from __future__ import annotations

from typing import NamedTuple


class Counters(NamedTuple):
    """What a process has had from the cache since it began; a tuple, as it is a row of shared memory as well.

    >>> Counters(cache_hits=3, shards_fetched=1) - Counters(cache_hits=1)
    Counters(cache_hits=2, shards_fetched=1, bytes_fetched=0, retries=0)
    """

    cache_hits: int = 0
    """Times that a remote shard was opened which was in the cache by then, fetched ahead or long before."""
    shards_fetched: int = 0
    """Times that one was fetched, ahead or when it was needed."""
    bytes_fetched: int = 0
    retries: int = 0
    """Requests to the store that had failed and were made again."""

    def __sub__(self, before: Counters) -> Counters:
        return Counters(*[now - then for now, then in zip(self, before, strict=True)])
