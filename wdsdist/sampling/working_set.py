"""The working set of an epoch: bytes of shards that ranks need at once, and whether they fit a cache limit.

At once means the current and the next window of each lane that a rank reads: one is being read, the other fetched.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import ArgumentError, given
from wdsdist.sampling.order import OrderSettings, ShardOrder, epoch_order
from wdsdist.sampling.shard_schedule import BLOCK_SAMPLES

_COPY_BYTES, _COPY_BYTES_OF_A_SAMPLE = 20_480, 80
"""Approximate bytes that a copy takes besides its shard: its index, a map of its chunks, and partial blocks."""


def bytes_at_once(
    counts: Int64s, sizes: Int64s, settings: OrderSettings, *, num_replicas: int, ranks: int, epoch: int = 0
) -> int:
    """Return the most bytes of copies that any ``ranks`` of all ranks need at once in an epoch.

    It is an upper bound, because lanes may be in different windows at any time. Other epochs draw other shards
    together, so that they need a little more or less if shards are uneven.

    Args:
        counts: int64 [shards]: samples in each.
        sizes: int64 [shards]: bytes that are read of each; 0 for a shard that is read in place, -1 if unknown.
        settings: of the order.
        num_replicas: all ranks.
        ranks: ranks that share the cache.
        epoch: which epoch.

    >>> settings = OrderSettings(window=100)
    >>> bytes_at_once(np.full(30, 100), np.full(30, 10**6), settings, num_replicas=1, ranks=1)  # two shards and indexes
    2057448
    """
    sizes = copy_sizes(counts, sizes)
    if settings.name == "sampler" and settings.shuffle:
        # Any shard may be needed at any time; but within two blocks, no more of them than samples.
        return int(np.sort(sizes)[-2 * BLOCK_SAMPLES * ranks :].sum())
    order = epoch_order(counts, settings, epoch)
    assert isinstance(order, ShardOrder)
    up_to = np.concatenate(((0,), np.cumsum(sizes[order.shards])))
    lanes = np.zeros(order.num_lanes, np.int64)
    for lane in range(order.num_lanes):  # two stretches, one after the other
        begins = order.lane_stretches(lane)
        firsts, lasts = order.lane_spans(lane, begins[:-1], np.append(begins[2:], begins[-1]))
        lanes[lane] = (up_to[lasts] - up_to[firsts]).max(initial=0)
    sets = {order.lanes_of(rank, num_replicas) for rank in range(num_replicas)}
    most = sum(sorted(int(lanes[own].sum()) for own in sets)[-ranks:])
    return min(most, int(sizes.sum()))


def check_limit(needed: Callable[..., int], settings: OrderSettings, counts: Int64s, *, ranks: int, limit: int) -> None:
    """Check that a cache can hold the working set of its readers.

    Args:
        needed: returns the bytes that ``ranks`` need with some settings of the order.
        settings: of the order.
        counts: int64 [shards]: samples of each.
        ranks: ranks that share the cache.
        limit: its bytes.

    Raises `ArgumentError` if that is too little for one rank; warns if it is too little for all of them. Both name the
    window and the limit that fit.
    """
    for some in sorted({1, ranks}):
        size = needed(settings, ranks=some)
        if size <= limit:
            continue
        if settings.name == "sampler":
            what, remedy = "shards all over the data set", f"take {given('order', 'shard')}"
        else:
            what = f"its current and its next shuffle window of {settings.window:,} samples"
            window = _fitting_window(needed, settings, counts, ranks=some, limit=limit)
            remedy = f"pass {given('shuffle_window', window)}" if window else "pack smaller shards"
        if some == 1:
            raise ArgumentError(
                f"cache_limit is {limit:,} bytes, and one rank needs {size:,} at once, for {what}: raise the limit to "
                f"that, or {remedy}",
                argument="cache_limit",
            )
        warnings.warn(
            f"cache_limit is {limit:,} bytes, and the {some} ranks of this node need {size:,} at once, for {what}: "
            f"shards will be fetched more than once; raise the limit to that, or {remedy}",
            stacklevel=5,
        )
        return


def _fitting_window(
    needed: Callable[..., int], settings: OrderSettings, counts: Int64s, *, ranks: int, limit: int
) -> int | None:
    """Return the largest smaller window that fits a cache, of 16 shards' worth down to a quarter of one."""
    shard = -(-int(counts.sum()) // max(1, int(np.count_nonzero(counts))))
    for worth in (16, 8, 4, 2, 1, 1 / 2, 1 / 4):
        window = max(1, int(shard * worth))
        if window < settings.window and needed(replace(settings, window=window), ranks=ranks) <= limit:
            return window
    return None


def copy_sizes(counts: Int64s, sizes: Int64s) -> Int64s:
    """Return the bytes that the copies of shards take with their indexes, about; 0 for shards that are not copied.

    A shard of unknown size counts as the largest one.
    """
    known = np.where(sizes < 0, sizes.max(initial=0), sizes)
    whole = known + known // 4096 + _COPY_BYTES + _COPY_BYTES_OF_A_SAMPLE * counts
    return np.where((known > 0) & (counts > 0), whole, 0)
