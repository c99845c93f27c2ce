"""The windows of a lane: the samples that are shuffled together, and how they begin where shards are far away. Pure.

Up to version 2 of the order, windows grow fourfold from the longest run of samples from one shard, so that the first
batch needs one shard; it mixes badly. In version 3 all windows are full, so that the first batch may need any of their
shards, each of them somewhere else. Since version 4 the first window is read in *blocks*: some samples that follow one
another, of which there are `_BLOCKS` or more, in random order. Its first 1/64 is shuffled by itself, then what follows
up to 1/16, up to 1/4, and the rest. So the first batches have samples of all its shards, and need a few ranges of bytes
of them, which serve several batches.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.sampling.permutation import mix_keys, permute

_GROWTH = 4
"""Times by which a window is larger than the one before it, at the start of a lane, up to version 2."""

_BLOCKS = 2048
"""Blocks of a first window, at least: the first 1/64 of it takes samples from so many places as half of a batch."""

_STRATA = 6, 4, 2
"""Binary logarithms of the shares of its blocks at which the first window is cut."""


class LaneWindows:
    """The windows of all lanes of an epoch's order.

    Args:
        ends: int64 [pieces]: one past the last sample of each piece of a shard, on the line of all samples.
        lane_starts: int64 [lanes + 1]: the samples on the line at which lanes begin, and where the last one ends.
        window: the most samples that are shuffled together.
        version: of the order.
        in_blocks: whether the first window is read in blocks, since version 4.
        key: for the order of the blocks.
    """

    def __init__(
        self, ends: Int64s, lane_starts: Int64s, window: int, *, version: int, in_blocks: bool, key: int
    ) -> None:
        self._lengths = np.diff(lane_starts)
        self._window = window
        self.first_piece = np.zeros(len(self._lengths), np.int64)
        """int64 [lanes]: the offset in each lane of the sample that is read as if the lane began there."""
        self._first = np.full(len(self._lengths), window)
        if version < 3:
            self.first_piece, self._first = _longest_pieces(ends, lane_starts)
        # The last two windows share what is left for them, for a short last one would mix worse than the others.
        full, rest = np.divmod(self._lengths, window)
        self._tail = np.where((full > 0) & (rest > 0) & (version > 3), (full - 1) * window, self._lengths)
        self._last = (self._tail + self._lengths + 1) // 2
        self._key = key
        self._version = version
        self._size = np.maximum(1, np.where(self._tail == 0, self._last, np.minimum(window, self._lengths)))
        self._block = np.maximum(1, self._size // _BLOCKS) if in_blocks and version > 3 else None

    def find(self, lane: Int64s, offset: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the number, the start and the size of the window, or part of one, that holds each offset of a lane."""
        number, begin, size = _growing(offset, self._first[lane], self._window, self._lengths[lane])
        tail, last = self._tail[lane], self._last[lane]
        is_last, is_next = offset >= last, (offset >= tail) & (offset < last)
        number = number + (is_last & (number * self._window < last))
        begin = np.where(is_last, last, begin)
        size = np.where(is_last, self._lengths[lane] - last, np.where(is_next, last - tail, size))
        if self._block is None:
            return number, begin, size
        sizes, block = self._size[lane], self._block[lane]
        cuts = np.stack([(sizes // block >> share) * block for share in _STRATA])
        stratum = (offset >= cuts).sum(axis=0)
        edges = np.concatenate((np.zeros_like(cuts[:1]), cuts, size[None]))
        begins, ends = (np.take_along_axis(edges, stratum[None] + step, axis=0)[0] for step in (0, 1))
        is_first = number == 0
        return (
            np.where(is_first, stratum, number + len(_STRATA)),
            np.where(is_first, begins, begin),
            np.where(is_first, ends - begins, size),
        )

    def places(self, lane: Int64s, offset: Int64s) -> Int64s:
        """Return the place in its lane of each offset, by which windows are cut: the first one is read in blocks."""
        if self._block is None:
            return (offset + self.first_piece[lane]) % self._lengths[lane]
        found = offset.copy()
        inside = np.flatnonzero(offset < self._size[lane])
        lane, offset = lane[inside], offset[inside]
        size, block = self._size[lane], self._block[lane]
        number, within = np.divmod(offset, block)
        # What is left beyond whole blocks stays behind them; turned, that it is not the same samples in every epoch.
        whole = np.flatnonzero(number < size // block)
        number[whole] = permute(number[whole], (size // block)[whole], mix_keys(self._key, lane[whole]))
        turn = (mix_keys(self._key, lane, 1) >> np.uint64(1)).astype(np.int64)
        found[inside] = (number * block + within + turn % size) % size
        return found

    def begins(self, lane: int, together: int = 1) -> Int64s:
        """Return the offsets at which the windows of a lane begin, or some at once of those of full size.

        The first window counts as one, for most of its shards are needed from its start.
        """
        begin, size, length = 0, int(min(self._first[lane], self._window)), int(self._lengths[lane])
        ramp = []
        while begin < length and size < self._window:
            ramp.append(begin)
            begin, size = begin + size, size * _GROWTH
        regular = np.arange(begin, length, together * self._window)
        if len(regular) and regular[-1] > self._tail[lane]:
            regular[-1] = self._last[lane]
        return np.concatenate((ramp, regular)).astype(np.int64)

    def strata(self, lane: int) -> list[tuple[int, int, Int64s, Int64s]]:
        """Return the parts of a lane's first window that are permuted by themselves; none where it is permuted whole.

        Of each the first offset, one past the last, and the spans of the lane that its samples are from: int64 [spans],
        their first places and their last.
        """
        if self._block is None or not self._lengths[lane]:
            return []
        size, block = int(self._size[lane]), int(self._block[lane])
        cuts = np.unique([0, *((size // block >> share) * block for share in _STRATA), size]).tolist()
        found = []
        for begin, end in pairwise(cuts):
            offsets = np.arange(begin, end, block)
            lanes = np.full(len(offsets), lane)
            firsts = self.places(lanes, offsets)
            lasts = self.places(lanes, np.minimum(offsets + block, size) - 1)
            is_cut = firsts > lasts  # it goes on at the start of the window
            lasts, more = np.where(is_cut, size - 1, lasts), lasts[is_cut]
            found.append((begin, end, np.append(firsts, np.zeros_like(more)), np.append(lasts, more)))
        return found

    @property
    def opening(self) -> list[int]:
        """The offsets in each lane at which those strata end that come from few ranges of its first window, about.

        Since version 4. Records whose parts stay together are such ranges already.
        """
        if self._version < 4:
            return []
        size, block = int(self._size.min()), 1 if self._block is None else int(self._block.min())
        return [(size // block >> share) * block for share in _STRATA[:-1]]


def _longest_pieces(ends: Int64s, lane_starts: Int64s) -> tuple[Int64s, Int64s]:
    """Return, for each lane, the offset and the length of the longest run of samples from one shard.

    A lane that began with the last three samples of a shard would need a second shard for its first batch. Lanes
    are therefore rotated to begin with their longest piece.
    """
    cuts = np.unique(np.concatenate((lane_starts, ends)))
    lengths = np.diff(cuts, append=cuts[-1])
    first = np.zeros(len(lane_starts) - 1, np.int64)
    longest = np.zeros(len(lane_starts) - 1, np.int64)
    filled = np.flatnonzero(np.diff(lane_starts))  # lanes without a sample have no piece
    if len(filled):
        begin = np.searchsorted(cuts, lane_starts[filled])
        longest[filled] = np.maximum.reduceat(lengths, begin)
        lane_of_piece = np.searchsorted(lane_starts[filled], cuts[:-1], side="right") - 1
        is_longest = np.flatnonzero(lengths[:-1] == longest[filled][lane_of_piece])
        chosen = is_longest[np.unique(lane_of_piece[is_longest], return_index=True)[1]]
        first[filled] = cuts[chosen] - lane_starts[filled]
    return first, longest


def _growing(offset: Int64s, first: Int64s, window: int, length: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return the number, the start and the size of the window that holds each offset of a lane.

    The first window has ``first`` samples, and each next one is `_GROWTH` times as large, up to ``window``.
    """
    first = np.minimum(first, window)
    # Window k of the ramp starts at first * (4**k - 1) / 3.
    number = (_bit_length(3 * offset // first + 1) - 1) // 2
    levels = (_bit_length(-(-window // first) - 1) + 1) // 2
    ramp_end = first * (((np.int64(1) << 2 * levels) - 1) // 3)
    full, within = np.divmod(offset - ramp_end, window)
    scale = np.int64(1) << 2 * np.minimum(number, levels)
    on_ramp = offset < ramp_end
    number = np.where(on_ramp, number, levels + full)
    begin = np.where(on_ramp, first * ((scale - 1) // 3), offset - within)
    size = np.where(on_ramp, first * scale, window)
    return number, begin, np.minimum(size, length - begin)


def _bit_length(numbers: Int64s) -> Int64s:
    """Return the bit length of each number below 2**53; exactly, where a logarithm would round."""
    return np.frexp(numbers.astype(np.float64))[1].astype(np.int64)
