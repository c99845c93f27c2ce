"""The rank of each sample of a block: ranks made even with as little moved from their own lanes as can be. Pure.

Ranks of a node share a cache, so that samples move freely between them. A sample that moves to another node makes that
node read its shard: first those move whose shard the other node reads anyway, then all of one shard before any of the
next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s

FILLED = 0.9995
"""Share of the room of all bins up to which they are planned to be filled; whole samples leave gaps."""

_UNEVEN = 1.005
"""How many times the mean of all ranks one may have in tokens before it gives samples to others."""


@dataclass(frozen=True, slots=True, eq=False)
class Locality:
    """The nodes of the ranks, and the shards that each node reads in a block."""

    nodes: Int64s
    """int64 [ranks]."""
    shards: Int64s
    """int64 [n]: the shard of each sample, numbered from 0 in this block."""
    reads: npt.NDArray[np.bool_]
    """bool [nodes, shards]: which a node reads; a move adds to it, so that later ones prefer the same shards."""

    @classmethod
    def of(cls, owners: Int64s, shards: Int64s | None, num_replicas: int, per_node: int) -> Locality:
        """Return what is known before anything moves; without ``shards``, all samples are of one."""
        nodes = np.arange(num_replicas) // max(1, per_node)
        numbers = np.zeros_like(owners) if shards is None else np.unique(shards, return_inverse=True)[1]
        reads = np.zeros((int(nodes[-1]) + 1, int(numbers.max(initial=0)) + 1), np.bool_)
        reads[nodes[owners], numbers] = True
        return cls(nodes, numbers, reads)


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
        _between_nodes(locality, ranks, lengths, shards, sizes * limit, sizes * mean)
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


def even(locality: Locality, owners: Int64s, shards: Int64s) -> Int64s:
    """Return the node of each sample such that all ranks can have equally many, to within one."""
    ranks, nodes = owners.copy(), locality.nodes
    goals = np.full(len(nodes), len(owners) // len(nodes))
    # The first ranks have one more where it cannot be even.
    counts = np.bincount(ranks, minlength=len(nodes))
    goals[np.argsort(-counts, kind="stable")[: len(owners) - int(goals.sum())]] += 1
    of_nodes = np.bincount(nodes, goals).astype(np.int64)
    if len(of_nodes) > 1:
        _between_nodes(locality, ranks, np.ones_like(owners), shards, of_nodes, of_nodes)
    return nodes[ranks]


def _between_nodes(
    locality: Locality, ranks: Int64s, weights: Int64s, shards: Int64s, most: Int64s, goals: Int64s
) -> None:
    """Move samples of nodes that have more than ``most`` to those with less than their goals, from few shards.

    Args:
        locality: what the nodes read, which is noted there as it changes.
        ranks: int64 [n], changed in place.
        weights, shards: int64 [n].
        most, goals: int64 [nodes], in units of the weights.
    """
    nodes, reads = locality.nodes, locality.reads
    own = nodes[ranks]
    loads = np.bincount(own, weights, len(goals)).astype(np.int64)
    by_rank = np.bincount(ranks, weights, len(nodes))
    offered = np.flatnonzero(loads[own] > most[own])
    offered = offered[np.lexsort((-weights[offered], shards[offered]))]
    starts = np.searchsorted(shards[offered], np.arange(reads.shape[1] + 1))
    has_few = 2 * np.diff(starts) < np.diff(starts).max()
    offers = np.zeros_like(reads)
    offers[own[offered], shards[offered]] = True
    for taker in np.argsort(loads - goals, kind="stable").tolist():
        here = np.flatnonzero(nodes == taker)
        first = here[np.argmin(by_rank[here])]
        found = np.flatnonzero(offers[loads > most].any(axis=0))
        for shard in found[np.lexsort((has_few[found], ~reads[taker][found]))].tolist():
            need = int(goals[taker] - loads[taker])
            if need <= 0:
                break
            given = _given(offered[starts[shard] : starts[shard + 1]], own, weights, loads - most)
            moved = given[np.cumsum(weights[given]) <= need]
            if len(moved):
                loads -= np.bincount(own[moved], weights[moved], len(loads)).astype(np.int64)
                loads[taker] += int(weights[moved].sum())
                ranks[moved], own[moved] = first, taker
                reads[taker, shard] = True
            if len(moved) < len(given):
                break


def _given(offered: Int64s, own: Int64s, weights: Int64s, excess: Int64s) -> Int64s:
    """Return those of some samples that their nodes can give before they have no more than they should."""
    offered = offered[excess[own[offered]] > 0]
    givers = own[offered]
    is_given = np.zeros(len(offered), np.bool_)
    for giver in np.unique(givers).tolist():
        taken = weights[offered[givers == giver]]
        is_given[givers == giver] = np.cumsum(taken) - taken < excess[giver]
    return offered[is_given]


def in_parts(lengths: Int64s, dealt: Int64s, parts: int) -> list[Int64s]:
    """Return the samples of each part that they are dealt to, the longest first."""
    order = np.argsort(dealt.astype(np.min_scalar_type(parts)), kind="stable")  # of small numbers a radix sort
    found = np.split(order, np.cumsum(np.bincount(dealt, minlength=parts))[:-1])
    return [own[np.argsort(-lengths[own], kind="stable")] for own in found]


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
