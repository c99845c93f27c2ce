"""The working set of an epoch: bytes of shards that ranks need at once, and the shuffle window that fits a cache limit.

At once means the current and the next window of each lane that a rank reads: the one is being read, the other fetched.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import ArgumentError
from wdsdist.sampling.order import OrderSettings, ShardOrder, epoch_order
from wdsdist.sampling.shard_schedule import BLOCK_SAMPLES

if TYPE_CHECKING:
    from wdsdist.distributed import Identity
    from wdsdist.shards.manifest import Manifest

_INDEX_BYTES, _INDEX_BYTES_OF_A_SAMPLE = 4096, 64
"""What the index of a shard takes beside it, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """The ranks that share one cache, and the shards that they read through it."""

    counts: Int64s
    """int64 [shards]: samples in each."""
    sizes: Int64s
    """int64 [shards]: bytes that are read of each; 0 where it is read in place, -1 where unknown."""
    num_replicas: int
    """All ranks."""
    ranks: int
    """Those that share the cache."""


def readers_of(manifest: Manifest, here: Identity) -> Readers:
    """Return the ranks of this node and the bytes of each shard that they read through its cache."""
    return Readers(
        counts=manifest.counts,
        sizes=np.where(manifest.is_copied, manifest.needed_sizes, 0),
        num_replicas=here.world_size,
        ranks=min(here.local_world_size, here.world_size),
    )


def bytes_at_once(readers: Readers, settings: OrderSettings, *, ranks: int, epoch: int = 0) -> int:
    """Return the most bytes of copies that any ``ranks`` of the ranks need at once in an epoch.

    A sound bound rather than the exact figure, for lanes may be in different windows at any time. Other epochs draw
    other shards together, so where shards are uneven they may need a little more or less.

    >>> readers = Readers(counts=np.full(30, 100), sizes=np.full(30, 10**6), num_replicas=1, ranks=1)
    >>> bytes_at_once(readers, OrderSettings(window=100), ranks=1)  # two shards, with their indexes
    2020992
    """
    sizes = copy_sizes(readers.counts, readers.sizes)
    if settings.name == "sampler" and settings.shuffle:
        # Any shard may be needed at any time; but within two blocks, no more of them than samples.
        return int(np.sort(sizes)[-2 * BLOCK_SAMPLES * ranks :].sum())
    order = epoch_order(readers.counts, settings, epoch)
    assert isinstance(order, ShardOrder)
    up_to = np.concatenate(((0,), np.cumsum(sizes[order.shards])))
    lanes = np.array([_bytes_of_lane(order, up_to, lane) for lane in range(order.num_lanes)])
    sets = {order.lanes_of(rank, readers.num_replicas) for rank in range(readers.num_replicas)}
    most = sum(sorted(int(lanes[one].sum()) for one in sets)[-ranks:])
    return min(most, int(sizes.sum()))


def fitting_window(
    needed: Callable[[OrderSettings], int], readers: Readers, settings: OrderSettings, limit: int
) -> int:
    """Return the largest window, up to that of ``settings``, whose needs fit a cache for all its readers.

    ``needed`` returns the bytes that these are, as `bytes_at_once` tells them of one data set.

    Windows are tried from 16 shards' worth down to a quarter of one, less than which needs no fewer shards. Where
    none fits, the smallest is returned.

    Raises `ArgumentError` where nodes have different numbers of ranks: each would find a window of its own, and their
    orders would not be one.
    """
    if readers.num_replicas % readers.ranks:
        raise ArgumentError(
            f"this node has {readers.ranks} of {readers.num_replicas} ranks, so nodes differ, and which shuffle window "
            f"fits cache_limit too: pass the same shuffle_window on all of them"
        )
    filled = max(1, int(np.count_nonzero(readers.counts)))
    shard = -(-int(readers.counts.sum()) // filled)
    smaller = (max(1, int(shard * worth)) for worth in (16, 8, 4, 2, 1, 1 / 2, 1 / 4))
    window = settings.window
    for window in (settings.window, *(window for window in smaller if window < settings.window)):
        if needed(replace(settings, window=window)) <= limit:
            break
    return window


def check_limit(needed: Callable[[int], int], settings: OrderSettings, *, ranks: int, limit: int) -> None:
    """Check that a cache can hold the working set of its readers.

    Args:
        needed: returns the bytes that so many ranks need.
        settings: of the order that they need them for.
        ranks: those that share the cache.
        limit: its bytes.

    Raises `ArgumentError` where that is too little for one rank; warns where it is too little for all of them.
    """
    for some in sorted({1, ranks}):
        if needed(some) <= limit:
            continue
        if settings.name == "sampler":
            what, remedy = "shards all over the data set", 'take order="shard"'
        else:
            what, remedy = (
                f"its current and its next shuffle window of {settings.window:,} samples",
                "lower shuffle_window",
            )
        short = f"cache_limit is {limit:,} bytes, and"
        if some == 1:
            raise ArgumentError(
                f"{short} one rank needs {needed(some):,} at once, for {what}: raise the limit, or {remedy}"
            )
        warnings.warn(
            f"{short} the {some} ranks of this node need {needed(some):,} at once: shards will be fetched more than "
            f"once; raise the limit, or {remedy}",
            stacklevel=5,
        )


def copy_sizes(counts: Int64s, sizes: Int64s) -> Int64s:
    """Return the bytes that the copies of shards take with their indexes, about; 0 where there will be none.

    Where the size of a shard is not known it is taken to be that of the largest.
    """
    known = np.where(sizes < 0, sizes.max(initial=0), sizes)
    whole = known + _INDEX_BYTES + _INDEX_BYTES_OF_A_SAMPLE * counts
    return np.where((known > 0) & (counts > 0), whole, 0)


def _bytes_of_lane(order: ShardOrder, up_to: Int64s, lane: int) -> int:
    """Return the most bytes of two stretches of a lane, one after the other."""
    begins = order.lane_stretches(lane)
    firsts, lasts = order.lane_spans(lane, begins[:-1], np.append(begins[2:], begins[-1]))
    return int((up_to[lasts] - up_to[firsts]).sum(axis=0).max(initial=0))
