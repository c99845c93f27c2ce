"""`MemberReader`: the samples of a data set by number, and the bytes of their members, of which only these are read.

A shard is not loaded: a local one is read where its members lie, of a remote one ranges are fetched. A compressed shard
is decompressed into the cache first, and one whose server has no ranges is fetched into it. Any number of threads may
read at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from wdsdist import storage
from wdsdist.errors import NotFoundError, ShardDamagedError, StorageError
from wdsdist.samples.marks import Part
from wdsdist.samples.open_source import open_source
from wdsdist.sampling.order import split_line
from wdsdist.shards.index import checksums
from wdsdist.shards.local_index import regular
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.shard_indexes import shard_index
from wdsdist.shards.tar.fields import BLOCK

_INDEXES = 64
"""Indexes of shards that are kept."""
_TOGETHER = 256 << 10
"""Bytes of a remote sample up to which its members are fetched by one request."""
_KEPT = 64 << 20
"""Bytes of remote samples that are kept."""


@dataclass(frozen=True, slots=True)
class Member:
    """Where one member of a sample lies."""

    extension: str
    """As stored."""
    offset: int
    """Bytes, in the decompressed tar."""
    size: int
    number: int
    """Among all members of the shard."""


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
    part: Part | None
    """Which part of its record it is, where the data set was exploded."""

    @property
    def name(self) -> str:
        """Its key, and which part of its record it is."""
        return self.key if self.part is None else f"{self.key} part {self.part.number} of {self.part.total}"


def shard_of(manifest: Manifest, number: int) -> tuple[int, int]:
    """Return the shard of a sample, and its number among those that the data set has of it.

    Raises `IndexError` outside the data set.
    """
    total = manifest.num_samples
    if not 0 <= number < total:
        raise IndexError(f"there is no sample {number:,}: the data set has {total:,}, numbered from 0")
    shards, samples = split_line(manifest.ends, np.array([number]))
    return int(shards[0]), int(samples[0])


def shard_name(manifest: Manifest, number: int) -> str:
    """Return the name of a shard in its own data set, where several are one."""
    part, own = manifest.part(number)
    return part.shown_name(own)


class MemberReader:
    """Reads single members of a data set."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.index = functools.lru_cache(_INDEXES)(functools.partial(shard_index, manifest))
        """Returns the index of a shard, by its number."""
        self._source = open_source(manifest)
        self._whole: set[int] = set()  # remote shards that cannot be read in parts
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int, int], bytes] = OrderedDict()

    def place(self, number: int) -> Place:
        """Return where a sample lies.

        Raises `IndexError` outside the data set, and what reading the index of its shard raises.
        """
        shard, sample = shard_of(self.manifest, number)
        part, own = self.manifest.part(shard)
        stored = sample if part.picks is None else int(part.picks.of_shard(own)[sample])
        index = self.index(shard)
        first = int(index.sample_starts[stored])
        members = tuple(Member(*one, first + place) for place, one in enumerate(index.members(stored)))
        parts = self.manifest.parts_of(np.array([shard]), np.array([sample]))
        which = None if parts is None else Part(*parts[:, 0].tolist())
        return Place(number, shard, stored, index.key(stored), members, which)

    def read(self, place: Place, member: Member, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes of a member, or those from ``start`` up to ``stop``; fetch wrong ones once more.

        Raises `ShardDamagedError` where the shard does not hold the member, `NotFoundError` where there is no
        shard, and `StorageError` where it cannot be read.
        """
        stop = member.size if stop is None else min(stop, member.size)
        first, last = member.offset + start, member.offset + max(stop, start)
        index, numbers = self.index(place.shard), np.array([member.number])
        # Of a part, the header before the member tells whether it is there.
        known = index if last - first == member.size else replace(index, checksums=None)
        needed = first if start else int(checksums.needed(known, numbers)[0][0])
        for anew in (False, True):
            with self._content(place, needed, last, anew=anew) as content:
                if not len(checksums.wrong(known, numbers, content)):
                    return bytes(content[first:last])
        raise checksums.damage(known, member.number, shard_name(self.manifest, place.shard))

    @contextlib.contextmanager
    def _content(self, place: Place, first: int, last: int, *, anew: bool) -> Iterator[checksums.Content]:
        """Open the tar of a sample, of which the bytes from ``first`` up to ``last`` are wanted, or fetched anew."""
        manifest, number = self.manifest.part(place.shard)
        location = manifest.location(number)
        is_whole, fetched = manifest.shard(number).is_compressed or place.shard in self._whole, None
        if storage.is_remote(location) and not is_whole:
            try:
                fetched = self._fetching(place, location, manifest.client_options, range(first, last), anew=anew)
            except FileNotFoundError:
                name = shard_name(self.manifest, place.shard)
                raise NotFoundError(f"shard {name} does not exist") from None
            except StorageError as error:  # a server without ranges may still give the whole
                if error.kind in storage.PASSING:
                    raise
                self._whole.add(place.shard)
                is_whole = True
        if fetched is not None:
            yield _Ranges(fetched)
        elif is_whole:
            with self._lock:  # a shard reader is made for one thread
                try:
                    yield self._source.open({place.shard: None})[place.shard].content
                finally:
                    self._source.release()
        else:
            descriptor = self._opened(place.shard, storage.local_path(location))
            try:
                yield _Ranges(lambda start, stop: os.pread(descriptor, stop - start, start))
            finally:
                os.close(descriptor)

    def _opened(self, shard: int, path: Path) -> int:
        """Return a descriptor of a local shard, whose size is that of its index."""
        try:
            size = regular(path).st_size
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFoundError(f"shard {path} does not exist") from None
        if size == self.index(shard).size:
            return descriptor
        os.close(descriptor)
        raise ShardDamagedError(
            f"shard {path} has {size:,} bytes but its index says {self.index(shard).size:,}: fetch or pack it again"
        )

    def _fetching(
        self, place: Place, location: str, options: storage.StorageOptions, wanted: range, *, anew: bool
    ) -> Callable[[int, int], bytes]:
        """Return a function that reads a remote shard, of which the range around some bytes is fetched at once.

        That is all of a small sample, with the headers before it, so that its members take one request together.
        """
        start = max(0, min(one.offset for one in place.members) - BLOCK)
        stop = max(one.offset + one.size for one in place.members)
        if stop - start > _TOGETHER:
            start, stop = wanted.start, wanted.stop
        with self._lock:
            held = None if anew else self._kept.get((place.shard, start, stop))
        content = held or storage.read(location, options, start=start, stop=stop)
        with self._lock:
            self._kept[place.shard, start, stop] = content
            self._kept.move_to_end((place.shard, start, stop))
            while sum(map(len, self._kept.values())) > _KEPT:
                self._kept.popitem(last=False)

        def read(low: int, high: int) -> bytes:
            if start <= low and high <= stop:
                return content[low - start : high - start]
            return storage.read(location, options, start=low, stop=high)

        return read


class _Ranges:
    """Slices of a tar by byte offset, read on demand; the last one is cached."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = functools.lru_cache(1)(read)

    def __getitem__(self, place: slice, /) -> bytes:
        return self._read(place.start, place.stop)
