"""Which samples go into which shard: pure arithmetic on their sizes."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.packing.sources.source import Blocks
from wdsdist.sampling.permutation import mix_key, shuffled
from wdsdist.shards.index import SUFFIX
from wdsdist.shards.tar.reader import END

# Words of their own keep these orders apart from each other, and from every order that an epoch is played in.
_PACKING = int.from_bytes(b"pack", "big")
_BLOCKS = int.from_bytes(b"blks", "big")
_SAMPLES = int.from_bytes(b"smpl", "big")

_NAME = re.compile(rf"shard-([0-9]+)\.tar(?:\.zst)?(?:{re.escape(SUFFIX)})?")


@dataclass(frozen=True, slots=True, eq=False)
class PackPlan:
    """The shards to write, and the samples of each.

    >>> plan = make_plan(np.full(10, 1024), shuffle_seed=None, shard_bytes=4096, shard_samples=None)
    >>> len(plan), plan.samples(0).tolist(), plan.sizes.tolist()
    (4, [0, 1, 2], [4096, 4096, 4096, 2048])
    """

    order: Int64s
    """int64 [samples]: their numbers in the source, in the order in which they are written."""
    cuts: Int64s
    """int64 [shards + 1]: where each shard starts in ``order``, and its end."""
    sizes: Int64s
    """int64 [shards]: bytes of each tar, uncompressed."""

    def __len__(self) -> int:
        return len(self.sizes)

    def samples(self, shard: int) -> Int64s:
        """Return the numbers of the samples in one shard."""
        return self.order[self.cuts[shard] : self.cuts[shard + 1]]


def shard_name(shard: int, compress: str | None) -> str:
    """Return the file name of a shard, by its number in the data set.

    >>> shard_name(7, None), shard_name(2_000_000, "zst:3")
    ('shard-000007.tar', 'shard-2000000.tar.zst')
    """
    return f"shard-{shard:06d}.tar{'.zst' if compress else ''}"


def shard_number(name: str) -> int:
    """Return the number in the file name of a shard, or of the index beside one; -1 for other files."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else -1


def make_plan(
    sizes: Int64s,
    *,
    shuffle_seed: int | None,
    shard_bytes: int,
    shard_samples: int | None,
    blocks: Blocks | None = None,
) -> PackPlan:
    """Shuffle samples and cut them into shards; the same arguments always give the same plan.

    Args:
        sizes: int64 [samples]: bytes that each takes in a tar; at least one sample.
        shuffle_seed: decides the order; ``None`` keeps the order of the source.
        shard_bytes: the most bytes of a tar; a sample that needs more gets one of its own.
        shard_samples: the most samples of a tar, or ``None``.
        blocks: runs of samples that are read together; by default, any sample is at hand.
    """
    if shuffle_seed is None:
        order = np.arange(len(sizes))
    elif blocks is None or blocks.weights.sum() <= blocks.limit:  # blocks that all fit in memory need no special order
        order = shuffled(len(sizes), mix_key(_PACKING, shuffle_seed))
    else:
        order = shuffled_in_blocks(blocks, shuffle_seed)
    cuts = _cuts(sizes[order], shard_bytes - len(END), shard_samples)
    return PackPlan(order, cuts, np.add.reduceat(sizes[order], cuts[:-1]) + len(END))


def _cuts(sizes: Int64s, limit: int, most: int | None = None) -> Int64s:
    """int64 [parts + 1]: cut a line of sizes into parts of at most a limit and so many, or of one that is larger."""
    ends = np.cumsum(sizes)
    cuts = [0]
    while (start := cuts[-1]) < len(sizes):
        room = limit + (int(ends[start - 1]) if start else 0)
        stop = max(int(np.searchsorted(ends, room, side="right")), start + 1)
        cuts.append(stop if most is None else min(stop, start + most))
    return np.array(cuts, np.int64)


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
    parts: list[Int64s] = []
    for start, stop in itertools.pairwise(_cuts(blocks.weights[turns], blocks.limit).tolist()):
        samples = np.concatenate(
            [np.arange(blocks.cuts[block], blocks.cuts[block + 1]) for block in turns[start:stop].tolist()]
        )
        parts.append(samples[shuffled(len(samples), mix_key(_SAMPLES, seed, len(parts)))])
    return np.concatenate(parts).astype(np.int64)
