"""`CachedShards`: opens the shards of batches through the chunk cache, and verifies members at their first read."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import counted
from wdsdist.cache import chunk_file
from wdsdist.cache.chunk_cache import ChunkCache, chunks_of_members, fetched_members
from wdsdist.cache.chunk_file import OpenCopy
from wdsdist.cache.copied_shard import CopiedShard
from wdsdist.cache.folder import clear_errors
from wdsdist.errors import ShardDamagedError
from wdsdist.shards import checksums
from wdsdist.shards.index import beside
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.source import OPEN_SHARDS, Counters, LocalShards, Members, Needs, OpenShard

_ATTEMPTS = 3
"""Attempts to fetch members whose bytes are wrong; before the last one, their copy is deleted with its index."""
_THREADS = 32
"""Indexes that are fetched at once."""
_VERIFIED = 1024
"""Copies whose verified members a process remembers."""

_RELEASED = memoryview(b"")
_RELEASED.release()  # to read it is an error


class CachedShard(OpenShard):
    """A shard whose copy in the cache is mapped. A member is verified when it is first read."""

    def __init__(self, source: CachedShards, number: int, copy: OpenCopy, is_ready: npt.NDArray[np.bool_]) -> None:
        self.copy = copy
        self.is_ready = is_ready
        """bool [members]: whether each is verified."""
        self.needs: Members | None = None
        """Returns the members of the shard that the latest batch needs; ``None`` for all."""
        self._checksums = None if copy.index.checksums is None else copy.index.checksums.data  # faster than an array
        self._opened, self._counters = source.opened, source.cache.counters
        self._source = weakref.proxy(source)
        self._owner: Callable[[], npt.NDArray[np.uint8] | None] = lambda: None
        super().__init__(source.manifest, number, copy.index, _RELEASED)
        self.hold()

    def hold(self) -> bool:
        """Make the bytes of the copy readable; return false if it was evicted or cut."""
        if not self.copy.hold():
            return False
        owner = self._owner()
        if owner is None:
            # Every view of a member keeps this array alive. To read a view of an evicted copy would kill the process.
            owner = np.frombuffer(self.copy.data, np.uint8)
            self._owner = weakref.ref(owner)
            weakref.finalize(owner, self.copy.file.unshare).atexit = False
        else:
            self.copy.file.unshare()  # the array holds it already
        self.content = owner.data
        return True

    def release(self) -> None:
        """Let the copy be evicted once no view of its bytes is left."""
        self.content = _RELEASED

    def member(self, sample: int, number: int) -> memoryview:
        member, data = self._starts[sample] + number, super().member(sample, number)
        if self.is_ready[member]:
            return data
        if self._checksums is None or checksums.digest(data) & checksums.MASK != self._checksums[member]:
            # Others of the batch may be wrong too, after a crash; a substitute is not of the batch.
            self.verify(np.union1d(self.unread(), [member]))
            return super().member(sample, number)
        self.is_ready[member] = True
        if self.copy.made < self._opened:
            self._counters["bytes_cached"] += len(data)  # in this thread alone
        return data

    def unread(self) -> Int64s:
        """Return the members that the latest batch reads and that are not verified yet."""
        chosen = np.arange(len(self.is_ready)) if self.needs is None else self.needs(self.index)
        return chosen[~self.is_ready[chosen]]

    def verify(self, members: Int64s) -> None:
        with clear_errors(self._source.cache.root, self._source.shard(self.number).described):
            self._source.fetch({self.number: members})

    def fetch_ranges(self, offsets: Int64s, lengths: Int64s) -> None:
        self._source.fetch_ranges(self.number, offsets, lengths)

    @functools.cached_property
    def comes_whole(self) -> bool:
        """Whether prefetch fetches the whole shard, because the epoch needs most of it."""
        return fetched_members(self.copy.index, self._source.coming[self.number]) is None

    def replace(self, copy: OpenCopy) -> None:
        """Go on with another copy of the same shard."""
        self.copy, self._owner = copy, lambda: None
        self.is_ready = np.zeros(len(copy.index.offsets), np.bool_)
        self.hold()


class CachedShards:
    """The shards of a data set that are read through a cache; plain local shards are read in place.

    ``opened`` is when the data set was opened, in seconds since 1970; by default now.
    """

    def __init__(self, manifest: Manifest, cache: ChunkCache, opened: float | None = None) -> None:
        self.manifest = manifest
        self.cache = cache
        self.is_bounded = cache.limit is not None
        self.coming: Mapping[int, Members | None] = {}
        """Shards that prefetch fetches, each with the members that the epoch needs; ``None`` for all."""
        self.first_batch = threading.Event()
        """Whether the first batch has its chunks: until then prefetch would take link and cores from it."""
        self.opened = time.time() if opened is None else opened
        self._local = LocalShards(manifest)
        self.shard = functools.cache(functools.partial(CopiedShard, manifest))
        """Returns the location and the promises of a shard, which need not be open."""
        self._open: OrderedDict[int, CachedShard] = OrderedDict()
        self._is_ready = functools.lru_cache(_VERIFIED)(lambda shard, made, members: np.zeros(members, np.bool_))

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedShards, (self.manifest, self.cache, self.opened)  # maps stay behind

    def open(self, needs: Needs) -> Mapping[int, OpenShard]:
        copied = {number: needs[number] for number in needs if self.manifest.is_copied[number]}
        opened: dict[int, OpenShard] = {}
        if len(copied) < len(needs):
            opened.update(self._local.open({number: None for number in needs if number not in copied}))
        with clear_errors(self.cache.root, self._described(list(copied))):
            try:
                held = self._hold(copied)
                chunks = {
                    shard.number: chunks_of_members(shard.index, unread)
                    for shard in held.values()
                    if not shard.copy.is_whole and len(unread := shard.unread())
                }
                if chunks:
                    self._fetch_chunks(chunks, self.cache.deadline())
                if headers := [shard for shard in held.values() if shard.index.checksums is None]:
                    self.fetch({shard.number: shard.unread() for shard in headers})
            finally:
                self.first_batch.set()
        opened.update(held)
        while len(self._open) > max(OPEN_SHARDS, len(copied)):
            self._open.popitem(last=False)
        return opened

    def release(self) -> None:
        for number, shard in list(self._open.items()):
            shard.release()
            if shard.copy.is_private:  # its memory is free once the last view of it is gone
                del self._open[number]

    def with_manifest(self, manifest: Manifest) -> CachedShards:
        return CachedShards(manifest, self.cache)

    def counters(self) -> Counters:
        return Counters(**self.cache.counters)

    def fetch(self, members: Mapping[int, Int64s]) -> None:
        """Fetch members of open shards, unless they are there, and verify them.

        Raises `ShardDamagedError`, naming shard and member, if bytes are wrong again after they were fetched again.
        """
        deadline, left = self.cache.deadline(), members
        for attempt in range(1, _ATTEMPTS + 1):
            chunks = {number: chunks_of_members(self._open[number].index, some) for number, some in left.items()}
            self._fetch_chunks(chunks, deadline)
            wrong = {}
            for number, chosen in left.items():
                shard = self._open[number]
                bad = checksums.wrong(shard.index, chosen, shard.copy.data)
                right = np.setdiff1d(chosen, bad) if len(bad) else chosen
                shard.is_ready[right] = True
                if shard.copy.made < self.opened:
                    self.cache.count(bytes_cached=int(shard.index.sizes[right].sum()))
                if len(bad):
                    wrong[number] = bad
            if not wrong:
                return
            left = wrong.copy()
            number, bad = next(iter(wrong.items()))
            if attempt == _ATTEMPTS or not deadline.left():
                damage = checksums.damage(self._open[number].index, int(bad[0]), self.shard(number).shown)
                raise ShardDamagedError(f"{damage} {deadline.spent(attempt)}")
            self.cache.count(retries=1)
            for number in wrong:
                shard = self._open[number]  # its chunks are not fetched in place: some hold verified members as well
                shard.release()
                if not shard.copy.is_private:
                    beside(self.cache.path(shard.copy.shard)).unlink(missing_ok=True)
                    self.cache.catalog.remove(shard.copy.shard.key)  # but a copy of which views are left stays
                shard.replace(self.cache.open(self.shard(number), self.cache.deadline()))
                left[number] = members[number]

    def fetch_ranges(self, number: int, offsets: Int64s, lengths: Int64s) -> None:
        """Fetch ranges of an open shard, unless they are there; they are not verified."""
        with clear_errors(self.cache.root, self._described([number])):
            self._fetch_chunks({number: chunk_file.chunks_of(offsets, offsets + lengths)}, self.cache.deadline())

    def _fetch_chunks(self, needed: Mapping[int, Int64s], deadline: storage.Deadline) -> None:
        """Fetch chunks of open shards; into private copies if the cache has no room for them."""
        wanted = [(self._open[number].copy, chunks) for number, chunks in needed.items()]
        # Chunks beside the members of a batch come with them if prefetch would fetch the whole shard anyway.
        coming = self.coming if self.first_batch.is_set() else {}
        along = [self._open[number] for number in needed if number in coming]
        full = self.cache.fetch(wanted, deadline, {shard.copy for shard in along if shard.comes_whole})
        again = []
        for number, chunks in needed.items():
            shard = self._open[number]
            if shard.copy in full:
                shard.replace(self.cache.private(shard.copy))
                again.append((shard.copy, chunks))
        self.cache.fetch(again, deadline)

    def _described(self, numbers: list[int]) -> str:
        """Return the shards of a batch for messages."""
        more = f" and {counted(len(numbers) - 1, 'other shard')}" if len(numbers) > 1 else ""
        return f"{self.shard(numbers[0]).described}{more}" if numbers else ""

    def _hold(self, needs: Needs) -> dict[int, CachedShard]:
        """Return shards whose copies are open and locked."""
        held: dict[int, CachedShard] = {}
        new = []
        for number in needs:
            shard = self._open.get(number)
            if shard is not None and shard.hold():
                self._open.move_to_end(number)
                held[number] = shard
            else:
                self._open.pop(number, None)
                new.append(number)
        if new:
            deadline = self.cache.deadline()
            shards = [self.shard(number) for number in new]
            with ThreadPoolExecutor(min(len(new), _THREADS)) as pool:
                copies = list(pool.map(lambda shard: self.cache.open(shard, deadline), shards))
            for number, copy in zip(new, copies, strict=True):
                is_ready = self._is_ready(number, copy.made, len(copy.index.offsets))
                held[number] = self._open[number] = CachedShard(self, number, copy, is_ready)
            self.cache.catalog.use([shard.key for shard in shards])
        for number, shard in held.items():
            shard.needs = needs[number]
        return held
