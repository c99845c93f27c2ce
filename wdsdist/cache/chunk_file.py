"""`OpenCopy`: one copy of a shard, a sparse file with a map of the chunks that are there.

The file holds the tar, then a header, then a map of one byte a chunk. A byte is set once the bytes of its chunk are
written. Whoever fetches a chunk locks its number as a byte of the file; the system frees the lock with its process.
Members are verified when they are read, so nothing depends on what a crash of the system leaves of the file.

A private copy lies in anonymous memory, for a shard that finds no room in the cache.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, distinct
from wdsdist.cache.copied_shard import CopiedShard
from wdsdist.cache.locks import LockableFile
from wdsdist.shards.index import ShardIndex

CHUNK = 4096
"""Bytes of a chunk: a block of the file system, whose holes take no space. By 16 KiB, labels move 4 times as much."""
GAP = 128 << 10
"""Bytes between two needed ranges that cost less than a request of their own."""
REQUEST = 4 << 20
"""Most bytes of a request: more come sooner over several connections, and the nearest shard comes first."""
_GAPS = 8
"""Part of the needed bytes that gaps may add."""
_HEADER = 1024
"""Bytes of the header."""
_FORMAT = 3
_LONGEST_SOURCE = 100
"""Characters in the header, each of six bytes at most; the catalog has the whole string."""


class OpenCopy:
    """An open copy of a shard, locked against eviction.

    The lock may be given up and taken again. The maps stay, and keep no lock.

    Args:
        file: the open file, with a shared lock.
        shard: the shard.
        index: its index.

    Raises ``ValueError`` if the file is damaged.
    """

    def __init__(self, file: LockableFile, shard: CopiedShard, index: ShardIndex) -> None:
        header = header_of(file)
        self.file = file
        self.shard = shard
        self.index = index
        self.size: int = header["size"]
        """Bytes of the tar."""
        self.room = room_of(self.size, header["index"])
        """Bytes of disk that the whole copy takes, with its index."""
        self.made: float = header["made"]
        """Seconds since 1970, which differ for each copy of a shard."""
        self.num_chunks = -(-self.size // CHUNK)
        # Opened again, as a map keeps its open file, and with it a lock, also in a forked child.
        with file.again() as opened:
            self.data = memoryview(mmap.mmap(opened.fileno(), self.size, access=mmap.ACCESS_READ))
            trailer = mmap.mmap(opened.fileno(), _HEADER + self.num_chunks, offset=self.num_chunks * CHUNK)
        self.map: npt.NDArray[np.uint8] = np.frombuffer(trailer, np.uint8)[_HEADER:]
        """uint8 [chunks]: 1 if a chunk is there."""
        self._is_whole = False

    @property
    def is_whole(self) -> bool:
        """Whether the copy is complete: all chunks are in the cache. None leaves it while this process has it open."""
        self._is_whole = self._is_whole or bool(self.map.view(np.bool_).all())
        return self._is_whole

    @property
    def is_private(self) -> bool:
        """Whether the copy is in anonymous memory of this process, because eviction left no room in the cache."""
        return self.file.is_in_memory

    def close(self) -> None:
        self.file.close()

    def hold(self) -> bool:
        """Lock the copy against eviction until `unshare` of its file; return false if it was evicted or cut."""
        if not (self.file.is_open and self.file.share()):
            return False
        if self.file.stat().st_size == _file_bytes(self.num_chunks):
            return True
        self.file.unshare()
        return False

    def missing(self, chunks: Int64s) -> Int64s:
        """Return the chunks among some that are not there."""
        missing: Int64s = chunks[self.map[chunks] == 0]
        return missing

    @contextlib.contextmanager
    def claimed(self, wanted: Int64s, *, most: int = 1 << 62) -> Iterator[Claim]:
        """Claim chunks that are not there and that no other thread or process fetches, until the block ends.

        Args:
            wanted: int64 [n]: chunks, sorted.
            most: chunks to claim at most, about.
        """
        with self.file.again() as file:
            ranges: list[tuple[int, int]] = []
            claimed = [np.zeros(0, np.int64)]
            for first, last in joined(runs(self.missing(wanted)), GAP // CHUNK).tolist():
                for start, stop in file.claim(first, min(last, first + most)):
                    most -= stop - start
                    # Looked at after the claim: another process may have fetched some before it gave up its claim.
                    missing = np.flatnonzero(self.map[start:stop] == 0) + start
                    if len(missing):
                        ranges.append((int(missing[0]), int(missing[-1]) + 1))
                        claimed.append(missing)
                if most <= 0:
                    break
            yield Claim(self, file, ranges, np.concatenate(claimed))


class Claim:
    """Chunks that one thread alone fetches: ranges to ask the store for, and the file that takes the bytes.

    Args:
        copy: that lacks them.
        file: holds the claim.
        ranges: first and last of the chunks to ask for; some between them may be there already.
        chunks: int64 [n]: the claimed chunks that are not there, sorted.
    """

    def __init__(self, copy: OpenCopy, file: LockableFile, ranges: list[tuple[int, int]], chunks: Int64s) -> None:
        self._copy = copy
        self._file = file
        self._chunks = runs(chunks)
        self.num_chunks = len(chunks)
        self.ranges = [
            (at, min(at + REQUEST, stop * CHUNK, copy.size))
            for start, stop in ranges
            for at in range(start * CHUNK, stop * CHUNK, REQUEST)
        ]
        """The byte ranges to ask for."""

    def write(self, offset: int, data: memoryview) -> None:
        """Write bytes of the shard that have arrived, piece by piece of each range; set the chunks that are whole.

        Chunks that are there are not written: their members may be verified already.
        """
        end = offset + len(data)
        number = int(np.searchsorted(self._chunks[:, 1] * CHUNK, offset, side="right"))
        for first, last in self._chunks[number:].tolist():
            start, stop = max(offset, first * CHUNK), min(end, last * CHUNK)
            if start >= stop:
                break
            at = start
            while at < stop:
                at += os.pwrite(self._file.fileno(), data[at - offset : stop - offset], at)
            done = -(-stop // CHUNK) if stop == self._copy.size else stop // CHUNK
            self._copy.map[start // CHUNK : done] = 1


def chunks_of(starts: Int64s, stops: Int64s) -> Int64s:
    """Return the chunks of byte ranges, sorted.

    >>> chunks_of(np.array([0, 4095, 20_000]), np.array([1, 4097, 20_000])).tolist()
    [0, 1]
    """
    firsts = starts // CHUNK
    counts = np.where(stops > starts, -(-stops // CHUNK) - firsts, 0)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return distinct(np.repeat(firsts - (ends - counts), counts) + np.arange(total))


def runs(chunks: Int64s) -> Int64s:
    """Return sorted chunks as ranges, int64 [n, 2].

    >>> runs(np.array([0, 1, 2, 4, 9])).tolist()
    [[0, 3], [4, 5], [9, 10]]
    """
    ends = np.flatnonzero(np.diff(chunks) != 1)
    firsts, lasts = np.append(0, ends + 1), np.append(ends, len(chunks) - 1)
    return np.stack((chunks[firsts], chunks[lasts] + 1), axis=1) if len(chunks) else np.zeros((0, 2), np.int64)


def joined(ranges: Int64s, gap: int) -> Int64s:
    """Merge sorted chunk ranges across small gaps into fewer requests; the gaps add an eighth at most.

    >>> joined(np.array([[0, 7], [8, 9], [14, 15]]), 1).tolist()
    [[0, 9], [14, 15]]
    """
    gaps = ranges[1:, 0] - ranges[:-1, 1]
    by_size = np.argsort(gaps, kind="stable")
    is_joined = np.zeros(len(gaps), np.bool_)
    excess = int(np.diff(ranges).sum()) // _GAPS
    is_joined[by_size] = (np.cumsum(gaps[by_size]) <= excess) & (gaps[by_size] <= gap)
    is_first = np.append(True, ~is_joined)[: len(ranges)]
    return np.stack((ranges[is_first, 0], ranges[np.append(~is_joined, True)[: len(ranges)], 1]), axis=1)


def room_of(size: int, index: int) -> int:
    """Return the bytes of disk that a whole copy takes, of a tar and an index of so many bytes."""
    return -(-size // CHUNK) * CHUNK + overhead(size, index)


def overhead(size: int, index: int) -> int:
    """Return the bytes of disk that a copy takes without a chunk, and a block for what the file system adds."""
    return sum(-(-part // CHUNK) * CHUNK for part in (_HEADER + -(-size // CHUNK), index)) + CHUNK


def initialise(file: LockableFile, size: int, *, source: str, index: int = 0, is_whole: bool = False) -> None:
    """Write the header and the map of a new copy, which no other process uses yet.

    Args:
        file: locked by this process alone.
        size: bytes of the tar.
        source: the folder or URL of the shard, without credentials.
        index: bytes of the index.
        is_whole: whether all bytes of the tar are there already.
    """
    chunks = -(-size // CHUNK)
    header = {
        "format": _FORMAT, "size": size, "index": index, "made": time.time(),
        "source": source[:_LONGEST_SOURCE],
    }  # fmt: skip
    # Its room is taken now: to look at a map that lies in a hole of a full disk would kill the process.
    os.posix_fallocate(file.fileno(), chunks * CHUNK, _HEADER + chunks)
    if is_whole:
        os.pwrite(file.fileno(), b"\1" * chunks, chunks * CHUNK + _HEADER)
    os.pwrite(file.fileno(), json.dumps(header).encode().ljust(_HEADER), chunks * CHUNK)


def header_of(file: LockableFile) -> dict[str, Any]:
    """Return the header of a copy. Raises ``ValueError`` if it has none, or not the length that its header gives."""
    length = file.stat().st_size
    chunks = (length - _HEADER) // (CHUNK + 1)
    try:
        header: dict[str, Any] = json.loads(os.pread(file.fileno(), _HEADER, max(0, chunks * CHUNK)))
        is_right = (header["format"], -(-header["size"] // CHUNK)) == (_FORMAT, chunks) and header["index"] >= 0
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file.path} is not a copy of a shard") from error
    if not is_right or length != _file_bytes(chunks):
        raise ValueError(f"{file.path} is not a whole copy of a shard")
    return header


def _file_bytes(chunks: int) -> int:
    """Return the length of the file of a copy: its chunks, the header, and a byte for each chunk."""
    return chunks * CHUNK + _HEADER + chunks
