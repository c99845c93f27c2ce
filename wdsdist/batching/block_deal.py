"""The rank of each sample of a block: ranks made even, with few samples moved from their own lanes. Pure.

Ranks of a node share a cache, so that samples move freely between them. A sample that moves to another node makes that
node read its shard. Samples move between nodes only if a node has more than it has room for, or less than it needs.
They are then samples of shards that the other node reads anyway, or of the shard that has the most of what it lacks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, radix_order
from wdsdist.sampling.plan import World

FILLED = 0.9995
"""Share of the room of all bins up to which they are planned to be filled; whole samples leave gaps."""

_UNEVEN = 1.005
"""The most tokens of a rank over the mean of all ranks, before it gives samples to others."""

_UNEVEN_CATEGORY = 1.016
"""The most samples of a node in one category over its share."""


@dataclass(frozen=True, slots=True, eq=False)
class Locality:
    """The nodes of the ranks, and the shards that each node reads in a block."""

    nodes: Int64s
    """int64 [ranks]."""
    shards: Int64s
    """int64 [n]: the shard of each sample, numbered from 0 in this block."""
    reads: npt.NDArray[np.bool_]
    """bool [nodes, shards]: which a node reads. A move adds to it, so that later moves prefer the same shards."""

    @classmethod
    def of(cls, owners: Int64s, shards: Int64s | None, world: World) -> Locality:
        """Return the nodes and shards before any sample moves; without ``shards``, all samples lie in one."""
        nodes = np.arange(world.num_replicas) // max(1, world.per_node)
        shards = np.zeros_like(owners) if shards is None else shards
        is_present = np.zeros(int(shards.max(initial=0)) + 1, np.bool_)
        is_present[shards] = True
        numbers = (np.cumsum(is_present) - 1)[shards]
        reads = np.zeros((int(nodes[-1]) + 1, max(1, int(is_present.sum()))), np.bool_)
        reads[nodes[owners], numbers] = True
        return cls(nodes, numbers, reads)


def level(locality: Locality, lengths: Int64s, owners: Int64s, shards: Int64s, least: int, room: int) -> Int64s:
    """Return the rank of each sample: its owner, unless that has more than fits, or another less than it needs.

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
        before = nodes[ranks]
        all_alike, none = np.zeros_like(ranks), np.zeros((len(sizes), 1), np.int64)
        after = _between_nodes(locality, before, all_alike, shards, lengths, none, sizes[:, None] * limit)
        moved = np.flatnonzero(before != after)
        ranks[moved] = np.searchsorted(nodes, after[moved])  # the first rank of the node
    loads = np.bincount(ranks, lengths, len(nodes)).astype(np.int64)
    counts = np.bincount(ranks, minlength=len(nodes))
    # Single samples move between nodes only if they would not fit otherwise.
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


def even(locality: Locality, owners: Int64s, categories: Int64s, shards: Int64s, steps: Int64s, batch: int) -> Int64s:
    """Return the node of each sample such that its ranks can have about equally many of each category.

    Args:
        locality: the nodes.
        owners: int64 [n].
        categories, shards: int64 [n], numbered from 0; shards as ``locality`` numbers them.
        steps: int64 [categories]: batches of each category on every rank, in each of which there is a sample.
        batch: the most samples of a batch.
    """
    nodes = locality.nodes
    of_samples = nodes[owners]
    if int(nodes[-1]) == 0:
        return of_samples
    sizes = np.bincount(nodes)[:, None]
    least = sizes * steps
    share = sizes * np.bincount(categories) / len(nodes)
    most = np.minimum(np.ceil(share * _UNEVEN_CATEGORY).astype(np.int64), least * batch)
    return _between_nodes(locality, of_samples, categories, shards, np.ones_like(owners), least, most)


def _between_nodes(
    locality: Locality,
    of_samples: Int64s,
    categories: Int64s,
    shards: Int64s,
    weights: Int64s,
    least: Int64s,
    most: Int64s,
) -> Int64s:
    """Return the node of each sample, such that nodes have enough and not too much of each category, if that can be.

    Args:
        locality: what the nodes read; it is changed as samples move.
        of_samples: int64 [n]: the node of each sample before.
        categories, shards, weights: int64 [n].
        least, most: int64 [nodes, categories], in units of the weights.
    """
    of_samples = of_samples.copy()
    loads = np.bincount(of_samples * most.shape[1] + categories, weights, most.size).astype(np.int64)
    loads = loads.reshape(most.shape)
    order = np.arange(len(categories)) if most.shape[1] == 1 else radix_order(categories)
    bounds = np.searchsorted(categories[order], np.arange(most.shape[1] + 1))
    for category in np.flatnonzero(((loads > most) | (loads < least)).any(axis=0)).tolist():
        own = order[bounds[category] : bounds[category + 1]]
        by_node: dict[int, Int64s] = {}
        load, low, high = loads[:, category], least[:, category], most[:, category]
        while True:
            # A node with too much gives to one with room; otherwise, one that can gives to one in need.
            surplus, room = load - high, high - load
            if min(surplus.max(), room.max()) <= 0:
                surplus, room = load - low, low - load
            giver = int(surplus.argmax())
            if giver not in by_node:
                by_node[giver] = own[of_samples[own] == giver]
            # A node that reads one of the giver's shards already need not read another.
            is_near = locality.reads[:, np.unique(shards[by_node[giver]])].any(axis=1) & (room > 0)
            taker = int(np.where(is_near, room, -1).argmax() if is_near.any() else room.argmax())
            amount = min(surplus[giver], room[taker])
            mine = by_node[giver][weights[by_node[giver]] <= amount]
            if amount <= 0 or not len(mine):
                break
            amounts = np.bincount(shards[mine], weights[mine], locality.reads.shape[1])
            near = amounts * locality.reads[taker]
            shard = int((near if near.any() else amounts).argmax())
            moved = mine[shards[mine] == shard]
            moved = moved[np.argsort(-weights[moved], kind="stable")]
            moved = moved[np.cumsum(weights[moved]) <= amount]
            of_samples[moved] = taker
            by_node[giver] = by_node[giver][of_samples[by_node[giver]] == giver]
            by_node.pop(taker, None)
            total = int(weights[moved].sum())
            load[giver] -= total
            load[taker] += total
            locality.reads[taker, shard] = True
    return of_samples


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
    position = 0
    while loads[giver] > limit:
        # One sample that is a little longer than the excess is better than many short ones.
        position = max(position, int(np.searchsorted(shortness, -2 * (loads[giver] - limit))))
        if position == len(own):
            return
        sample, position = own[position], position + 1
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
