"""The windows of a lane: runs of samples that are shuffled together. Pure.

All windows of a lane have the same size, but for the last two, which share what is left. The first window is read in
*blocks*, runs of neighbouring samples, of which it has `_BLOCKS` or more: the blocks are in random order, and its first
1/64 is shuffled by itself, then the samples up to 1/16, up to 1/4, and the rest. So the first batches of an epoch have
samples of all shards of the window, and read a few ranges of bytes of each, which serve several batches.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.sampling.permutation import mix_keys, permute

_BLOCKS = 2048
"""Blocks of a first window, at least: its first 1/64 then has samples from half as many places as a batch of 64 has."""

_STRATA = 6, 4, 2
"""Binary logarithms of the shares of its blocks at which the first window is cut."""


class LaneWindows:
    """The windows of all lanes of an epoch's order.

    Args:
        lengths: int64 [lanes]: samples of each lane.
        window: the most samples that are shuffled together.
        key: decides the order of the blocks.
    """

    def __init__(self, lengths: Int64s, window: int, *, key: int) -> None:
        self._lengths = lengths
        self._window = window
        self._key = key
        # The last two windows share what is left for them, because a short last one would mix worse than the others.
        full, rest = np.divmod(lengths, window)
        self._tail = np.where((full > 0) & (rest > 0), (full - 1) * window, lengths)
        self._last = (self._tail + lengths + 1) // 2
        self._first = np.maximum(1, np.where(self._tail == 0, self._last, np.minimum(window, lengths)))
        self._block = np.maximum(1, self._first // _BLOCKS)

    def find(self, lane: Int64s, offset: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the number, the start and the size of the window, or stratum, that holds each offset of a lane."""
        number, within = np.divmod(offset, self._window)
        begin = offset - within
        size = np.minimum(self._window, self._lengths[lane] - begin)
        tail, last = self._tail[lane], self._last[lane]
        is_last, is_next = offset >= last, (offset >= tail) & (offset < last)
        number = number + (is_last & (number * self._window < last))
        begin = np.where(is_last, last, begin)
        size = np.where(is_last, self._lengths[lane] - last, np.where(is_next, last - tail, size))
        # The strata of the first window.
        first, block = self._first[lane], self._block[lane]
        cuts = np.stack([(first // block >> share) * block for share in _STRATA])
        stratum = (offset >= cuts).sum(axis=0)
        edges = np.concatenate((np.zeros_like(cuts[:1]), cuts, first[None]))
        begins, ends = (np.take_along_axis(edges, stratum[None] + step, axis=0)[0] for step in (0, 1))
        is_first = number == 0
        return (
            np.where(is_first, stratum, number + len(_STRATA)),
            np.where(is_first, begins, begin),
            np.where(is_first, ends - begins, size),
        )

    def in_blocks(self, lane: Int64s, offset: Int64s) -> Int64s:
        """Return where in its lane each offset lies once the blocks of the first window are in random order."""
        moved = offset.copy()
        inside = np.flatnonzero(offset < self._first[lane])
        lane, offset = lane[inside], offset[inside]
        first, block = self._first[lane], self._block[lane]
        number, within = np.divmod(offset, block)
        # Samples beyond the whole blocks stay behind them. The turn moves other samples there in each epoch.
        whole = np.flatnonzero(number < first // block)
        number[whole] = permute(number[whole], (first // block)[whole], mix_keys(self._key, lane[whole]))
        turn = (mix_keys(self._key, lane, 1) >> np.uint64(1)).astype(np.int64)
        moved[inside] = (number * block + within + turn % first) % first
        return moved

    def begins(self, lane: int, together: int = 1) -> Int64s:
        """Return the offsets at which the windows of a lane begin, or every ``together``-th of them."""
        begins = np.arange(0, int(self._lengths[lane]), together * self._window)
        if len(begins) and begins[-1] > self._tail[lane]:
            begins[-1] = self._last[lane]
        return begins

    def strata(self, lane: int) -> list[tuple[int, int, Int64s, Int64s]]:
        """Return the strata of a lane's first window; an empty lane has none.

        Each is its first offset, one past its last, and the spans of the lane that its samples lie in: int64 [spans],
        their first offsets and their last.
        """
        if not self._lengths[lane]:
            return []
        size, block = int(self._first[lane]), int(self._block[lane])
        cuts = np.unique([0, *((size // block >> share) * block for share in _STRATA), size]).tolist()
        strata = []
        for begin, end in pairwise(cuts):
            offsets = np.arange(begin, end, block)
            lanes = np.full(len(offsets), lane)
            firsts = self.in_blocks(lanes, offsets)
            lasts = self.in_blocks(lanes, np.minimum(offsets + block, size) - 1)
            is_cut = firsts > lasts  # the block goes on at the start of the window
            lasts, more = np.where(is_cut, size - 1, lasts), lasts[is_cut]
            strata.append((begin, end, np.append(firsts, np.zeros_like(more)), np.append(lasts, more)))
        return strata
