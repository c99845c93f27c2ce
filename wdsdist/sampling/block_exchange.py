"""The exchange of a block's samples between nodes, so that all have about as many of each category. Pure.

A node reads a few shards of others, as far as possible the same ones in each block of a shuffle window, and takes
samples of those shards alone. Nodes stand in rings, in which each takes from the next one. What a node lacks may come
from any other, through those between them: each gives samples of its own in place of those that it gets. Categories are
buckets, and strata of these by length, of which there are more the longer and the shorter lengths are: there ranks
differ the most.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, radix_order
from wdsdist.sampling.block_deal import Locality
from wdsdist.sampling.permutation import mix_key, mix_keys, shuffled

_OPENED = 0.09
"""Shards of other nodes that a node reads, over its own."""

_MOST_RINGS = 8
_TOTAL = 0.3
"""How much the excess of a whole bucket counts, beside the most that any of its strata does."""

_ROUNDS = 200
"""Steps of the search for flows; with more, ranks get hardly closer to their mean."""

_AT_ONCE = 1 << 17
"""Flows that are sought together: memory grows with them."""

Floats = npt.NDArray[np.float64]


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


def exchange(
    locality: Locality, owners: Int64s, buckets: Int64s, strata: Int64s, costs: Floats, shards: Int64s
) -> Int64s:
    """Balance samples over nodes; return the rank of each: its owner, or where it moves, the first of another node.

    Nodes then have their share of each stratum of each bucket, as nearly as it can be, and of each bucket exactly
    where it is in many shards.

    Args:
        locality: the nodes; shards that are opened are noted there.
        owners: int64 [n].
        buckets, strata: int64 [n], numbered from 0.
        costs: float64 [n]; they say how uneven the steps of each stratum are.
        shards: int64 [n], as ``locality`` numbers them.
    """
    nodes, ranks = locality.nodes[owners], owners.copy()
    rings = _open(locality, nodes, shards)
    ring_of = _ring_of_each(locality.reads, rings, nodes, shards)
    sizes, each = np.bincount(locality.nodes), int(strata.max()) + 1
    firsts = np.cumsum(sizes) - sizes
    at_once = max(1, _AT_ONCE // (len(rings) * len(sizes) * each))
    for first in range(0, int(buckets.max()) + 1, at_once):
        chosen = np.flatnonzero(buckets // at_once == first // at_once)
        width = (min(first + at_once, int(buckets.max()) + 1) - first) * each
        cells = (nodes[chosen] * width) + (buckets[chosen] - first) * each + strata[chosen]
        counts = np.bincount(cells, minlength=len(sizes) * width).reshape(len(sizes), -1, each)
        # Rounded such that strata sum to their bucket's share.
        goals = np.cumsum(sizes)[:, None] * np.cumsum(counts.sum(axis=0)) // len(locality.nodes)
        goals = np.diff(np.diff(goals, axis=0, prepend=0), axis=1, prepend=0).reshape(counts.shape)
        pools = np.stack(
            [np.bincount(cells[ring_of[chosen] == number], minlength=counts.size) for number in range(len(rings))]
        ).reshape(-1, *counts.shape)
        total: Floats = np.bincount(cells % width, costs[chosen], width).astype(np.float64).reshape(-1, each)
        flows = _level(counts, goals, _weights(counts.sum(axis=0), total), rings, pools)
        _settle(_left(counts - goals, rings, flows), flows[0], pools[0])
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
    opened, rings, taken = int(_OPENED * usual.sum()), [], np.zeros(reads.shape[1], np.bool_)
    if opened < len(reads):  # what is read by several nodes anyway is exchanged nevertheless
        return [_Ring.of(len(reads), len(reads), 0)]
    for number in range(min(_MOST_RINGS, -(-opened // len(reads)))):
        ring = _Ring.of(len(reads), min(len(reads), opened - number * len(reads)), number)
        for taker in np.flatnonzero(ring.givers != np.arange(len(reads))).tolist():
            found = np.flatnonzero(usual[ring.givers[taker]] & ~reads[taker] & ~taken)
            if len(found):
                drawn = mix_keys(mix_key(number, taker), locality.names[found])
                shard = found[np.argmin(drawn)]
                reads[taker, shard] = taken[shard] = True
        rings.append(ring)
    return rings


def _ring_of_each(reads: npt.NDArray[np.bool_], rings: list[_Ring], nodes: Int64s, shards: Int64s) -> Int64s:
    """Return for each sample one of the rings in which another node may take it, or -1."""
    found, ways = np.full(len(nodes), -1), np.zeros(len(nodes), np.int64)
    for number, ring in enumerate(rings):
        takers = ring.takers[nodes]
        may = reads[takers, shards] & (takers != nodes)
        ways += may
        found[may & (ways == 1)] = number
        again = np.flatnonzero(may & (ways > 1))  # which of several: at random, not lane by lane
        found[again[mix_keys(number, again) % ways[again].astype(np.uint64) == 0]] = number
    return found


def _left(excess: Int64s | Floats, rings: list[_Ring], flows: Floats | Int64s) -> Floats:
    """Return [nodes, categories]: the excess that flows leave."""
    left = excess.astype(np.float64)
    for flow, ring in zip(flows, rings, strict=True):
        left += flow[ring.givers] - flow
    return left


def _weights(counts: Int64s, costs: Floats) -> Floats:
    """Return [buckets, strata]: how uneven steps become by a sample too many below the upper bound of a stratum."""
    means = costs / np.maximum(counts, 1)
    rise = np.abs(np.diff(means, axis=1)) / np.maximum((means[:, 1:] + means[:, :-1]) / 2, 1e-9)
    inner = rise / np.sqrt(np.maximum((counts[:, 1:] + counts[:, :-1]) / 2, 1))
    most = np.maximum(inner.max(axis=1, initial=0, keepdims=True), 1e-9)
    found: Floats = np.concatenate((np.maximum(inner, most / 1000), most * _TOTAL), axis=1) / most
    return found


def _level(counts: Int64s, goals: Int64s, weights: Floats, rings: list[_Ring], pools: Int64s) -> Int64s:
    """Return int64 [rings, nodes, buckets, strata]: how many of its samples each node gives in each ring.

    What counts of each bound of strata is how many samples too many a node has below it. Their weighted least squares
    are found by accelerated projected gradients, of operations alone that are the same on every machine.
    """
    excess, squares = (counts - goals).astype(np.float64), weights**2
    # No step is longer than the inverse of the trace of the second derivatives.
    scale = 1 / (4 * len(rings) * np.cumsum(squares * np.arange(1, squares.shape[1] + 1), axis=1)[:, -1:])
    flows = after = pools / 2  # so that less may be given as well as more
    momentum = 1.0
    for _ in range(_ROUNDS):
        below = np.cumsum(_left(excess, rings, after), axis=2) * squares
        pull = np.cumsum(below[..., ::-1], axis=2)[..., ::-1] * scale
        found = np.clip(after + np.stack([pull - pull[ring.takers] for ring in rings]), 0, pools)
        if _total((after - found) * (found - flows)) > 0:  # the momentum leads astray
            momentum = 1.0
        faster = (1 + math.sqrt(1 + 4 * momentum * momentum)) / 2  # not by powers, which C libraries round as they like
        flows, after, momentum = found, found + (momentum - 1) / faster * (found - flows), faster
    # Rounded such that what is given below each bound is.
    given = np.rint(np.cumsum(flows, axis=3))
    return np.diff(given, axis=3, prepend=0).astype(np.int64)


def _total(values: Floats) -> float:
    """Return the sum of values one by one: the order in which ``sum`` adds them may differ between machines."""
    return float(np.cumsum(values)[-1])


def _settle(left: Floats, flow: Int64s, pool: Int64s) -> None:
    """Change the flow in the first ring such that no node has any excess of a bucket, where there is enough to move."""
    strata = pool.shape[2]
    from_the_middle = np.argsort(np.abs(2 * np.arange(strata) + 1 - strata), kind="stable").tolist()
    for bucket in range(pool.shape[1]):
        more = -np.cumsum(np.roll(left[:, bucket].sum(axis=1), 1)).astype(np.int64)
        room, changed = pool[:, bucket], flow[:, bucket].copy()
        # The same for all may go round the ring.
        least, most = -changed.sum(axis=1) - more, (room - changed).sum(axis=1) - more
        more += min(max(-int(np.median(more)), int(least.max())), int(most.min()))
        for stratum in from_the_middle:
            found = np.clip(changed[:, stratum] + more, 0, room[:, stratum])
            more -= found - changed[:, stratum]
            changed[:, stratum] = found
        if not more.any():
            flow[:, bucket] = changed
