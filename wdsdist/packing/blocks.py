"""An order for samples that can be read in blocks only: shuffled, and yet each block is read by few shards."""

from __future__ import annotations

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.packing.sources import Blocks
from wdsdist.sampling.permutation import mix_key, shuffled

# Words of their own keep these orders apart from every other.
_BLOCKS = int.from_bytes(b"blks", "big")
_SAMPLES = int.from_bytes(b"smpl", "big")


def shuffled_in_blocks(blocks: Blocks, seed: int) -> Int64s:
    """Return int64 [samples]: shuffle the blocks, then the samples of as many blocks as are read in turn.

    A whole shuffle would have each shard touch nearly every block, and a block is decoded as a whole. The blocks of one
    window fit in the memory that `Blocks.limit` grants, so that a process decodes each of them once.

    >>> blocks = Blocks(cuts=np.array([0, 2, 4, 6, 8]), weights=np.array([5, 5, 5, 5]), limit=10)
    >>> order = shuffled_in_blocks(blocks, 0)
    >>> sorted(order.tolist()), sorted(set((order[:4] // 2).tolist()))
    ([0, 1, 2, 3, 4, 5, 6, 7], [1, 2])
    """
    turns = shuffled(len(blocks.weights), mix_key(_BLOCKS, seed))
    ends = np.cumsum(blocks.weights[turns])
    parts: list[Int64s] = []
    start = 0
    while start < len(turns):
        room = blocks.limit + (int(ends[start - 1]) if start else 0)
        stop = max(int(np.searchsorted(ends, room, side="right")), start + 1)
        samples = np.concatenate(
            [np.arange(blocks.cuts[block], blocks.cuts[block + 1]) for block in turns[start:stop].tolist()]
        )
        parts.append(samples[shuffled(len(samples), mix_key(_SAMPLES, seed, len(parts)))])
        start = stop
    return np.concatenate(parts).astype(np.int64)
