"""Checksums of members: the low 32 bits of XXH3-64 of each member's data, by which parts of a shard are verified.

One for each member, because training on labels alone reads one member of a sample. XXH3 digests 8 GB/s where
``zlib.crc32`` digests 1.9 and SHA-256 1.1 (members of 70 KB, one core). With two members a sample, the index grows from
65 to 73 bytes a sample.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

from wdsdist._util.array_types import Int64s
from wdsdist.errors import ShardDamagedError
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.tar.reader import BLOCK, LONGEST_HEADERS, is_member_at

Digest = xxhash.xxh3_64
digest = xxhash.xxh3_64_intdigest
MASK = 0xFFFFFFFF
"""The bits of the digest that are kept."""


def of_data(content: bytes | memoryview, offsets: Int64s, sizes: Int64s) -> npt.NDArray[np.uint32]:
    """Return the checksums of the data from ``offsets`` on."""
    places = zip(offsets.tolist(), (offsets + sizes).tolist(), strict=True)
    return np.array([digest(content[start:stop]) & MASK for start, stop in places], np.uint32)


def needed(index: ShardIndex, members: Int64s) -> tuple[Int64s, Int64s]:
    """Return the offsets and lengths of the bytes of a tar by which members can be read and checked.

    These are their data, and without checksums also the headers before it, back to the end of the last member that has
    bytes: an empty member's headers come with the member behind them.
    """
    offsets, sizes = index.offsets[members], index.sizes[members]
    if index.checksums is not None:
        return offsets, sizes
    ends = np.sort((index.offsets + index.sizes)[index.sizes > 0], kind="stable")  # fast, as they mostly are in order
    before = np.append(0, ends)[np.searchsorted(ends, offsets - BLOCK, side="right")]
    starts = np.maximum(before + -before % BLOCK, offsets - LONGEST_HEADERS)
    return starts, offsets + sizes - starts


def wrong(index: ShardIndex, members: Int64s, content: bytes | memoryview) -> Int64s:
    """Return the members whose bytes are not what the index says, from the ranges that `needed` returns.

    Without checksums only their headers are checked, which finds another tar, but not altered data.
    """
    if index.checksums is None:
        return wrong_headers(index, members, content)
    return members[np.flatnonzero(of_data(content, *needed(index, members)) != index.checksums[members])]


def wrong_headers(index: ShardIndex, members: Int64s, content: bytes | memoryview) -> Int64s:
    """Return the members that do not lie where the index says, by their names and sizes in the tar's headers."""
    offsets, sizes = index.offsets[members], index.sizes[members]
    samples = np.searchsorted(index.sample_starts, members, side="right") - 1
    places = zip(samples.tolist(), index.extension_ids[members].tolist(), offsets.tolist(), sizes.tolist(), strict=True)

    def read(start: int, stop: int) -> bytes:
        return bytes(content[start:stop])

    is_right = [
        is_member_at(read, offset, f"{index.key(sample)}.{index.extensions[kind]}", size)
        for sample, kind, offset, size in places
    ]
    return members[~np.array(is_right, np.bool_)]


def damage(index: ShardIndex, member: int, shard: str) -> ShardDamagedError:
    """Return the error for a member whose data or tar header is wrong, also when it was fetched once more."""
    sample = int(np.searchsorted(index.sample_starts, member, side="right")) - 1
    extension = index.extensions[index.extension_ids[member]]
    return ShardDamagedError(
        f"shard {shard} does not hold what its index says: the data of member {extension!r} of sample "
        f"{index.key(sample)!r} (byte {int(index.offsets[member]):,}) is wrong: run `wdsdist verify` on it, and "
        f"fetch, pack or upload it again, or run `wdsdist index` if it was replaced on purpose"
    )
