"""Which of several streams each position of a mix takes, by weight: arithmetic, like all else about positions.

A mix is dealt by a tree of forks, each of which splits a line of places into two by an exact fraction ``a / b``; its
leaves are the streams. A fork over the places ``i`` of an epoch knows, without walking there, how many places before
``i`` go left; so a place is found at once as (stream, number within what the stream gives to the epoch).

Places lie in rows of ``C`` lanes, as positions do, and a fork keeps the lane of each place, so that whoever strides
over the positions strides over each stream too. Lane ``l`` sends ``floor(n * a / b + phase_l)`` of its first ``n``
places to the left: any run of them has the share ``a / b``, to within one. The phases are ``1 / C`` apart; by
Hermite's identity, ``sum_k floor(x + k / C) = floor(C * x)``, any run of whole rows then has that share to within
one as well. What is left below whole rows, fewer than ``C`` places, is one sequence of its own.

Sources: C. Hermite (1884) for the identity; D. A. Huffman (1952) for the tree.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.sampling.permutation import mix_key, mix_keys, permute

# Distinct words keep the hashes for phases, for rotations and for scattered places apart.
_PHASES, _ROTATIONS, _PLACES = 4, 5, 6

_FINEST = 2**31 - 1
"""The largest denominator of a fork's share: products of two of them are exact in 64 bits."""

_SCATTER = 1024
"""Places of a lane that are scattered together."""

_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class _Fork:
    """A node of the tree: ``share`` of its places go left."""

    share: Fraction
    left: _Fork | int
    right: _Fork | int


class Deal:
    """One epoch of a mix, dealt to its streams.

    Stream ``k`` gives the samples ``starts[k]`` to ``starts[k] + counts[k]`` of its endless line to the epoch: it goes
    on where it stood at the end of the epoch before.

    Args:
        weights: the share of each stream, above 0; they need not sum to 1.
        num_samples: the positions in an epoch.
        lanes: how many positions make a row.
        seed: decides the phases of the lanes.
        epoch: which epoch.
        stratified: whether places keep their even spread, or are scattered within blocks of 1,024 of a lane.

    >>> deal = Deal([Fraction(3), Fraction(1)], num_samples=8, lanes=1, seed=0, epoch=0)
    >>> deal.counts
    [6, 2]
    >>> streams, numbers = deal.locate(np.arange(8))
    >>> [numbers[streams == stream].tolist() for stream in (0, 1)]
    [[0, 1, 2, 3, 4, 5], [0, 1]]
    """

    def __init__(
        self,
        weights: Sequence[Fraction],
        *,
        num_samples: int,
        lanes: int,
        seed: int,
        epoch: int,
        stratified: bool = True,
    ) -> None:
        self.num_samples = num_samples
        self.lanes = lanes
        self.starts = [0] * len(weights)
        self.counts = [0] * len(weights)
        self._scatter_key = None if stratified else mix_key(seed, epoch, _PLACES)
        self._tree = self._grown(_tree(weights), epoch * num_samples, num_samples, [], seed)

    def _grown(self, node: _Fork | int, start: int, count: int, path: list[int], seed: int) -> _Split | int:
        """Lay out a node for this epoch: its places before the epoch, and in it."""
        if isinstance(node, int):
            self.starts[node], self.counts[node] = start, count
            return node
        a, b = node.share.as_integer_ratio()
        key = mix_key(seed, *path)
        before, phase = divmod(start * a + mix_key(key, _PHASES) % b, b)
        split = _Split.of(a, b, phase, count, _lane_order(self.lanes, len(path) + 1, mix_key(key, _ROTATIONS)))
        for side, child, first, size in (
            (0, node.left, before, split.left_count),
            (1, node.right, start - before, count - split.left_count),
        ):
            split.children.append(self._grown(child, first, size, [*path, side], seed))
        return split

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Return, for each position, its stream and its number, from 0, within what that stream gives."""
        streams = np.zeros(positions.shape, np.int64)
        numbers = positions if self._scatter_key is None else self._scattered(positions, self._scatter_key)
        numbers = numbers.copy()
        waiting = [(self._tree, np.arange(len(positions)))]
        while waiting:
            node, chosen = waiting.pop()
            if isinstance(node, int):
                streams[chosen] = node
                continue
            goes_left, numbers[chosen] = node.split(numbers[chosen])
            waiting += zip(node.children, (chosen[goes_left], chosen[~goes_left]), strict=True)
        return streams, numbers

    def _scattered(self, positions: Int64s, key: int) -> Int64s:
        """Move places at random within the blocks of their lanes; what is below whole rows stays."""
        row, lane = np.divmod(positions, self.lanes)
        rows = self.num_samples // self.lanes
        first = row // _SCATTER * _SCATTER
        in_rows = row < rows
        size = np.where(in_rows, np.minimum(_SCATTER, rows - first), row - first + 1)
        moved = first + permute(row - first, size, mix_keys(key, lane, first))
        return np.where(in_rows, moved, row) * self.lanes + lane


@dataclass(frozen=True, slots=True)
class _Split:
    """A fork in one epoch."""

    a: int
    b: int
    phase: int
    """Of the places below whole rows, in ``range(b)``."""
    left_count: int
    """Places that go left."""
    rows: int
    """Whole rows among the places."""
    phases: Int64s
    """int64 [lanes]: of each lane, in ``range(b)``."""
    levels: tuple[int, int]
    """For left and right: the whole rows that the rows of this node make there."""
    ranks: tuple[Int64s, Int64s]
    """int64 [lanes], for left and right: which place after those rows a lane's last place takes."""
    children: list[_Split | int]

    @classmethod
    def of(cls, a: int, b: int, phase: int, count: int, lane_order: Int64s) -> _Split:
        """Split ``count`` places; ``lane_order`` says in which order lanes take turns."""
        lanes = len(lane_order)
        rows = count // lanes
        phases = (lane_order * b + phase) // lanes
        ends = _taken(np.int64(rows), a, b, phases)
        level = int(ends.min())
        # The lanes that go left once more than others form no row: their places are numbered one after another.
        more = ends > level
        return cls(
            a,
            b,
            phase,
            (count * a + phase) // b,
            rows,
            phases,
            (level, rows - level - 1),
            (np.cumsum(more) - 1, np.cumsum(~more) - 1),
            [],
        )

    def split(self, places: Int64s) -> tuple[npt.NDArray[np.bool_], Int64s]:
        """Return which places go left, and the number of each among the places of its side."""
        row, lane = np.divmod(places, len(self.phases))
        in_rows = row < self.rows
        step = np.where(in_rows, row, places)
        phase = np.where(in_rows, self.phases[lane], self.phase)
        before = _taken(step, self.a, self.b, phase)
        goes_left = _taken(step + 1, self.a, self.b, phase) > before
        own = np.where(goes_left, before, step - before)
        level = np.where(goes_left, *self.levels)
        rank = np.where(goes_left, *(ranks[lane] for ranks in self.ranks))
        in_order = own * len(self.phases) + np.where(own == level, rank, lane)
        return goes_left, np.where(in_rows, in_order, own)


def _taken(places: Int64s | np.int64, a: int, b: int, phase: Int64s | int) -> Int64s:
    """Return ``floor((places * a + phase) / b)``, without a product that 64 bits do not hold."""
    whole, rest = np.divmod(places, b)
    return np.asarray(whole * a + (rest * a + phase) // b, np.int64)


def _tree(weights: Sequence[Fraction]) -> _Fork | int:
    """Join the two lightest again and again: the fewer forks above a stream, the more exact its share of a batch."""
    heap: list[tuple[Fraction, int, _Fork | int]] = [(weight, k, k) for k, weight in enumerate(weights)]
    heapq.heapify(heap)
    for number in range(len(weights), 2 * len(weights) - 1):
        light, _, left = heapq.heappop(heap)
        heavy, _, right = heapq.heappop(heap)
        share = (light / (light + heavy)).limit_denominator(_FINEST)
        heapq.heappush(heap, (light + heavy, number, _Fork(share, left, right)))
    return heap[0][2]


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
