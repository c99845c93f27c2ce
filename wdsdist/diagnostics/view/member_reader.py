"""`MemberReader`: the samples of a data set by number, and the bytes of their members, of which only these are read.

A shard is not loaded: a local one is read where its members lie, of a remote one ranges are fetched. A compressed shard
is decompressed into the cache first. Any number of threads may read at once.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wdsdist import storage
from wdsdist.errors import SampleIndexError, ShardDamagedError, ShardNotFoundError
from wdsdist.samples.shard_reader import ShardReader
from wdsdist.sampling.order import split_line
from wdsdist.shards import scan_local
from wdsdist.shards.columns import from_index
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.tar import is_member_at

_INDEXES = 64
"""Indexes of shards that are kept."""
_TOGETHER = 256 << 10
"""Bytes of a remote sample up to which its members are fetched by one request."""
_KEPT = 64 << 20
"""Bytes of remote samples that are kept."""
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Member:
    """Where one member of a sample lies."""

    extension: str
    """As stored."""
    offset: int
    """Bytes, in the decompressed tar."""
    size: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where one sample lies, and what it has."""

    number: int
    """Its number in the data set, by which ``dataset[number]`` reads it."""
    shard: int
    stored: int
    """Its number among all samples in the shard, from which a view may have chosen some."""
    key: str
    members: tuple[Member, ...]


class MemberReader:
    """Reads single members of a data set."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.index = functools.lru_cache(_INDEXES)(self._index)
        """Returns the index of a shard, by its number."""
        self._shards = ShardReader(manifest)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int, int], bytes] = OrderedDict()

    def place(self, number: int) -> Place:
        """Return where a sample lies.

        Raises `SampleIndexError` outside the data set, and what reading the index of its shard raises.
        """
        shard, sample = self.shard_of(number)
        part, own = self.manifest.part(shard)
        stored = sample if part.picks is None else int(part.picks.of_shard(own)[sample])
        index = self.index(shard)
        return Place(number, shard, stored, index.key(stored), tuple(Member(*one) for one in index.members(stored)))

    def shard_of(self, number: int) -> tuple[int, int]:
        """Return the shard of a sample, and its number among those that the data set has of it."""
        total = self.manifest.num_samples
        if not 0 <= number < total:
            raise SampleIndexError(f"there is no sample {number:,}: the data set has {total:,}, numbered from 0")
        shards, samples = split_line(self.manifest.ends, np.array([number]))
        return int(shards[0]), int(samples[0])

    def read(self, place: Place, member: Member, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes of a member, or those from ``start`` up to ``stop``.

        Raises `ShardDamagedError` where the shard does not hold the member, `ShardNotFoundError` where there is no
        shard, and `StorageError` where it cannot be read.
        """
        stop = member.size if stop is None else min(stop, member.size)
        first, last = member.offset + start, member.offset + max(stop, start)
        manifest, number = self.manifest.part(place.shard)
        location, name = manifest.location(number), f"{place.key}.{member.extension}"
        if manifest.shard(number).is_compressed:
            return self._unpacked(place.shard, first, last)
        if not storage.is_remote(location):
            return self._local(place.shard, location, member, name, (first, last))
        return self._remote(place, location, member, name, (first, last))

    def _index(self, shard: int) -> ShardIndex:
        index = from_index.shard_index(self.manifest, shard)
        part, number = self.manifest.part(shard)
        part.check_count(number, index.num_samples, part.shown_name(number))
        return index

    def _local(self, shard: int, location: str, member: Member, name: str, span: tuple[int, int]) -> bytes:
        path = storage.local_path(location)
        try:
            size = scan_local.regular(path).st_size
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ShardNotFoundError(f"shard {path} does not exist") from None
        try:
            if size != self.index(shard).size:
                raise ShardDamagedError(
                    f"shard {path} has {size:,} bytes but its index says {self.index(shard).size:,}: fetch or pack it "
                    f"again"
                )

            def read(start: int, stop: int) -> bytes:
                return os.pread(descriptor, stop - start, start)

            self._check(read, member, name, str(path))
            return read(*span)
        finally:
            os.close(descriptor)

    def _remote(self, place: Place, location: str, member: Member, name: str, span: tuple[int, int]) -> bytes:
        options = self.manifest.part(place.shard)[0].client_options
        first = max(0, min(one.offset for one in place.members) - _BLOCK)
        last = max(one.offset + one.size for one in place.members)
        if last - first > _TOGETHER:
            first, last = max(0, span[0] - _BLOCK), max(span[1], span[0])
        key = place.shard, first, last
        with self._lock:
            held = self._kept.get(key)
        if held is None:
            held = storage.read_range(location, first, last, options)
            with self._lock:
                self._kept[key] = held
                while sum(map(len, self._kept.values())) > _KEPT:
                    self._kept.popitem(last=False)
        content = held

        def read(start: int, stop: int) -> bytes:
            if first <= start and stop <= last:
                return content[start - first : stop - first]
            return storage.read_range(location, start, stop, options)

        if span[0] == member.offset:  # the header of a later range was looked at with the first
            self._check(read, member, name, storage.shown(location))
        return read(*span)

    def _unpacked(self, shard: int, first: int, last: int) -> bytes:
        with self._lock:
            try:
                return bytes(self._shards.shard(shard).content[first:last])
            finally:
                self._shards.release()

    @staticmethod
    def _check(read: Callable[[int, int], bytes], member: Member, name: str, label: str) -> None:
        if not is_member_at(read, member.offset, name, member.size):
            raise ShardDamagedError(
                f"shard {label} does not hold what its index says ({name!r} is not at byte {member.offset:,}): it was "
                f"replaced by another; fetch or pack it again"
            )
