"""The exchange of a block's samples between nodes, so that all have about as many of each category. Pure.

A node reads a few shards of others, as far as possible the same ones in each block of a shuffle window, and takes
samples of those shards alone. Nodes stand in rings, in which each takes from the next one. What a node lacks may come
from any other, through those between them: each gives samples of its own in place of those that it gets. The excess of
each category is spread over neighbours, round by round, until it is level.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, radix_order
from wdsdist.sampling.block_deal import Locality
from wdsdist.sampling.permutation import mix_key, mix_keys, shuffled

_OPENED = 0.09
"""Shards of other nodes that a node reads, over its own."""

_MOST_RINGS = 8
_TOTAL = 3
"""How much more the excess of a whole bucket counts, which batches cannot hold, than that of its strata."""

_ROUNDS = 200
_STILL = 0.02
"""Samples that flow in a round by which the last one is known."""

_AT_ONCE = 64
"""Categories that are levelled together: memory grows with them."""


class _Ring(NamedTuple):
    """A ring of nodes: int64 [nodes] each; a node that is not in the ring takes from itself."""

    givers: Int64s
    """The node that each may take from."""
    takers: Int64s

    @classmethod
    def of(cls, nodes: int, members: int, number: int) -> _Ring:
        """Return a ring of some nodes, spread over all; the first is in order, others at random."""
        order = shuffled(nodes, mix_key(number)) if number else np.arange(nodes)
        order = order[(order + 1) * members // nodes > order * members // nodes]
        givers, takers = np.arange(nodes), np.arange(nodes)
        givers[order], takers[order] = np.roll(order, -1), np.roll(order, 1)
        return cls(givers, takers)


def exchange(locality: Locality, owners: Int64s, buckets: Int64s, strata: Int64s, shards: Int64s) -> Int64s:
    """Balance samples over nodes; return the rank of each: its owner, or where it moves, the first of another node.

    Nodes then have their share of each stratum of each bucket, as nearly as it can be, and of each bucket exactly
    where it is in many shards.

    Args:
        locality: the nodes; shards that are opened are noted there.
        owners: int64 [n].
        buckets, strata, shards: int64 [n], numbered from 0; shards as ``locality`` numbers them.
    """
    nodes, ranks = locality.nodes[owners], owners.copy()
    rings = _open(locality, nodes, shards)
    ring_of = _ring_of_each(locality.reads, rings, nodes, shards)
    sizes, each = np.bincount(locality.nodes), int(strata.max()) + 1
    firsts = np.cumsum(sizes) - sizes
    at_once = max(1, _AT_ONCE // each)
    for first in range(0, int(buckets.max()) + 1, at_once):
        chosen = np.flatnonzero(buckets // at_once == first // at_once)
        width = (min(first + at_once, int(buckets.max()) + 1) - first) * each
        cells = (nodes[chosen] * width) + (buckets[chosen] - first) * each + strata[chosen]
        counts = np.bincount(cells, minlength=len(sizes) * width).reshape(-1, width)
        # Rounded such that strata sum to their bucket's share.
        goals = np.cumsum(sizes)[:, None] * np.cumsum(counts.sum(axis=0)) // len(locality.nodes)
        goals = np.diff(np.diff(goals, axis=0, prepend=0), axis=1, prepend=0)
        pools = np.stack(
            [np.bincount(cells[ring_of[chosen] == number], minlength=counts.size) for number in range(len(rings))]
        ).reshape(-1, *counts.shape)
        flows = _level(counts, goals, rings, pools, each)
        _settle(_left(counts - goals, rings, flows), flows[0], pools[0], each)
        for number, ring in enumerate(rings):
            here = np.flatnonzero(ring_of[chosen] == number)
            here = here[radix_order(cells[here])]
            own = cells[here]
            moved = chosen[here[np.arange(len(own)) - np.searchsorted(own, own) < flows[number].ravel()[own]]]
            ranks[moved] = firsts[ring.takers[nodes[moved]]]
    return ranks


def _open(locality: Locality, nodes: Int64s, shards: Int64s) -> list[_Ring]:
    """Open shards of other nodes, all alike, and return the rings in which nodes take from them."""
    reads = locality.reads
    has = np.bincount(nodes * reads.shape[1] + shards, minlength=reads.size).reshape(reads.shape)
    # A shard of which a node has a few samples in this block is not there in the next one.
    usual = has * 2 > has.max(axis=1, keepdims=True)
    opened, rings = int(_OPENED * usual.sum()), []
    if opened < len(reads):  # what is read by several nodes anyway is exchanged nevertheless
        return [_Ring.of(len(reads), len(reads), 0)]
    for number in range(min(_MOST_RINGS, -(-opened // len(reads)))):
        ring = _Ring.of(len(reads), min(len(reads), opened - number * len(reads)), number)
        for taker in np.flatnonzero(ring.givers != np.arange(len(reads))).tolist():
            found = np.flatnonzero(usual[ring.givers[taker]] & ~reads[taker])
            if len(found):
                drawn = mix_keys(mix_key(number, taker), locality.names[found])
                reads[taker, found[np.argmin(drawn)]] = True
        rings.append(ring)
    return rings


def _ring_of_each(reads: npt.NDArray[np.bool_], rings: list[_Ring], nodes: Int64s, shards: Int64s) -> Int64s:
    """Return for each sample one of the rings in which another node may take it, or -1."""
    found, ways = np.full(len(nodes), -1), np.zeros(len(nodes), np.int64)
    turns = np.arange(len(nodes)) // 2
    for number, ring in enumerate(rings):
        takers = ring.takers[nodes]
        may = reads[takers, shards] & (takers != nodes)
        ways += may
        found[may & (turns % np.maximum(ways, 1) == 0)] = number
    return found


def _left(excess: Int64s, rings: list[_Ring], flows: npt.NDArray[np.float64] | Int64s) -> npt.NDArray[np.float64]:
    """Return [nodes, categories]: the excess that flows leave."""
    left = excess.astype(np.float64)
    for flow, ring in zip(flows, rings, strict=True):
        left += flow[ring.givers] - flow
    return left


def _level(counts: Int64s, goals: Int64s, rings: list[_Ring], pools: Int64s, each: int) -> Int64s:
    """Return int64 [rings, nodes, categories]: how many of its samples each node gives in each ring."""
    flows = np.minimum(pools / 2, 2 * np.sqrt(np.maximum(goals, 0)))  # so that less may be given as well as more
    step = 1 / (2 * len(rings) + 1) / (1 + _TOTAL)
    for _ in range(_ROUNDS):
        before, left = flows, _left(counts - goals, rings, flows)
        left += _TOTAL * np.repeat(left.reshape(len(left), -1, each).mean(axis=2), each, axis=1)
        more = np.stack([left - left[ring.takers] for ring in rings])
        flows = np.clip(before + step * more, 0, pools)
        if np.abs(flows - before).max(initial=0) < _STILL:
            break
    found: Int64s = np.rint(flows).astype(np.int64)
    return found


def _settle(left: npt.NDArray[np.float64], flow: Int64s, pool: Int64s, strata: int) -> None:
    """Change the flow in the first ring such that no node has any excess of a bucket, where there is enough to move."""
    for first in range(0, left.shape[1], strata):
        part = slice(first, first + strata)
        more = -np.cumsum(np.roll(left[:, part].sum(axis=1), 1)).astype(np.int64)
        # The same for all may go round the ring.
        least, most = -flow[:, part].sum(axis=1) - more, (pool - flow)[:, part].sum(axis=1) - more
        more += min(max(-int(np.median(more)), int(least.max())), int(most.min()))
        changed = flow[:, part].copy()
        for category, room in enumerate(pool[:, part].T):
            found = np.clip(changed[:, category] + more, 0, room)
            more -= found - changed[:, category]
            changed[:, category] = found
        if not more.any():
            flow[:, part] = changed
