"""Fetch the shards that training needs first into the cache, before it runs: `warm`."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable

import numpy as np

from wdsdist.cache.folders import copy_key
from wdsdist.cache.parts import Members
from wdsdist.cache.priorities import Need
from wdsdist.cache.shard_cache import FetchAhead, ShardCache
from wdsdist.sampling.shard_schedule import Use
from wdsdist.sampling.working_set import copy_sizes
from wdsdist.shards.manifest import Manifest

_AT_ONCE = 4
"""Shards that are fetched at once; each takes several connections."""


def first_shards(manifest: Manifest, uses: Iterable[Use], room: int) -> list[int]:
    """Return the first shards of a schedule that are read through the cache, as many as fit into ``room`` bytes."""
    sizes = copy_sizes(manifest.counts, np.where(manifest.is_copied, manifest.needed_sizes, 0))
    chosen: dict[int, None] = {}
    for use in uses:
        if manifest.is_copied[use.shard] and use.shard not in chosen:
            room -= int(sizes[use.shard])
            if room < 0 and chosen:
                break
            chosen[use.shard] = None
    return list(chosen)


def warm(
    cache: ShardCache,
    manifest: Manifest,
    shards: list[int],
    progress: Callable[[int, int], None] | None = None,
    *,
    epoch: Callable[[int], Members | None] = lambda shard: None,
) -> None:
    """Fetch shards into a cache, in this order, and keep them from eviction until all are there.

    Args:
        cache: where to.
        manifest: the data set.
        shards: numbers of its shards.
        progress: called with the number of shards and their bytes after each.
        epoch: returns what an epoch reads of a shard, as `Prefetch` takes it: little of it is fetched in parts.

    Raises what `ShardCache.pin` raises.
    """
    cache.expect([Need(copy_key(manifest, shard), place) for place, shard in enumerate(shards)])
    done = taken = 0
    try:
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as executor:
            futures = [executor.submit(_fetch, cache, manifest, shard, epoch(shard)) for shard in shards]
            try:
                for future in concurrent.futures.as_completed(futures):
                    done, taken = done + 1, taken + future.result()
                    if progress is not None:
                        progress(done, taken)
            finally:
                executor.shutdown(wait=False, cancel_futures=True)
    finally:
        cache.expect([])


def _fetch(cache: ShardCache, manifest: Manifest, shard: int, epoch: Members | None) -> int:
    """Fetch a shard, or wait until another process has; return the bytes of it that an epoch reads."""
    if cache.fetch_ahead(manifest, shard, epoch) is not FetchAhead.THERE:
        cache.pin(manifest, shard).close()  # which waits, or raises why it cannot be fetched
    return max(0, int(manifest.needed_sizes[shard]))
