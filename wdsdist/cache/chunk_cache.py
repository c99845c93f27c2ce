"""`ChunkCache`: copies of remote shards in one folder, fetched chunk by chunk, for all processes of a node.

Readers and prefetch ask for chunks of copies. A chunk is fetched by the thread that claims it first; others wait until
it is there. For a copy that finds no room the batch reads past the cache, into anonymous memory.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist._util import warn_once
from wdsdist._util.array_types import Int64s, distinct
from wdsdist._util.host import shard_cache_dir
from wdsdist.cache import chunk_file, folder
from wdsdist.cache.catalog import Catalog
from wdsdist.cache.chunk_file import CHUNK, REQUEST, Claim, OpenCopy
from wdsdist.cache.copied_shard import CopiedShard
from wdsdist.cache.folder import clear_errors
from wdsdist.cache.locks import LockableFile
from wdsdist.errors import CacheError, ShardDamagedError, StorageError
from wdsdist.shards import checksums
from wdsdist.shards import index as shard_index
from wdsdist.shards.index import ShardIndex, beside
from wdsdist.shards.manifest import THIN
from wdsdist.shards.source import CacheOptions, Counters, Members
from wdsdist.storage import engine
from wdsdist.storage.waiting import LongWait, pauses

_CREATING = 1 << 40
"""The first byte that makers of copies lock; readers lock bytes before it."""
_BETWEEN_CLAIMS = 0.2  # seconds; whoever has claimed the chunks may have failed or been killed since
_LAST_WORD = 5.0
"""Seconds for the store to answer once the wait for another process is over."""


class ChunkCache:
    """The cache of shards in one folder."""

    def __init__(self, options: CacheOptions) -> None:
        self.options = options
        self.limit = options.limit
        self.root = shard_cache_dir(options.folder)
        """The folder, which need not exist."""
        self.catalog = Catalog(self.root, self.limit, self.evict)
        self.counters = dict.fromkeys(Counters._fields, 0)
        """The statistics of this process."""
        self._counting = threading.Lock()
        self._without_ranges: set[str] = set()
        self._is_checked = False
        _caches.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkCache, (self.options,)  # another process counts on its own

    def count(self, **more: int) -> None:
        """Add to the statistics; any thread may."""
        with self._counting:
            for name, number in more.items():
                self.counters[name] += number

    def deadline(self) -> storage.Deadline:
        """Return the deadline of a download that begins now."""
        return storage.Deadline(self.options.timeout, "download_timeout")

    def path(self, shard: CopiedShard) -> Path:
        """Return the path of the copy of a shard, which need not exist."""
        return self.root / shard.key

    def open(self, shard: CopiedShard, deadline: storage.Deadline) -> OpenCopy:
        """Return the copy of a shard, locked. A new copy is made if the cache lacks it, a private one without room.

        A compressed shard, or one without an index, is fetched whole at once.

        Raises:
            NotFoundError: the shard is not in its store.
            ShardDamagedError: its index differs from the manifest, also after retries.
            StorageError: its store cannot be read.
            CacheError: the folder cannot be used, or another process makes the copy until the deadline.
        """
        if not self._is_checked:
            folder.make_root(self.root)
            self._is_checked = True
        if copy := self._existing(shard):
            return copy
        folder.make_root(self.root)
        self.path(shard).parent.mkdir(mode=0o700, exist_ok=True)
        number = _CREATING + zlib.crc32(shard.key.encode())
        wait = _waiter(deadline)
        with LockableFile(self.root / folder.LOCKS, writable=True, create=True) as locks:
            while True:
                is_maker = bool(locks.claim(number, number + 1))
                # Looked at after the claim: another process may have made it before.
                if copy := self._existing(shard) or (self._create(shard, deadline) if is_maker else None):
                    return copy
                wait(shard)

    def fetch(
        self, wanted: Sequence[tuple[OpenCopy, Int64s]], deadline: storage.Deadline, along: Collection[OpenCopy] = ()
    ) -> list[OpenCopy]:
        """Fetch chunks into copies, and wait for chunks that other threads and processes fetch.

        For copies in ``along``, whole requests around these chunks are made, as the next batches need the rest: the
        order begins with few ranges of many shards.

        Returns the copies for whose chunks there is no room, which are not fetched.

        Raises `NotFoundError`, `StorageError` or `ShardDamagedError` as the store does.
        """
        full: list[OpenCopy] = []
        wait, next_try = _waiter(deadline), 0.0
        while wanted := [
            (copy, missing) for copy, chunks in wanted if copy not in full and len(missing := copy.missing(chunks))
        ]:
            if time.monotonic() >= next_try:  # to look at the map takes less than a claim
                num_claimed, without_room = self._fetch_once(wanted, deadline, along)
                full += without_room
                if num_claimed or without_room:
                    continue
                next_try = time.monotonic() + _BETWEEN_CLAIMS
            wait(wanted[0][0].shard)
        return full

    def fetch_ahead(self, copy: OpenCopy, needs: Members | None, goes_on: Callable[[], bool]) -> bool:
        """Prefetch the chunks of a copy that an epoch needs, while ``goes_on()``; return false without room for them.

        Any number of threads and processes may fetch one shard: each takes the next chunks that nobody has claimed. So
        this returns as soon as all chunks are claimed.

        Raises what `fetch` raises.
        """
        deadline = self.deadline()
        missing = copy.missing(_needed_chunks(copy, needs))
        while len(missing) and not copy.is_private and goes_on():
            num_claimed, without_room = self._fetch_once([(copy, missing)], deadline, is_ahead=True)
            if not num_claimed:
                return not without_room
            missing = copy.missing(missing)
        return not copy.is_private

    def fetch_all(self, shard: CopiedShard, needs: Members | None = None) -> None:
        """Fetch the chunks of a shard that an epoch needs, or all, and wait for them.

        Raises what `open` raises, and `CacheError` if there is no room.
        """
        deadline = self.deadline()
        with clear_errors(self.root, shard.described), contextlib.closing(self.open(shard, deadline)) as copy:
            if copy.is_private or self.fetch([(copy, _needed_chunks(copy, needs))], deadline):
                raise CacheError(
                    f"cache_limit is {self.limit:,} bytes, which leaves no room for {shard.described} besides what is "
                    f"needed sooner: raise it"
                )

    def evict(self, key: str) -> bool:
        """Delete a copy, unless a process holds it; return whether it is gone."""
        path = self.root / key
        try:
            with LockableFile(path, writable=True) as file:
                if not file.lock(alone=True):
                    return False
                if file.is_at(path):
                    beside(path).unlink(missing_ok=True)
                    path.unlink()
                os.truncate(file.fileno(), 0)  # a map of it must not keep the disk space
        except FileNotFoundError:
            beside(path).unlink(missing_ok=True)
        return True

    def private(self, copy: OpenCopy) -> OpenCopy:
        """Return an empty private copy of the same shard."""
        return self._made(LockableFile.in_memory(copy.file.path), copy.shard, copy.index, self.deadline())

    def _existing(self, shard: CopiedShard) -> OpenCopy | None:
        """Return the cached copy of a shard, locked, or ``None``."""
        path = self.path(shard)
        with contextlib.suppress(FileNotFoundError, ValueError):  # missing, or damaged
            file = LockableFile(path, writable=True)
            # A lock on the empty file that another process has just made would keep it from locking it.
            if file.stat().st_size and file.lock(alone=False) and file.is_at(path):
                return OpenCopy(file, shard, shard.checked(shard_index.load(beside(path))))
        return None

    def _create(self, shard: CopiedShard, deadline: storage.Deadline) -> OpenCopy | None:
        """Create the copy of a shard, which this process alone does; ``None`` if it was evicted at once."""
        path, index = self.path(shard), shard.index(deadline)
        content = shard_index.dumps(index)
        is_whole = shard.is_compressed or self.limit is None
        room = (chunk_file.room_of if is_whole else chunk_file.overhead)(index.size, len(content))
        packed = index.file.size if shard.is_compressed and shard.is_remote else 0
        file = LockableFile(path, writable=True, create=True)
        if file.lock(alone=True) and file.is_at(path):  # else another process still uses a damaged or old copy
            os.truncate(file.fileno(), 0)
            try:
                if self.catalog.reserve(shard.key, room + packed, source=shard.source):
                    copy = self._made(file, shard, index, deadline, len(content))
                    if packed:  # its room is free again
                        self.catalog.reserve(shard.key, room, source=shard.source)
                    beside(path).unlink(missing_ok=True)
                    beside(path).touch(mode=0o600)
                    beside(path).write_bytes(content)
                    # A lock is not changed in one step: another process may have evicted the copy in between.
                    if not (file.lock(alone=False) and file.is_at(path)):
                        return None
                    self.count(shards_fetched=int(shard.is_remote))
                    return copy
            except BaseException:
                self._remove(shard, file)
                raise
            self._remove(shard, file)
        return self._made(LockableFile.in_memory(path), shard, index, deadline)

    def _made(
        self, file: LockableFile, shard: CopiedShard, index: ShardIndex, deadline: storage.Deadline, index_size: int = 0
    ) -> OpenCopy:
        """Return a new copy in an empty file that this process alone uses: unpacked, or without any chunk."""
        if shard.is_compressed:
            self._unpack(shard, index, file, deadline)
        chunk_file.initialise(file, index.size, source=shard.source, index=index_size, is_whole=shard.is_compressed)
        return OpenCopy(file, shard, index)

    def _remove(self, shard: CopiedShard, file: LockableFile) -> None:
        """Delete a cached copy that this process has begun to make."""
        os.truncate(file.fileno(), 0)  # no other process locks an empty file
        file.close()
        self.catalog.remove(shard.key)

    def _unpack(self, shard: CopiedShard, index: ShardIndex, file: LockableFile, deadline: storage.Deadline) -> None:
        """Unpack a compressed shard into the file of its copy; a remote one is fetched into a file without a name."""
        from wdsdist.storage import compression

        warn_once.warn(f"some shards are compressed: each is decompressed once on this node, into {self.root}")
        target = Path(f"/proc/self/fd/{file.fileno()}")
        if not shard.is_remote:
            compression.unpack(storage.local_path(shard.location), target, size=index.size, label=shard.shown)
            return
        with tempfile.TemporaryFile(dir=self.root) as packed:
            path = Path(f"/proc/self/fd/{packed.fileno()}")
            for is_last in (False, True):
                fetched = engine.fetch(shard.location, path, shard.options, size=index.file.size, deadline=deadline)
                self.count(bytes_fetched=fetched.bytes, retries=fetched.retries)
                try:
                    compression.unpack(path, target, size=index.size, label=shard.shown)
                    break
                except ShardDamagedError:
                    if is_last:
                        raise
                    self.count(retries=1)

    def _fetch_once(
        self, wanted: Sequence[tuple[OpenCopy, Int64s]], deadline: storage.Deadline, along: Collection[OpenCopy] = (),
        *, is_ahead: bool = False,
    ) -> tuple[int, list[OpenCopy]]:  # fmt: skip
        """Fetch the chunks that nobody else fetches; ahead, about one request of them.

        Returns the number of copies that got some, and the copies without room for theirs.
        """
        running, without_room = [], []
        with contextlib.ExitStack() as stack:
            for copy, chunks in wanted:
                shard, is_whole = copy.shard, copy.shard.source in self._without_ranges
                if is_whole:
                    chunks = np.arange(copy.num_chunks)
                elif copy in along:
                    starts = distinct(chunks * CHUNK // REQUEST) * REQUEST
                    chunks = chunk_file.chunks_of(starts, np.minimum(starts + REQUEST, copy.size))
                most = REQUEST // CHUNK if is_ahead and not is_whole else copy.num_chunks
                claim = stack.enter_context(copy.claimed(chunks, most=most))
                if not claim.num_chunks:
                    continue
                # What is claimed is reserved by nobody else: so each chunk is counted once.
                has_room = self.limit is None or copy.is_private
                if not has_room and not self.catalog.reserve(shard.key, claim.num_chunks * CHUNK, most=copy.room):
                    without_room.append(copy)
                    continue
                ranges = [(0, copy.index.file.size)] if is_whole else claim.ranges
                write = functools.partial(self._write, claim)
                download = engine.begin_ranges(
                    shard.location, ranges, write, shard.options, size=copy.index.file.size, deadline=deadline,
                    is_ahead=is_ahead,
                )  # fmt: skip
                running.append((shard, stack.enter_context(download)))
            for shard, download in running:
                try:
                    self.count(retries=download.result().retries)
                except StorageError as error:
                    if error.kind == "length":
                        raise ShardDamagedError(f"{error}: upload it again") from error
                    if error.kind != "ranges":
                        raise
                    warn_once.warn(f"{shard.source} sends whole files only: so each shard is fetched whole")
                    self._without_ranges.add(shard.source)
        return len(running), without_room

    def _write(self, claim: Claim, offset: int, data: memoryview) -> None:
        """Count bytes that have come, and write them: in this order, as a batch that finds them may end the epoch."""
        self.count(bytes_fetched=len(data))
        claim.write(offset, data)


def _needed_chunks(copy: OpenCopy, needs: Members | None) -> Int64s:
    """Return the chunks of what an epoch needs of a shard: all, unless it is less than half of the shard."""
    members = fetched_members(copy.index, needs)
    return np.arange(copy.num_chunks) if members is None else chunks_of_members(copy.index, members)


def fetched_members(index: ShardIndex, needs: Members | None) -> Int64s | None:
    """Return the members of a shard that prefetch fetches for an epoch; ``None`` for the whole shard."""
    members = None if needs is None else needs(index)
    return None if members is None or int(index.sizes[members].sum()) >= THIN * index.size else members


def chunks_of_members(index: ShardIndex, members: Int64s) -> Int64s:
    """Return the chunks in which members lie, as far as they are read and checked."""
    offsets, lengths = checksums.needed(index, members)
    return chunk_file.chunks_of(offsets, offsets + lengths)


def _waiter(deadline: storage.Deadline) -> Callable[[CopiedShard], None]:
    """Return a function that waits a little for another thread or process that fetches a shard.

    It warns of long waits, and raises `CacheError` after the deadline.
    """
    waiting = LongWait()
    turns = pauses(deadline.end)
    next(turns)

    def wait(shard: CopiedShard) -> None:
        if waiting.is_due():
            waiting.warn(shard.location, "another thread or process fetches it")
        next(turns, None)
        if not deadline.left():
            # If the store fails for them too, its error says more.
            began = time.monotonic() + _LAST_WORD - deadline.seconds
            storage.stat(shard.location, shard.options, deadline=replace(deadline, began=began))
            raise CacheError(
                f"another process has been fetching {shard.shown} for {deadline.seconds:g} seconds "
                f"(download_timeout): end it, or resume from the checkpoint"
            )

    return wait


_caches: weakref.WeakSet[ChunkCache] = weakref.WeakSet()
_inherited: list[Catalog] = []
"""Catalogs of parent processes, which use their connections: to close one here would disturb the parent."""


def _begin_in_child() -> None:
    for cache in list(_caches):
        _inherited.append(cache.catalog)
        cache.catalog = Catalog(cache.root, cache.limit, cache.evict)
        cache._counting = threading.Lock()


os.register_at_fork(after_in_child=_begin_in_child)
