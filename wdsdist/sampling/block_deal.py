"""The rank of each sample of a block: ranks made even with as little moved from their own lanes as can be. Pure.

Ranks of a node share a cache, so that samples move freely between them. A sample that moves to another node makes that
node read its shard: first those move whose shard the other node reads anyway, then those of the shard that has the most
of what the other node lacks.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, radix_order

FILLED = 0.9995
"""Share of the room of all bins up to which they are planned to be filled; whole samples leave gaps."""

_UNEVEN = 1.005
"""How many times the mean of all ranks one may have in tokens before it gives samples to others."""

_BY_CHANCE = 32
"""Of so many samples of a category one more may stay with a node; at most the standard deviation of their number."""

_AT_ONCE = 64
"""Categories that are evened together: memory grows with them and the shards."""


@dataclass(frozen=True, slots=True, eq=False)
class Locality:
    """The nodes of the ranks, and the shards that each node reads in a block."""

    nodes: Int64s
    """int64 [ranks]."""
    names: Int64s
    """int64 [shards]: the number of each in the data set."""
    shards: Int64s
    """int64 [n]: the shard of each sample, numbered from 0 in this block."""
    reads: npt.NDArray[np.bool_]
    """bool [nodes, shards]: which a node reads; a move adds to it, so that later ones prefer the same shards."""

    @classmethod
    def of(cls, owners: Int64s, shards: Int64s | None, num_replicas: int, per_node: int) -> Locality:
        """Return the nodes and shards before any sample moves; without ``shards``, all samples are of one."""
        nodes = np.arange(num_replicas) // max(1, per_node)
        shards = np.zeros_like(owners) if shards is None else shards
        is_here = np.zeros(int(shards.max(initial=0)) + 1, np.bool_)
        is_here[shards] = True
        names, numbers = np.flatnonzero(is_here), (np.cumsum(is_here) - 1)[shards]
        reads = np.zeros((int(nodes[-1]) + 1, max(1, len(names))), np.bool_)
        reads[nodes[owners], numbers] = True
        return cls(nodes, names, numbers, reads)


def level(locality: Locality, lengths: Int64s, owners: Int64s, shards: Int64s, least: int, room: int) -> Int64s:
    """Return the rank of each sample: its owner, but where that has more than fits, or another less than it needs.

    Args:
        locality: the nodes.
        lengths, owners, shards: int64 [n]; shards as ``locality`` numbers them.
        least: samples that every rank needs.
        room: tokens that a rank has room for.
    """
    ranks, nodes = owners.copy(), locality.nodes
    mean = -(-int(lengths.sum()) // len(nodes))
    full = max(mean, int(room * FILLED))
    limit = max(mean, min(full, int(mean * _UNEVEN)))
    sizes = np.bincount(nodes)
    if len(sizes) > 1:
        of_nodes = sizes[:, None]
        _between_nodes(locality, ranks, np.zeros_like(ranks), shards, lengths, of_nodes * limit, of_nodes * mean)
    loads = np.bincount(ranks, lengths, len(nodes)).astype(np.int64)
    counts = np.bincount(ranks, minlength=len(nodes))
    # What is left uneven within nodes moves between them only where it would not fit.
    for within, most in ((True, limit), (False, full)):
        givers = np.flatnonzero(loads > most).tolist()
        parts = in_parts(lengths, ranks, len(nodes)) if givers else []
        for giver in givers:
            near = np.flatnonzero((nodes == nodes[giver]) | (not within))
            if len(near) > 1:
                _give_tokens(ranks, lengths, loads, counts, parts[giver], near, most)
        for taker in np.flatnonzero(counts < least).tolist():
            near = np.flatnonzero((nodes == nodes[taker]) | (not within))
            _take_samples(ranks, lengths, loads, counts, taker, near, least)
    return ranks


def even(
    locality: Locality, owners: Int64s, categories: Int64s, shards: Int64s, steps: Int64s | None = None, batch: int = 0
) -> Int64s:
    """Return the node of each sample such that all ranks can have equally many of each category, to within one.

    The same holds of neighbouring categories together, and so of all samples. Where ``steps`` are given, a node may
    keep, or get, a few more than that: to open a shard for as few is not worth while.

    Args:
        locality: the nodes.
        owners: int64 [n].
        categories, shards: int64 [n], numbered from 0; shards as ``locality`` numbers them.
        steps: int64 [categories]: batches of each category on every rank, in each of which there is a sample.
        batch: most samples of a batch.
    """
    ranks, nodes = owners.copy(), locality.nodes
    if int(nodes[-1]) == 0:
        return nodes[ranks]
    counts = np.bincount(categories)
    before = np.cumsum(counts) - counts
    # The ranks with the most have one more where it cannot be even, and of the next category those that follow them.
    turns = np.empty_like(nodes)
    turns[np.argsort(-np.bincount(ranks, minlength=len(nodes)), kind="stable")] = np.arange(len(nodes))
    for first in range(0, len(counts), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        whole, rest = np.divmod(counts[some], len(nodes))
        of_ranks = whole + ((turns[:, None] - before[some]) % len(nodes) < rest)
        goals = np.add.reduceat(of_ranks, np.searchsorted(nodes, np.arange(nodes[-1] + 1)))
        chosen = np.flatnonzero(categories // _AT_ONCE == first // _AT_ONCE)
        here, weights = categories[chosen] - first, np.ones_like(chosen)
        least = most = goals
        if steps is not None:
            least = np.bincount(nodes)[:, None] * steps[some]
            by_chance = np.minimum(np.sqrt(goals).astype(np.int64), goals // _BY_CHANCE)
            most = np.maximum(np.minimum(goals + by_chance, least * batch), goals)
        for limits in (most, goals):
            moved = ranks[chosen]
            _between_nodes(locality, moved, here, shards[chosen], weights, limits, limits, whole_first=True)
            found = np.bincount(nodes[moved] * len(whole) + here, minlength=goals.size)
            if (found >= least.ravel()).all():
                break
        ranks[chosen] = moved
    return nodes[ranks]


class _Offers(NamedTuple):
    """Samples of nodes that have too much, in pieces: what one node has of one shard."""

    nodes: Int64s
    """int64 [pieces]: the node of each."""
    shards: Int64s
    """int64 [pieces]: the shard of each."""
    samples: Int64s
    """int64 [m]: by piece and category, the heaviest first."""
    bounds: Int64s
    """int64 [pieces, categories + 1]: where the samples of each category start, and the last ones stop."""

    @classmethod
    def of(cls, offered: Int64s, cells: Int64s, shards: Int64s, weights: Int64s, shape: tuple[int, int]) -> _Offers:
        """Return the pieces of some samples; ``shape`` is the numbers of shards and of categories."""
        nodes, categories = np.divmod(cells[offered], shape[1])
        keys = (nodes * shape[0] + shards[offered]) * shape[1] + categories
        order = radix_order(weights.max(initial=0) - weights[offered])
        order = order[radix_order(keys[order])]
        keys = keys[order]
        pieces = np.unique(keys // shape[1])
        bounds = np.searchsorted(keys, pieces[:, None] * shape[1] + np.arange(shape[1] + 1))
        return cls(*np.divmod(pieces, shape[0]), offered[order], bounds)


def _between_nodes(
    locality: Locality,
    ranks: Int64s,
    categories: Int64s,
    shards: Int64s,
    weights: Int64s,
    most: Int64s,
    goals: Int64s,
    *,
    whole_first: bool = False,
) -> None:
    """Move samples of nodes that have more than ``most`` to those with less than their goals, from few shards.

    A node takes what it lacks from shards that it reads anyway, and then from the shard that has the most of it, over
    all categories; ``whole_first``, each node takes all that another has too much of a category before any takes less.

    Args:
        locality: what the nodes read, which is noted there as it changes.
        ranks: int64 [n], changed in place.
        categories, shards, weights: int64 [n].
        most, goals: int64 [nodes, categories], in units of the weights.
    """
    nodes, reads = locality.nodes, locality.reads
    by_rank = np.bincount(ranks, weights, len(nodes))
    cells = nodes[ranks] * goals.shape[1] + categories
    loads = np.bincount(cells, weights, goals.size).astype(np.int64).reshape(goals.shape)
    offered = np.flatnonzero((loads > most).ravel()[cells])
    offers = _Offers.of(offered, cells, shards, weights, (reads.shape[1], goals.shape[1]))
    sums = np.concatenate(([0], np.cumsum(weights[offers.samples])))[offers.bounds]
    has = np.diff(sums, axis=1)
    heaviest = int(weights.max(initial=1))
    is_given = np.zeros(len(ranks), np.bool_)
    takers = np.argsort(np.minimum(loads - goals, 0).sum(axis=1), kind="stable").tolist()
    for must_be_whole, taker in itertools.product((True, False) if whole_first else (False,), takers):
        here = np.flatnonzero(nodes == taker)
        first = here[np.argmin(by_rank[here])]
        is_left = np.ones(len(has), np.bool_)
        while len(has):
            need = goals[taker] - loads[taker]
            need[need < heaviest] = 0
            excess = np.maximum(loads - most, 0)[offers.nodes]
            worth = np.minimum(np.minimum(has, excess), need)
            worth = (worth * (worth >= excess) if must_be_whole else worth).sum(axis=1) * is_left
            near = worth * reads[taker, offers.shards]
            piece = int((near if near.any() else worth).argmax())
            if not worth[piece]:
                break
            is_left[piece] = False
            for category in np.flatnonzero(np.minimum(has[piece], excess[piece]) * need).tolist():
                found = offers.samples[slice(*offers.bounds[piece, category : category + 2])]
                found = found[~is_given[found] & (weights[found] <= need[category])]
                total = np.cumsum(weights[found])
                moved = found[(total <= need[category]) & (total - weights[found] < excess[piece, category])]
                if not len(moved):
                    continue
                amount = int(weights[moved].sum())
                has[piece, category] -= amount
                loads[offers.nodes[piece], category] -= amount
                loads[taker, category] += amount
                ranks[moved], is_given[moved] = first, True
                reads[taker, offers.shards[piece]] = True


def in_parts(lengths: Int64s, dealt: Int64s, parts: int) -> list[Int64s]:
    """Return the samples of each part that they are dealt to, the longest first."""
    longest_first = radix_order(lengths.max(initial=0) - lengths)
    order = longest_first[radix_order(dealt[longest_first])]
    return np.split(order, np.cumsum(np.bincount(dealt, minlength=parts))[:-1])


def _give_tokens(
    ranks: Int64s, lengths: Int64s, loads: Int64s, counts: Int64s, own: Int64s, near: Int64s, limit: int
) -> None:
    """Move samples of a rank that has too many tokens, the longest first, to those near it that have the fewest."""
    giver, shortness = ranks[own[0]], -lengths[own]
    place = 0
    while loads[giver] > limit:
        # One sample that is a little longer than the excess is better than many short ones.
        place = max(place, int(np.searchsorted(shortness, -2 * (loads[giver] - limit))))
        if place == len(own):
            return
        sample, place = own[place], place + 1
        taker, length = near[np.argmin(loads[near])], lengths[sample]
        if taker != giver and loads[taker] + length <= limit:
            ranks[sample] = taker
            loads[giver] -= length
            loads[taker] += length
            counts[giver] -= 1
            counts[taker] += 1


def _take_samples(
    ranks: Int64s, lengths: Int64s, loads: Int64s, counts: Int64s, taker: int, near: Int64s, least: int
) -> None:
    """Move short samples to a rank that has too few from those near it that have the most."""
    while counts[taker] < least:
        giver = int(near[np.argmax(counts[near])])
        if counts[giver] <= least:
            return
        own = np.flatnonzero(ranks == giver)
        moved = own[np.argsort(lengths[own], kind="stable")][: min(counts[giver] - least, least - counts[taker])]
        ranks[moved] = taker
        for rank, sign in ((giver, -1), (taker, 1)):
            loads[rank] += sign * int(lengths[moved].sum())
            counts[rank] += sign * len(moved)
