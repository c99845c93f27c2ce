"""The shard schedule: which shards a rank needs from which batch on, and the bytes that ranks need at once.

Prefetch and eviction follow the first; a cache limit must hold the second: the current and the next window of each lane
that a rank reads, of which one is being read and the other fetched.

A lane of the order (see `wdsdist.sampling.order`) is read window by window, so a rank needs the shards of its lanes'
current windows now, and shards of the next windows later. Only as much of the order is computed as is asked for.
"""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import ArgumentError, given
from wdsdist.sampling.order import Order, OrderConfig, OrderSettings, ShardOrder, epoch_order

if TYPE_CHECKING:
    from wdsdist.sampling.epoch_plan import EpochPlan

BLOCK_SAMPLES = 4096
"""Samples of a rank that are located together if the order has no windows, or windows of several data sets."""

_CLOSELY = 512
"""Samples of a block to which the last use of a shard is rounded."""

_LOOKS, _MOST_LOOKS = 64, 16_384
"""Samples that are located for each shard of a window, and in all, to find first uses."""

_COPY_BYTES, _COPY_BYTES_OF_A_SAMPLE = 20_480, 80
"""Approximate bytes that a copy takes besides its shard: its index, a map of its chunks, and partial blocks."""


@dataclass(frozen=True, slots=True)
class Use:
    """The use of one shard in one window: the batches of the rank that need it."""

    first: int
    """The rank's batch that first needs it; or one before, if the window has few of its samples."""
    last: int
    """The rank's last batch from the window; without windows, about the last that needs the shard."""
    shard: int


def upcoming(order: Order, plan: EpochPlan, *, rank: int, batch: int = 0) -> Iterator[Use]:
    """Yield the shards that a rank needs from a batch on, in the order of their first use in each window.

    A shard that two windows share comes twice. Time and memory grow with the shards that the caller takes, not with
    the samples.

    >>> from wdsdist.sampling.epoch_plan import EpochPlan
    >>> from wdsdist.sampling.order import OrderSettings, epoch_order
    >>> order = epoch_order(np.array([4, 4, 4]), OrderSettings(shuffle=False), epoch=0)
    >>> plan = EpochPlan(num_samples=12, num_replicas=1, batch_size=3, drop_last=False, drop_last_batch=False)
    >>> [(use.shard, use.first, use.last) for use in upcoming(order, plan, rank=0, batch=1)]
    [(0, 1, 1), (1, 1, 2), (2, 2, 3)]
    """
    taken = min(plan.samples_per_rank, plan.batches_per_rank * plan.batch_size)
    # From here on a rank takes samples from the start of the epoch again, to be even with the others.
    padded = min(taken, max(0, -(-(plan.num_samples - plan.start.consumed - rank) // plan.num_replicas)))
    if plan.mark_padding:  # ranks may exchange samples in their last batch
        padded = min(padded, max(0, plan.batches_per_rank - 1) * plan.batch_size)
    first = batch * plan.batch_size
    if isinstance(order, ShardOrder):
        stride = len(order.lanes_of(rank, plan.num_replicas))  # it meets them in turn
        lanes = [_of_lane(order, plan, rank, range(step, padded, stride), first) for step in range(stride)]
        yield from heapq.merge(*lanes, key=attrgetter("first"))
        first = max(first, padded)
    for start in range(first, taken, BLOCK_SAMPLES):
        yield from _uses(order, plan, rank, range(start, min(start + BLOCK_SAMPLES, taken)))


def _of_lane(order: ShardOrder, plan: EpochPlan, rank: int, steps: range, first: int) -> Iterator[Use]:
    """Yield a rank's uses of one lane, which it meets in ``steps``, from step ``first`` on."""
    if not steps:
        return
    begin, lane = divmod(plan.start.consumed + steps[0] * plan.num_replicas + rank, order.num_lanes)
    advance = steps.step * plan.num_replicas // order.num_lanes  # in the lane, from one of the steps to the next
    number = max(0, -(-(first - steps[0]) // steps.step))
    stretches = order.lane_stretches(lane)
    stretches = stretches[np.searchsorted(stretches, begin + number * advance, side="right") - 1 :]
    for start, end in pairwise(stretches.tolist()):
        # The steps whose offset in the lane, begin + number * advance, lies before the stretch's end.
        stop = min(len(steps), -(-(end - begin) // advance))
        if number < stop:
            yield from _uses(order, plan, rank, steps[number:stop], order.lane_shards(lane, start, end))
            number = stop


def _uses(order: Order, plan: EpochPlan, rank: int, steps: range, window: Int64s | None = None) -> Iterator[Use]:
    """Yield the shards of some steps of a rank in the order of their first use.

    In a window, of whose shards all are needed to its end, few steps are looked at: a shard that is not among them
    counts as used from there on. Otherwise each has its own last use, about.
    """
    looked = steps if window is None else steps[: min(_LOOKS * len(window), _MOST_LOOKS)]
    part = np.arange(looked.start, looked.stop, looked.step, dtype=np.int64)
    located = order.locate(plan.line(part, rank=rank) % plan.num_samples)[0]
    by_shard = np.argsort(located, kind="stable")
    changes = np.concatenate((np.flatnonzero(np.diff(located[by_shard])) + 1, [len(part)]))
    firsts, latest = by_shard[np.append(0, changes[:-1])], by_shard[changes - 1]
    shards, lasts = located[firsts], np.full(len(firsts), steps[-1])
    if window is None:
        lasts = part[np.minimum(latest // _CLOSELY * _CLOSELY + _CLOSELY, len(part)) - 1]
    by_first = np.argsort(firsts)
    batches = np.stack((part[firsts], lasts))[:, by_first] // plan.batch_size
    yield from map(Use, *batches.tolist(), shards[by_first].tolist())
    if window is not None and len(looked) < len(steps):
        for shard in window[~np.isin(window, shards)].tolist():
            yield Use(steps[len(looked)] // plan.batch_size, steps[-1] // plan.batch_size, shard)


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


def check_limit(config: OrderConfig, settings: OrderSettings, *, num_replicas: int, ranks: int, limit: int) -> None:
    """Check that a cache can hold the working set of its readers.

    Args:
        config, settings: of the order.
        num_replicas: all ranks.
        ranks: ranks that share the cache.
        limit: its bytes.

    Raises `ArgumentError` if that is too little for one rank; warns if it is too little for all of them. Both name the
    window and the limit that fit.
    """
    for some in sorted({1, ranks}):
        size = config.bytes_at_once(settings, num_replicas, some)
        if size <= limit:
            continue
        if settings.name == "sampler":
            what, remedy = "shards all over the data set", f"take {given('order', 'shard')}"
        else:
            what = f"its current and its next shuffle window of {settings.window:,} samples"
            counts = config.manifest.counts
            shard = -(-int(counts.sum()) // max(1, int(np.count_nonzero(counts))))
            remedy = "pack smaller shards"
            for window in (max(1, int(shard * worth)) for worth in (16, 8, 4, 2, 1, 1 / 2, 1 / 4)):
                smaller = replace(settings, window=window)
                if window < settings.window and config.bytes_at_once(smaller, num_replicas, some) <= limit:
                    remedy = f"pass {given('shuffle_window', window)}"
                    break
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


def copy_sizes(counts: Int64s, sizes: Int64s) -> Int64s:
    """Return the bytes that the copies of shards take with their indexes, about; 0 for shards that are not copied.

    A shard of unknown size counts as the largest one.
    """
    known = np.where(sizes < 0, sizes.max(initial=0), sizes)
    whole = known + known // 4096 + _COPY_BYTES + _COPY_BYTES_OF_A_SAMPLE * counts
    return np.where((known > 0) & (counts > 0), whole, 0)
