"""`ChunkFile`: one copy of a shard, a sparse file with a map of the chunks that are there.

The file holds the tar, then a header, then a map of one byte a chunk. A byte is set once the bytes of its chunk are
written. Who fetches a chunk first locks its number as a byte of the file; the system frees the lock with its process.
Members are verified when they are read, so nothing depends on what a crash of the system leaves of the file.

A private copy lies in anonymous memory, for a shard that finds no room in the cache.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.cache.locks import LockableFile

CHUNK = 4096
"""Bytes of a chunk: a block of the file system, so that a hole takes no space. `bench_remote` compares other sizes."""
GAP = 128 << 10
"""Bytes between two needed ranges that cost less than a request of their own."""
REQUEST = 8 << 20
"""Most bytes of a request: more come sooner over several connections."""
_AGAIN = 16
"""Part of the bytes of some requests that may be there already, so that there are fewer requests."""
_HEADER = 1024
"""Bytes of the header."""
_BLOCK = 4096
"""Bytes of a block of the file system."""
_FORMAT = 1
_LONGEST_SOURCE = 100
"""Characters, of which each takes six bytes at most; the catalog has all of them."""


class ChunkFile:
    """An open copy, locked against eviction.

    Args:
        file: the open file, with a shared lock.
        header: from `header_of`.

    The lock may be given up and taken again. The maps stay, and keep no lock.
    """

    def __init__(self, file: LockableFile, header: dict[str, Any]) -> None:
        self.file = file
        self.size: int = header["size"]
        """Bytes of the tar."""
        self.token: str = header["token"]
        """Differs for each copy that is made, also of the same shard."""
        self.made: float = header["made"]
        """Seconds since 1970."""
        self.num_chunks = -(-self.size // CHUNK)
        start = self.num_chunks * CHUNK
        # Opened again, as a map keeps its open file, and with it a lock, also in a forked child.
        with file.again() as opened:
            self.data = mmap.mmap(opened.fileno(), self.size, access=mmap.ACCESS_READ)
            trailer = mmap.mmap(opened.fileno(), _HEADER + self.num_chunks, offset=start)
        self.map: npt.NDArray[np.uint8] = np.frombuffer(trailer, np.uint8)[_HEADER:]
        """uint8 [chunks]: 1 if a chunk is there."""

    @property
    def is_whole(self) -> bool:
        return bool(self.map.all())

    def hold(self) -> bool:
        """Lock the copy again; return false if it was evicted, or is no longer as long as it was."""
        if not (self.file.is_open and self.file.lock(alone=False)):
            return False
        if self.file.stat().st_size == _file_bytes(self.num_chunks):
            return True
        self.file.unlock()
        return False

    def missing(self, chunks: Int64s) -> Int64s:
        """Return the chunks that are not there, of some."""
        missing: Int64s = chunks[self.map[chunks] == 0]
        return missing

    def clear(self, chunks: Int64s) -> None:
        """Forget chunks whose bytes are wrong."""
        self.map[chunks] = 0

    def close(self) -> None:
        """Give up the lock for good."""
        self.file.close()

    @contextlib.contextmanager
    def claimed(self, wanted: Int64s, *, gap: int, most: int | None = None) -> Iterator[Claim]:
        """Claim chunks that are not there and that no other process fetches; others find them claimed until the end.

        Args:
            wanted: int64 [n]: chunks, sorted.
            gap: chunks between two wanted ones that are claimed with them, if they add at most a quarter.
            most: chunks to claim at most, about.
        """
        with self.file.again() as file:
            ranges = joined(runs(self.missing(wanted)), gap)
            free: list[tuple[int, int]] = []
            left = self.num_chunks if most is None else most
            for first, last in ranges.tolist():
                for start, stop in file.claim(first, min(last, first + left)):
                    # Looked at again: another process may have fetched some before it gave up its claim.
                    there = np.flatnonzero(self.map[start:stop]) + start
                    for begin, end in without(start, stop, there):
                        free.append((begin, end))
                        left -= end - begin
                if left <= 0:
                    break
            try:
                yield Claim(self, file, free)
            finally:
                file.unclaim()


class Claim:
    """Chunks that this process alone fetches: ranges to ask the store for, and the file that takes the bytes."""

    def __init__(self, copy: ChunkFile, file: LockableFile, chunks: list[tuple[int, int]]) -> None:
        self._copy = copy
        self._file = file
        self._chunks = np.array(chunks, np.int64).reshape(-1, 2)
        self.num_chunks = int(np.diff(self._chunks).sum())

    def ranges(self, gap: int, length: int) -> list[tuple[int, int]]:
        """Return the byte ranges to ask for, of ``length`` bytes at most; they may cross small gaps.

        A gap is of chunks that are there, or that others fetch; what comes in it is not written.
        """
        ranges = joined(self._chunks, gap // CHUNK, _AGAIN) * CHUNK
        ends = np.minimum(ranges[:, 1], self._copy.size).tolist()
        return [
            (at, min(at + length, end))
            for start, end in zip(ranges[:, 0].tolist(), ends, strict=True)
            for at in range(start, end, length)
        ]

    def write(self, offset: int, data: memoryview) -> None:
        """Write bytes of the shard that have arrived, piece by piece of each range; set the chunks that are whole."""
        end = offset + len(data)
        place = int(np.searchsorted(self._chunks[:, 1] * CHUNK, offset, side="right"))
        while place < len(self._chunks):
            first, last = self._chunks[place].tolist()
            start, stop = max(offset, first * CHUNK), min(end, last * CHUNK)
            if start >= stop:
                break
            at = start
            while at < stop:
                at += os.pwrite(self._file.fileno(), data[at - offset : stop - offset], at)
            done = -(-stop // CHUNK) if stop == self._copy.size else stop // CHUNK
            self._copy.map[start // CHUNK : done] = 1
            place += 1


def chunks_of(starts: Int64s, stops: Int64s) -> Int64s:
    """Return the chunks of byte ranges, sorted.

    >>> chunks_of(np.array([0, 4095, 20_000]), np.array([1, 4097, 20_000])).tolist()
    [0, 1]
    """
    firsts = starts // CHUNK
    counts = np.where(stops > starts, -(-stops // CHUNK) - firsts, 0)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.unique(np.repeat(firsts - (ends - counts), counts) + np.arange(total))


def blocks(chunks: Int64s, num_chunks: int, size: int) -> Int64s:
    """Return all chunks of the blocks of so many bytes in which some chunks lie.

    >>> blocks(np.array([1, 9]), 11, 4 * CHUNK).tolist()
    [0, 1, 2, 3, 8, 9, 10]
    """
    each = max(1, size // CHUNK)
    found = (np.unique(chunks // each)[:, None] * each + np.arange(each)).ravel()
    chosen: Int64s = found[found < num_chunks]
    return chosen


def runs(chunks: Int64s) -> Int64s:
    """Return sorted chunks as ranges, int64 [n, 2].

    >>> runs(np.array([0, 1, 2, 4, 9])).tolist()
    [[0, 3], [4, 5], [9, 10]]
    """
    ends = np.flatnonzero(np.diff(chunks) != 1)
    firsts, lasts = np.append(0, ends + 1), np.append(ends, len(chunks) - 1)
    return np.stack((chunks[firsts], chunks[lasts] + 1), axis=1) if len(chunks) else np.zeros((0, 2), np.int64)


def joined(ranges: Int64s, gap: int, part: int = 4) -> Int64s:
    """Return ranges, sorted and apart, as those to fetch: small gaps come with them, a quarter (1 / part) at most.

    >>> joined(np.array([[0, 3], [4, 5], [9, 10]]), 1).tolist()
    [[0, 5], [9, 10]]
    """
    gaps = ranges[1:, 0] - ranges[:-1, 1]
    by_size = np.argsort(gaps, kind="stable")
    is_joined = np.zeros(len(gaps), np.bool_)
    excess = int(np.diff(ranges).sum()) // part
    is_joined[by_size] = (np.cumsum(gaps[by_size]) <= excess) & (gaps[by_size] <= gap)
    is_first = np.append(True, ~is_joined)[: len(ranges)]
    return np.stack((ranges[is_first, 0], ranges[np.append(~is_joined, True)[: len(ranges)], 1]), axis=1)


def without(start: int, stop: int, there: Int64s) -> list[tuple[int, int]]:
    """Return what is left of a range without some of its numbers, as ranges.

    >>> without(0, 10, np.array([3, 4, 9]))
    [(0, 3), (5, 9)]
    """
    edges = [start - 1, *there.tolist(), stop]
    return [(left + 1, right) for left, right in pairwise(edges) if right > left + 1]


def room_of(size: int, index: int = 0) -> int:
    """Return the bytes of disk that a whole copy takes, of a tar and an index of so many bytes."""
    return -(-size // CHUNK) * CHUNK + overhead(size, index)


def overhead(size: int, index: int = 0) -> int:
    """Return the bytes of disk that a copy takes without a chunk, and a block for what the file system adds."""
    return sum(-(-part // _BLOCK) * _BLOCK for part in (_HEADER + -(-size // CHUNK), index)) + _BLOCK


def initialise(file: LockableFile, size: int, *, source: str, version: str = "", is_whole: bool = False) -> None:
    """Write the header and the map of a new copy, which no other process uses yet.

    Args:
        file: locked by this process alone.
        size: bytes of the tar.
        source: the folder or URL of the shard, without credentials.
        version: tells the file that was copied from a later one at the same path; of a remote shard empty.
        is_whole: whether all bytes of the tar are there already.
    """
    chunks = -(-size // CHUNK)
    header = {"format": _FORMAT, "chunk": CHUNK, "size": size, "token": secrets.token_hex(8), "made": time.time()}
    content = json.dumps({**header, "version": version, "source": source[:_LONGEST_SOURCE]}).encode()
    os.truncate(file.fileno(), _file_bytes(chunks))
    if is_whole:
        os.pwrite(file.fileno(), b"\1" * chunks, chunks * CHUNK + _HEADER)
    os.pwrite(file.fileno(), content.ljust(_HEADER), chunks * CHUNK)


def header_of(file: LockableFile) -> dict[str, Any] | None:
    """Return the header of a copy; ``None`` if the file has none, or not the length that it gives."""
    length = file.stat().st_size
    chunks = (length - _HEADER) // (CHUNK + 1)
    try:
        header: dict[str, Any] = json.loads(os.pread(file.fileno(), _HEADER, max(0, chunks * CHUNK)))
        is_right = (header["format"], header["chunk"], -(-header["size"] // CHUNK)) == (_FORMAT, CHUNK, chunks)
        return header if is_right and length == _file_bytes(chunks) else None
    except (ValueError, KeyError, TypeError):
        return None


def _file_bytes(chunks: int) -> int:
    """Return the length of the file of a copy: its chunks, the header, and a byte for each chunk."""
    return chunks * CHUNK + _HEADER + chunks
