"""The plan of one block: its samples dealt into batches of like cost, equally many on every rank. Pure.

A block is a run of positions of the shuffled order. Every rank computes the same plan of it from the lengths of its
samples, so that no rank has to ask another. Most samples stay with the rank whose lane holds them; to make ranks even,
others move within a node, whose ranks share a cache, and between nodes only if they would not fit otherwise.

Each rank's samples are spread over its *bins*: batches within a token budget, batches of like lengths, or rows of a
fixed length. Bins of a rank are sorted by cost, so that the ranks of one step have like costs; the steps of a block are
then put into random order.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, radix_order
from wdsdist.batching.block_deal import FILLED, Locality, even, in_parts, level
from wdsdist.batching.values import Cost, Long, Oversize
from wdsdist.sampling.permutation import shuffled
from wdsdist.sampling.plan import World

_FITTED = 4
"""The shortest samples, so many for each bin, go where they fit best once bins get full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How samples are made into batches: a value of `wdsdist.batching`, in the terms of a plan."""

    has_rows: bool = False
    """Whether batches are packed sequences: rows of tokens, filled with pieces of samples."""
    budget: int = 0
    """The most tokens of a batch or row; 0 if samples of like lengths, or of one category, share a batch."""
    most: int = 0
    """The most samples of a batch, or its rows; 0 means no limit."""
    drops: bool = False
    """Whether samples that cannot be dealt evenly are dropped (true) or others are repeated (false)."""
    label: str = ""
    """The name of the rule, which a state must have for a resume inside an epoch."""
    length: str | None = None
    """The column of lengths."""
    buckets: str | None = None
    """The column of categories."""
    cost: Cost = "linear"
    """What a sample costs: its length, or the square of it."""
    long: Long | Oversize = "split"
    """What happens to a sample of more tokens than the budget."""
    mark_padding: bool = False
    """Whether batches mark their repeated samples."""
    collate: Callable[..., Any] | None = field(default=None, repr=False)
    """Makes a batch from its samples; ``None`` makes columns."""

    @property
    def room(self) -> int:
        """Tokens of a batch at most; 0 without a limit."""
        return self.budget * (self.most if self.has_rows else 1)

    def costs(self, lengths: Int64s) -> npt.NDArray[np.float64]:
        """Return the costs of samples, or pieces of samples, of their lengths."""
        return lengths.astype(np.float64) ** (2 if self.cost == "quadratic" else 1)


@dataclass(frozen=True, slots=True, eq=False)
class BlockSamples:
    """The samples of a block as a plan needs them: lengths, ranks, buckets and shards; ``n`` of them."""

    lengths: Int64s
    """int64 [n]: tokens."""
    owners: Int64s
    """int64 [n]: the rank whose lane holds each."""
    buckets: Int64s | None = None
    """int64 [n]: the category of each; batches have one category only."""
    shards: Int64s | None = None
    """int64 [n]: the shard of each; samples that move between nodes lie in few."""


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """The batches of a block: ``steps`` for each rank."""

    steps: int
    samples: Int64s
    """int64 [m]: numbers of samples of the block, sorted by step, rank and row."""
    rows: Int64s
    """int64 [m]: the row of each in its batch; 0 unless batches are rows."""
    bounds: Int64s
    """int64 [steps * ranks + 1]: where the samples of each step and rank start."""

    @property
    def is_repeated(self) -> npt.NDArray[np.bool_]:
        """bool [m]: which samples are repeated to make the ranks even: all but the first of each."""
        numbers = np.arange(len(self.samples))
        first = np.empty(int(self.samples.max(initial=0)) + 1, np.int64)
        first[self.samples[::-1]] = numbers[::-1]  # of several values, the last one stays
        repeated: npt.NDArray[np.bool_] = first[self.samples] != numbers
        return repeated


def plan_block(samples: BlockSamples, rule: Rule, world: World, key: int) -> BlockPlan:
    """Plan the batches of a block.

    Args:
        samples: lengths and lanes of its samples; what is longer than the budget fills a batch alone.
        rule: how batches are made.
        world: the ranks.
        key: decides the order of the steps.

    >>> samples = BlockSamples(np.array([5, 3, 4, 4, 2, 6]), np.arange(6) % 2)
    >>> plan = plan_block(samples, Rule(budget=8), World(2), key=1)
    >>> plan.steps, np.add.reduceat(samples.lengths[plan.samples], plan.bounds[:-1]).tolist()
    (2, [5, 6, 6, 7])
    """
    if not len(samples.lengths):
        return _empty()
    return (_within_budget if rule.budget else _of_like)(samples, rule, world, key)


# Budgets: batches of at most so many tokens, or rows of a fixed length.


def _within_budget(samples: BlockSamples, rule: Rule, world: World, key: int) -> BlockPlan:
    ranks = world.num_replicas
    in_batch = max(1, rule.most) if rule.has_rows else 1  # rows of a batch
    most = rule.most if rule.most and not rule.has_rows else len(samples.lengths)
    lengths = np.clip(samples.lengths, 1, rule.budget)
    numbers = np.arange(len(lengths))
    if len(lengths) < ranks:
        if rule.drops:
            return _empty()
        numbers = np.resize(np.argsort(lengths, kind="stable"), ranks)
    total = int(lengths[numbers].sum())
    locality = Locality.of(samples.owners, samples.shards, world)
    filled = 1.0 if len(locality.reads) == 1 else FILLED  # a step more is better than reading shards of other nodes
    steps = max(1, -(-total // int(ranks * in_batch * rule.budget * filled)), -(-len(numbers) // (ranks * most)))
    while True:
        drops = False
        if len(numbers) < ranks * steps:  # each step needs a sample on every rank
            if rule.drops and not rule.has_rows:  # or it goes without the samples that do not fit
                drops, steps, locality = True, len(numbers) // ranks, Locality.of(samples.owners, samples.shards, world)
            else:
                more = ranks * steps - len(numbers)
                numbers = np.concatenate((numbers, np.resize(np.argsort(lengths, kind="stable"), more)))
        owners, shards, sizes = samples.owners[numbers], locality.shards[numbers], lengths[numbers]
        dealt = level(locality, sizes, owners, shards, steps, steps * in_batch * rule.budget)
        bins = np.full(len(numbers), -1, np.int64)
        for own in in_parts(sizes, dealt, ranks):
            if drops:
                bins[own] = _spread(sizes[own], steps, rule.budget, most, drops=True)
                continue
            own_bins = _into_bins(sizes[own], steps * in_batch, rule.budget, most, least=steps)
            if own_bins is None:
                break
            bins[own] = own_bins
        else:
            break
        steps += 1
    kept = np.flatnonzero(bins >= 0)
    costs = rule.costs(samples.lengths[numbers[kept]])
    return _ordered(numbers[kept], dealt[kept], bins[kept], steps, in_batch, world, key, costs)


def _into_bins(lengths: Int64s, bins: int, budget: int, most: int, *, least: int) -> Int64s | None:
    """Return the bin of each length, the longest first, or ``None`` if they do not fit.

    Bins have like loads if each length goes into the emptiest bin, and are fuller if it goes into the fullest bin that
    has room. So all lengths are spread over the emptiest bins; if they do not fit, the shortest are fitted into the
    fullest; if that fails too, all are, but for the first ``least``, which give each batch a sample.
    """
    for head in (len(lengths), max(least, len(lengths) - _FITTED * bins), least):
        spread = _spread(lengths[:head], bins, budget, most)
        if not (spread < 0).any():
            loads = np.bincount(spread, lengths[:head], bins).astype(np.int64)
            rest = _fit(lengths[head:], loads, np.bincount(spread, minlength=bins), budget, most)
            if rest is not None:
                return np.concatenate((spread, rest))
    return None


def _spread(lengths: Int64s, bins: int, budget: int, most: int, *, drops: bool = False) -> Int64s:
    """Put each length, the longest first, into the emptiest bin; return the bin of each.

    It is -1 for a length that fits nowhere, and, without ``drops``, for all that follow. Lengths are put in runs: as
    long as the next bin is emptier than the bins that have just got a length, each length goes into the next.
    """
    keys = np.arange(bins)  # the load of each times the number of bins, and its number
    counts = np.zeros(bins, np.int64)
    limit = (budget + 1) * bins
    bin_of = np.full(len(lengths), -1, np.int64)
    sizes = lengths * bins
    first = 0
    while first < len(lengths):
        if most < len(lengths):
            keys = keys[counts[keys % bins] < most]
        keys.sort()
        loaded = keys[: len(lengths) - first] + sizes[first : first + len(keys)]
        goes_on = loaded < limit
        goes_on[1:] &= keys[1 : len(loaded)] < np.minimum.accumulate(loaded)[:-1]
        count = len(loaded) if goes_on.all() else int(goes_on.argmin())
        if count == 0:
            if not drops:
                break
            first += 1
            continue
        chosen = keys[:count] % bins
        counts[chosen] += 1
        bin_of[first : first + count] = chosen
        keys[:count] = loaded[:count]
        first += count
    return bin_of


def _fit(lengths: Int64s, loads: Int64s, counts: Int64s, budget: int, most: int) -> Int64s | None:
    """Put each length, the longest first, into the fullest bin that has room.

    Args:
        lengths: int64 [n].
        loads, counts: int64 [bins]: the tokens and the samples of each bin so far.
        budget, most: the most tokens and samples of a bin.

    Returns the bin of each, or ``None`` if some length fits nowhere.
    """
    bins = len(loads)
    left = (most - counts).tolist()
    # The room of each bin times the number of bins, and its number.
    rooms = sorted(((budget - loads) * bins + np.arange(bins))[counts < most].tolist())
    chosen = []
    for size in (lengths * bins).tolist():
        index = bisect_left(rooms, size)
        if index == len(rooms):
            return None
        room = rooms.pop(index)
        chosen.append(room)
        left[room % bins] -= 1
        if left[room % bins]:
            insort(rooms, room - size, 0, index)
    return np.array(chosen, np.int64) % bins


# Batches of like samples.


def _of_like(samples: BlockSamples, rule: Rule, world: World, key: int) -> BlockPlan:
    """Plan batches of a number of samples: of like lengths, and of one bucket if there are buckets."""
    buckets = np.zeros(len(samples.lengths), np.int64) if samples.buckets is None else samples.buckets
    each = [_used(np.flatnonzero(buckets == bucket), rule, world) for bucket in np.unique(buckets)]
    each = [numbers for numbers in each if len(numbers)]
    if not each:
        return _empty()
    numbers = np.concatenate(each)
    lengths = samples.lengths[numbers]
    locality = Locality.of(samples.owners, samples.shards, world)
    bounds = np.cumsum([0, *map(len, each)])
    parts = [slice(*part) for part in itertools.pairwise(bounds.tolist())]
    of_buckets = np.repeat(np.arange(len(each)), np.diff(bounds))
    steps_each = -(-np.diff(bounds) // (world.num_replicas * rule.most))
    owners, shards = samples.owners[numbers], locality.shards[numbers]
    of_nodes = even(locality, owners, of_buckets, shards, steps_each, rule.most)
    dealt, bins = np.empty((2, len(numbers)), np.int64)
    steps, sizes = 0, np.bincount(locality.nodes).tolist()
    for part, more in zip(parts, steps_each.tolist(), strict=True):
        first = 0
        for own, size in zip(in_parts(lengths[part], of_nodes[part], len(sizes)), sizes, strict=True):
            # Ranks of a node get like samples of each step by turns, to and fro, so that they cost about the same.
            # The first steps have one more on each rank: if all have it in the same steps, none waits for another.
            whole, rest = divmod(len(own), size)
            counts = size * (whole // more + (np.arange(more) < whole % more))
            counts[whole % more] += rest
            steps_of = np.repeat(np.arange(more), counts)
            turns, seats = np.divmod(np.arange(len(own)) - np.searchsorted(steps_of, steps_of), size)
            bins[part][own] = steps + steps_of
            dealt[part][own] = first + np.where(turns % 2, size - 1 - seats, seats)
            first += size
        steps += more
    return _ordered(numbers, dealt, bins, steps, 1, world, key)


def _used(numbers: Int64s, rule: Rule, world: World) -> Int64s:
    """Return the samples of a bucket that are used, such that every rank has at least one in each step."""
    ranks = world.num_replicas
    steps = -(-len(numbers) // (ranks * rule.most))
    if len(numbers) >= ranks * steps:
        return numbers
    if not rule.drops:
        return np.concatenate((numbers, np.resize(numbers, ranks * steps - len(numbers))))
    return numbers[: len(numbers) // ranks * ranks * rule.most]


# Bins to steps.


def _ordered(
    numbers: Int64s,
    dealt: Int64s,
    bins: Int64s,
    steps: int,
    in_batch: int,
    world: World,
    key: int,
    costs: npt.NDArray[np.float64] | None = None,
) -> BlockPlan:
    """Return the plan in which the bins of each rank are sorted by the costs of samples, and the steps then shuffled.

    Without ``costs`` the bins are in order already.
    """
    ranks, per_rank = world.num_replicas, steps * in_batch
    if costs is not None:
        of_bins = np.bincount(dealt * per_rank + bins, costs, ranks * per_rank).reshape(ranks, per_rank)
        places = np.empty_like(of_bins, dtype=np.int64)
        by_cost = np.argsort(-of_bins, axis=1, kind="stable")
        np.put_along_axis(places, by_cost, np.arange(per_rank)[None, :], axis=1)
        bins = places[dealt, bins]
    # Rows are dealt to batches in turn, so that batches of a rank have like costs.
    rows, tiers = np.divmod(bins, steps)
    step = shuffled(steps, key)[tiers]
    batch = step * ranks + dealt
    order = np.argsort(numbers, kind="stable")  # they are nearly in order
    order = order[radix_order((batch * in_batch + rows)[order])]
    bounds = np.searchsorted(batch[order], np.arange(steps * ranks + 1))
    return BlockPlan(steps, numbers[order], rows[order], bounds.astype(np.int64))


def _empty() -> BlockPlan:
    nothing = np.zeros(0, np.int64)
    return BlockPlan(0, nothing, nothing, np.zeros(1, np.int64))
