"""The shard schedule of a rank: which shards it needs from which batch on, for prefetch and eviction.

A lane of the order (see `wdsdist.sampling.order`) is read window by window, so a rank needs the shards of its lanes'
current windows now, and shards of the next windows later. Only as much of the order is computed as is asked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.sampling.order import Order, ShardOrder

if TYPE_CHECKING:
    from wdsdist.sampling.epoch_plan import EpochPlan

BLOCK_SAMPLES = 4096
"""Samples of a rank that are located together if the order has no windows, or windows of several data sets."""

_CLOSELY = 512
"""Samples of a block to which the last use of a shard is rounded."""

_LOOKS = 64
"""Samples that are located for each shard of a window, at least, to find its first use."""


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
    padded = min(taken, max(0, -(-(plan.num_samples - plan.start - rank) // plan.num_replicas)))
    if plan.mark_padding:  # ranks may exchange samples in their last batch
        padded = min(padded, max(0, plan.batches_per_rank - 1) * plan.batch_size)
    first = batch * plan.batch_size
    if isinstance(order, ShardOrder):
        stride = len(order.lanes_of(rank, plan.num_replicas))  # it meets them in turn
        lanes = [_of_lane(order, plan, rank, range(step, padded, stride), first) for step in range(stride)]
        yield from heapq.merge(*lanes, key=attrgetter("first"))
        first = max(first, padded)
    for start in range(first, taken, BLOCK_SAMPLES):
        yield from _of_block(order, plan, rank, range(start, min(start + BLOCK_SAMPLES, taken)))


def _of_lane(order: ShardOrder, plan: EpochPlan, rank: int, steps: range, first: int) -> Iterator[Use]:
    """Yield a rank's uses of one lane, which it meets in ``steps``, from step ``first`` on."""
    if not steps:
        return
    begin, lane = divmod(plan.start + steps[0] * plan.num_replicas + rank, order.num_lanes)
    advance = steps.step * plan.num_replicas // order.num_lanes  # in the lane, from one of the steps to the next
    number = max(0, -(-(first - steps[0]) // steps.step))
    stretches = order.lane_stretches(lane)
    stretches = stretches[np.searchsorted(stretches, begin + number * advance, side="right") - 1 :]
    for start, end in pairwise(stretches.tolist()):
        # The steps whose offset in the lane, begin + number * advance, lies before the stretch's end.
        stop = min(len(steps), -(-(end - begin) // advance))
        if number < stop:
            parts = []
            for _, until, shards in order.lane_parts(lane, start, end):
                upto = min(stop, -(-(until - begin) // advance))
                if number < upto:
                    parts.append((steps[number:upto], shards))
                    number = upto
            yield from _uses(order, plan, rank, parts)


def _uses(order: Order, plan: EpochPlan, rank: int, parts: list[tuple[range, Int64s]]) -> Iterator[Use]:
    """Yield the shards of some steps of a rank in the order of their first use; each part has some of the shards.

    The search ends early: a shard with few samples in the window then counts from the end of the search on.
    """
    last = parts[-1][0][-1] // plan.batch_size
    seen: set[int] = set()
    for steps, shards in parts:
        new = set(shards.tolist()) - seen
        firsts: dict[int, int] = {}
        at, size = 0, 16 * len(shards)
        while at < len(steps) and new and at < max(BLOCK_SAMPLES, _LOOKS * len(shards)):
            part, located = _located(order, plan, rank, steps[at : at + size])
            for index in np.sort(np.unique(located, return_index=True)[1]).tolist():
                if (shard := int(located[index])) in new:
                    new.discard(shard)
                    firsts[shard] = int(part[index])
            at, size = at + size, 2 * size
        if at < len(steps):
            firsts.update(dict.fromkeys(sorted(new), steps[at]))
        seen.update(firsts)
        for shard, step in firsts.items():
            yield Use(step // plan.batch_size, last, shard)


def _of_block(order: Order, plan: EpochPlan, rank: int, steps: range) -> Iterator[Use]:
    """Yield the shards of some steps of a rank in the order of their first use, each with its own last use, about."""
    part, shards = _located(order, plan, rank, steps)
    distinct, firsts = np.unique(shards, return_index=True)
    lasts = len(shards) - 1 - np.unique(shards[::-1], return_index=True)[1]
    lasts = np.minimum(lasts // _CLOSELY * _CLOSELY + _CLOSELY, len(shards)) - 1
    by_first = np.argsort(firsts)
    batches = part // plan.batch_size
    chosen = (batches[firsts], batches[lasts], distinct)
    yield from map(Use, *(column[by_first].tolist() for column in chosen))


def _located(order: Order, plan: EpochPlan, rank: int, steps: range) -> tuple[Int64s, Int64s]:
    """Return the numbers of some steps of a rank, and the shard of each: int64 [steps] each."""
    part = np.arange(steps.start, steps.stop, steps.step, dtype=np.int64)
    return part, order.locate(plan.line(part, rank=rank) % plan.num_samples)[0]
