"""The order of a mix: several data sets interleaved by weight, each repeated epoch after epoch in its own order.

Which data set, or *stream*, each position takes is arithmetic. The weights make a binary tree; its leaves are the
streams. Each inner node splits a sequence of places into two by an exact fraction, the share of its left child. A node
computes how many places before place ``i`` go left without walking there, so any position is found at once as (stream,
number within what the stream gives to the epoch).

Places lie in rows of ``C`` lanes, as the positions of `wdsdist.sampling.order` do, and a split keeps the lane of each
place: a rank that strides over the positions strides over each stream too. With the share ``p / q``, lane ``l`` sends
``floor((n * p + phase[l]) / q)`` of its first ``n`` places to the left, so any run of a lane has that share to within
one place. The phases of the lanes are ``q / C`` apart; by Hermite's identity,
``sum_k floor(x + k / C) = floor(C * x)``, any run of whole rows then has the share to within one place as well. The
places below the last whole row, fewer than ``C``, are one sequence of their own.

An example: 7 places in ``C = 2`` lanes, share 1/2, phases 0 and 1. Three rows are whole. Lane 0 sends
``floor(n / 2)`` of its first ``n`` places to the left, so the place of row 1; lane 1 sends ``floor((n + 1) / 2)``, so
the places of rows 0 and 2. ::

    place    0  1 | 2  3 | 4  5 | 6        left:   row 0 is places 2 1, and place 5 follows as number 2
    goes to  R  L | L  R | R  L | R        right:  row 0 is places 0 3, then place 4 as number 2, place 6 as number 3

Sources: C. Hermite (1884) for the identity; D. A. Huffman (1952) for the tree.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, distinct
from wdsdist._util.validation import check_integer
from wdsdist.sampling.order import OrderSettings, VirtualOrder
from wdsdist.sampling.permutation import mix_key

# Distinct words keep the hashes for phases and for rotations apart.
_PHASES, _ROTATIONS = 4, 5

_FINEST = 2**31 - 1
"""The largest denominator of a fork's share: products of two of them are exact in 64 bits."""

_GOLDEN = (5**0.5 - 1) / 2


class MixOrder:
    """One epoch of a mix. A data set goes on from its position at the end of the epoch before.

    Memory grows with the shards of the data sets and with the lanes; time grows, besides, with the number of epochs of
    the data sets among the positions that are asked for.

    Args:
        deal: of the epoch.
        counts: int64 [shards] for each data set, whose shards lie one after another on one line: samples in each shard.
        settings: of the own order of each data set.
    """

    def __init__(self, deal: Deal, counts: Sequence[Int64s], settings: Sequence[OrderSettings]) -> None:
        self.num_samples, self._deal = deal.num_samples, deal
        self._parts = [VirtualOrder(*part) for part in zip(counts, settings, deal.starts, deal.counts, strict=True)]
        self._first_shards = np.cumsum([0, *map(len, counts)])

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        streams, numbers = self._deal.locate(positions)
        located = np.empty((3, *positions.shape), np.int64)
        for stream in distinct(streams).tolist():
            own = streams == stream
            located[:, own] = self._parts[stream].locate(numbers[own])
            located[0, own] += self._first_shards[stream]
        return located[0], located[1], located[2]


@dataclass(eq=False)
class Deal:
    """The interleaving of one epoch: the stream, and the number within it, at each position.

    Stream ``k`` gives the samples ``starts[k]`` to ``starts[k] + counts[k]`` of its endless line to the epoch: it goes
    on where it stood at the end of the epoch before.

    >>> deal = Deal([Fraction(3), Fraction(1)], num_samples=8, lanes=1, seed=0, epoch=0)
    >>> deal.counts
    [6, 2]
    >>> streams, numbers = deal.locate(np.arange(8))
    >>> [numbers[streams == stream].tolist() for stream in (0, 1)]
    [[0, 1, 2, 3, 4, 5], [0, 1]]
    """

    weights: Sequence[Fraction]
    """The share of each stream; they need not sum to 1."""
    _: KW_ONLY
    num_samples: int
    """The positions in an epoch."""
    lanes: int
    """How many positions make a row."""
    seed: int
    """Decides the phases of the lanes."""
    epoch: int

    def __post_init__(self) -> None:
        start = check_integer("epoch", self.epoch, 0, 2**63 - 1) * self.num_samples
        seed, weights = self.seed, self.weights
        # Nodes are the streams, then the forks, of which the root is the last. A fork divides what its parent gives it:
        # the places before the epoch, those in it, and the path that leads there.
        forks = list(enumerate(_forks(weights), len(weights)))
        given: dict[int, tuple[int, int, tuple[int, ...]]] = {
            len(weights) + len(forks) - 1: (start, self.num_samples, ())
        }
        self._splits: dict[int, tuple[_Split, int, int]] = {}
        for node, (share, left, right) in reversed(forks):
            start, count, path = given.pop(node)
            key, (numerator, denominator) = mix_key(seed, *path), share.as_integer_ratio()
            # The places before the epoch that go left, and the phase that goes on with.
            before, phase = divmod(start * numerator + mix_key(key, _PHASES) % denominator, denominator)
            split = _Split(share, phase, count, _lane_order(self.lanes, len(path) + 1, mix_key(key, _ROTATIONS)))
            given[left] = before, split.left_count, (*path, 0)
            given[right] = start - before, count - split.left_count, (*path, 1)
            self._splits[node] = split, left, right
        self.starts = [given[stream][0] for stream in range(len(weights))]
        self.counts = [given[stream][1] for stream in range(len(weights))]

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Return, for each position, its stream and its number within that stream, from 0."""
        streams = np.zeros(positions.shape, np.int64)
        numbers = positions.copy()
        chosen = {len(self.starts) + len(self._splits) - 1: np.arange(len(positions))}  # by node
        for node, (split, left, right) in self._splits.items():
            own = chosen.pop(node)
            goes_left, numbers[own] = split.split(numbers[own])
            chosen[left], chosen[right] = own[goes_left], own[~goes_left]
        for stream, own in chosen.items():
            streams[own] = stream
        return streams, numbers


class _Split:
    """One inner node of the tree in one epoch: which of its places go left, and the number of each on its side.

    Args:
        share: of the left side.
        phase: of the places below the last whole row, in ``range(denominator)``.
        count: places.
        lane_order: int64 [lanes]: the order in which lanes take turns.

    >>> split = _Split(Fraction(1, 2), 0, 7, np.array([0, 1]))  # the example above
    >>> goes_left, numbers = split.split(np.arange(7))
    >>> goes_left.astype(int).tolist(), numbers.tolist()
    ([0, 1, 1, 0, 0, 1, 0], [0, 1, 0, 1, 2, 2, 3])
    """

    def __init__(self, share: Fraction, phase: int, count: int, lane_order: Int64s) -> None:
        self._numerator, self._denominator = share.as_integer_ratio()
        self._tail_phase = phase
        self.left_count = (count * self._numerator + phase) // self._denominator
        """Places that go left."""
        lanes = len(lane_order)
        self._rows = count // lanes
        self._lane_phases = (lane_order * self._denominator + phase) // lanes
        sent_left = _taken(np.int64(self._rows), self._numerator, self._denominator, self._lane_phases)
        # For left and right: the rows there to which every lane has sent a place. Lanes that send one place more than
        # others do not fill a row: these places are numbered one after another.
        whole = int(sent_left.min())
        one_more = sent_left > whole
        self._whole_rows = whole, self._rows - whole - 1
        self._rank_after = np.cumsum(one_more) - 1, np.cumsum(~one_more) - 1

    def split(self, places: Int64s) -> tuple[npt.NDArray[np.bool_], Int64s]:
        """Return which places go left, and the number of each among the places of its side."""
        lanes = len(self._lane_phases)
        row, lane = np.divmod(places, lanes)
        in_rows = row < self._rows
        # A lane counts its own places, which are the rows; the places below whole rows are counted all together.
        step = np.where(in_rows, row, places)
        phase = np.where(in_rows, self._lane_phases[lane], self._tail_phase)
        left_before = _taken(step, self._numerator, self._denominator, phase)
        goes_left = _taken(step + 1, self._numerator, self._denominator, phase) > left_before
        own_row = np.where(goes_left, left_before, step - left_before)
        whole_rows = np.where(goes_left, *self._whole_rows)
        rank_after = np.where(goes_left, *(ranks[lane] for ranks in self._rank_after))
        in_order = own_row * lanes + np.where(own_row == whole_rows, rank_after, lane)
        return goes_left, np.where(in_rows, in_order, own_row)


def _taken(places: Int64s | np.int64, numerator: int, denominator: int, phase: Int64s | int) -> Int64s:
    """Return ``floor((places * numerator + phase) / denominator)``, without a product that 64 bits do not hold."""
    whole, rest = np.divmod(places, denominator)
    return np.asarray(whole * numerator + (rest * numerator + phase) // denominator, np.int64)


def _forks(weights: Sequence[Fraction]) -> list[tuple[Fraction, int, int]]:
    """Return the inner nodes of the Huffman tree of the weights: the share of the left child, left and right child.

    The fewer splits above a stream, the more exact its share of a batch. Nodes are numbered behind the streams.
    """
    heap = [(weight, stream) for stream, weight in enumerate(weights)]
    heapq.heapify(heap)
    forks: list[tuple[Fraction, int, int]] = []
    while len(heap) > 1:
        (light, left), (heavy, right) = heapq.heappop(heap), heapq.heappop(heap)
        forks.append(((light / (light + heavy)).limit_denominator(_FINEST), left, right))
        heapq.heappush(heap, (light + heavy, len(weights) + len(forks) - 1))
    return forks


def _lane_order(lanes: int, depth: int, rotation: int) -> Int64s:
    """Return a permutation of the lanes under which neighbours, and lanes of equal distance, are spread evenly.

    Multiples of a step near the golden section spread any run of neighbours; because the step and the number of lanes
    have no common divisor, the lanes of a rank, which lie a world size apart, are spread evenly too. Each depth of the
    tree has another power of the step, so that forks do not take turns in step.
    """
    near = round(lanes * _GOLDEN)
    step = min((n for n in range(1, lanes + 1) if math.gcd(n, lanes) == 1), key=lambda n: abs(n - near))
    factor = pow(step, depth, lanes)
    return (np.arange(lanes, dtype=np.int64) * factor + rotation % lanes) % lanes
