"""The shards of a data set, opened in place or in a cache, and single samples of them and their members by number."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.samples.marks import Part
from wdsdist.sampling.order import split_line
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.source import CacheOptions, LocalShards, OpenShard, ShardSource

_SOURCES = 4
"""Threads that read at once: each has a source of its own, whose shards stay open."""
_TOGETHER = 256 << 10
"""Bytes of a sample up to which all its members are fetched together."""


@dataclass(frozen=True, slots=True)
class StoredMember:
    """One member of a sample, by its position in the tar."""

    extension: str
    """As stored."""
    offset: int
    """Bytes, in the decompressed tar."""
    size: int
    number: int
    """Among all members of the shard."""


@dataclass(frozen=True, slots=True)
class StoredSample:
    """One sample of a data set: its number, its shard and its members."""

    number: int
    """Its number in the data set, by which ``dataset[number]`` reads it."""
    shard: int
    stored: int
    """Its number among all samples of the shard, from which a view may have chosen some."""
    key: str
    members: tuple[StoredMember, ...]
    part: Part | None
    """Which part of its record it is, if the data set was exploded."""

    @property
    def name(self) -> str:
        """Its key, and which part of its record it is."""
        return self.key if self.part is None else f"{self.key} part {self.part.number} of {self.part.total}"


def open_source(manifest: Manifest, cache: CacheOptions | None = None) -> ShardSource:
    """Return the source of a data set's shards: local files that are read in place, or copies in a cache."""
    if not manifest.is_copied.any():
        return LocalShards(manifest)
    from wdsdist.cache.cached_shards import CachedShards
    from wdsdist.cache.chunk_cache import ChunkCache

    return CachedShards(manifest, ChunkCache(cache or CacheOptions()))


class MemberReader:
    """Reads single samples and members of a data set, for ``cat``, ``show`` and ``view``, from any number of threads.

    Args:
        manifest: the data set.
        cache: where copies of remote and compressed shards are kept; by default in the user's cache.
    """

    def __init__(self, manifest: Manifest, cache: CacheOptions | None = None) -> None:
        self.manifest = manifest
        self._sources = queue.LifoQueue[ShardSource]()
        for _ in range(_SOURCES):
            self._sources.put(open_source(manifest, cache))

    def sample(self, number: int) -> StoredSample:
        """Return the position of a sample and of its members.

        Raises `IndexError` outside the data set, and what opening its shard raises.
        """
        shard, sample = shard_of(self.manifest, number)
        with self._opened(shard, np.zeros(0, np.int64)) as opened:
            stored = opened.stored(sample)
            first = int(opened.index.sample_starts[stored])
            members = tuple(StoredMember(*each, first + i) for i, each in enumerate(opened.index.members(stored)))
            key = opened.key(stored)
        parts = self.manifest.parts_of(np.array([shard]), np.array([sample]))
        part = None if parts is None else Part(*parts[:, 0].tolist())
        return StoredSample(number, shard, stored, key, members, part)

    def read(self, sample: StoredSample, member: StoredMember, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes of a member, verified by its checksum, or its bytes from ``start`` to ``stop``.

        Raises:
            ShardDamagedError: the shard does not hold what its index says.
            NotFoundError: there is no such shard.
            StorageError: it cannot be read.
            CacheError: its copy finds no folder that can be written.
        """
        stop = member.size if stop is None else min(stop, member.size)
        first, last = member.offset + start, member.offset + max(stop, start)
        is_whole = last - first == member.size
        is_small = sum(other.size for other in sample.members) <= _TOGETHER
        numbers = [other.number for other in sample.members] if is_small else [member.number] if is_whole else []
        with self._opened(sample.shard, np.array(numbers, np.int64)) as shard:
            if is_whole:
                shard.verify(np.array([member.number]))
            else:
                shard.fetch_ranges(np.array([first]), np.array([last - first]))
            return bytes(shard.content[first:last])

    @contextlib.contextmanager
    def _opened(self, shard: int, members: Int64s) -> Iterator[OpenShard]:
        """Open a shard to read some members, for this thread alone."""
        source = self._sources.get()
        try:
            yield source.open({shard: lambda index: members})[shard]
        finally:
            source.release()
            self._sources.put(source)


def shard_of(manifest: Manifest, number: int) -> tuple[int, int]:
    """Return the shard of a sample, and its number among the samples that the data set has of it.

    Raises `IndexError` outside the data set.
    """
    total = manifest.num_samples
    if not 0 <= number < total:
        raise IndexError(f"there is no sample {number:,}: the data set has {total:,}, numbered from 0")
    shards, samples = split_line(manifest.ends, np.array([number]))
    return int(shards[0]), int(samples[0])
