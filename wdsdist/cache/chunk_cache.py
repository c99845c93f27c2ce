"""`ChunkCache`: copies of remote shards in one folder, fetched chunk by chunk, for all processes of a node.

Readers and prefetch ask for chunks of copies. A chunk is fetched by whoever claims it first; others wait until it is
there. For a copy that finds no room the batch reads past the cache, into anonymous memory.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.files import open_files_remedy
from wdsdist._util.host import user_cache_dir
from wdsdist._util.ownership import is_own_file
from wdsdist.cache import chunk_file, folder, whole_copy
from wdsdist.cache.catalog import Catalog
from wdsdist.cache.chunk_file import CHUNK, GAP, REQUEST, ChunkFile, Claim
from wdsdist.cache.copied_shard import CopiedShard
from wdsdist.cache.locks import LockableFile, PlantedError, pauses
from wdsdist.errors import CacheError, IndexFormatError, NotFoundError, ShardDamagedError, StorageError, WdsdistError
from wdsdist.shards import index as shard_index
from wdsdist.shards.index import ShardIndex, beside
from wdsdist.shards.manifest import THIN
from wdsdist.shards.source import CacheOptions, Counters, Members
from wdsdist.storage.waiting import Request, under_way

_REQUEST_AHEAD = 4 << 20
"""The same ahead of need: with less on its way at once, the shard that is needed first comes first."""
_ALONG = 1 << 20
"""Bytes of the blocks of a shard that come with a batch at once."""
_PIECE = 4 << 20
"""Bytes of a local file that are copied at once."""
_CREATING = 1 << 40
"""The first of the bytes that are locked by whoever creates a copy; those of readers lie before it."""
_LONGEST_PAUSE = 0.005
_ATTEMPTS = 3
"""Attempts to fetch an index or a whole shard whose bytes are wrong."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True, eq=False)
class OpenCopy:
    """A copy of a shard, locked against eviction, and the index of the shard."""

    shard: CopiedShard
    chunks: ChunkFile
    index: ShardIndex
    kept: int = 0
    """Bytes of the index in the cache."""
    is_private: bool = False
    """Whether it lies in anonymous memory of this process, because it found no room in the cache."""

    def close(self) -> None:
        self.chunks.close()


class ChunkCache:
    """The cache of shards in one folder.

    Args:
        options: the folder, its limit and the timeout of downloads.
    """

    def __init__(self, options: CacheOptions) -> None:
        self.options = options
        self.limit = options.limit
        self._counted = dict.fromkeys(Counters._fields, 0)
        self._has_first_batch = threading.Event()
        self._has_first_batch.set()
        self._without_ranges: set[str] = set()
        self._checked_by = 0  # the process that has checked who owns the folder

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkCache, (self.options,)  # another process counts on its own

    @functools.cached_property
    def root(self) -> Path:
        """The folder, which need not exist."""
        return self.options.folder or user_cache_dir() / "shards"

    @functools.cached_property
    def catalog(self) -> Catalog:
        """What is in the folder."""
        return Catalog(self.root, self.limit, self.evict)

    def counters(self) -> Counters:
        """Return the statistics of this process."""
        return Counters(**self._counted)

    def count(self, **more: int) -> None:
        """Add to the statistics."""
        for name, number in more.items():
            self._counted[name] += number

    def first_batch(self) -> threading.Event:
        """Return the event at which prefetch may begin: the next batch has its chunks.

        Prefetch before would take link and cores from that batch.
        """
        self._has_first_batch = threading.Event()
        return self._has_first_batch

    @property
    def has_first_batch(self) -> bool:
        """Whether the first batch has its chunks, so that prefetch runs."""
        return self._has_first_batch.is_set()

    def batch_is_there(self) -> None:
        """Record that a batch has its chunks, or failed: prefetch may begin."""
        self._has_first_batch.set()

    def deadline(self) -> storage.Deadline:
        """Return the deadline of a download that begins now."""
        return storage.Deadline(self.options.timeout, "download_timeout")

    def path(self, shard: CopiedShard) -> Path:
        """Return the path of the copy of a shard, which need not exist."""
        return self.root / shard.key

    def expect(self, job: str, batch: int, needs: Mapping[str, int]) -> None:
        """Publish which copies this process needs from which batches on, as `Catalog.expect`."""
        with self.clear_errors("the list of needed copies"), _hints():
            self.catalog.expect(job, batch, needs)

    def use(self, keys: Iterable[str]) -> None:
        """Record that copies are used now."""
        with _hints():
            self.catalog.use(keys)

    def open(self, shard: CopiedShard, deadline: storage.Deadline) -> OpenCopy:
        """Return the copy of a shard, locked; a new one if there is none. A private one if there is no room for it.

        A compressed shard, or one without an index, is fetched whole at once.

        Raises:
            NotFoundError: the shard is not in its store.
            ShardDamagedError: its index differs from the manifest, also after retries.
            StorageError: its store cannot be read.
            CacheError: the folder cannot be used.
        """
        if self._checked_by != os.getpid():
            folder.make_root(self.root)
            self._checked_by = os.getpid()
        if copy := self._existing(shard):
            return copy
        folder.make_root(self.root)
        folder.make_folder(self.path(shard).parent)
        with LockableFile(self.root / folder.LOCKS, writable=True, create=True) as locks:
            number = _CREATING + zlib.crc32(shard.key.encode())
            for _ in pauses(deadline.end, _LONGEST_PAUSE):
                if locks.claim(number, number + 1):
                    if copy := self._existing(shard) or self._create(shard, deadline):
                        return copy
                elif copy := self._existing(shard):
                    return copy
        raise CacheError(
            f"another process has been fetching the index of {shard.shown} for {deadline.seconds:g} seconds "
            f"(download_timeout): end it, or resume from the checkpoint"
        )

    def fetch(
        self, wanted: Sequence[tuple[OpenCopy, Int64s]], deadline: storage.Deadline, along: Collection[OpenCopy] = ()
    ) -> list[OpenCopy]:
        """Fetch chunks into copies, and wait for those that other processes fetch.

        Of the copies in ``along``, what lies beside these chunks is fetched too, as the next batches need it: the order
        begins with few ranges of many shards.

        Returns the copies for whose chunks there is no room, which are not fetched.

        Raises `NotFoundError`, `StorageError` or `ShardDamagedError` as the store does.
        """
        full: list[OpenCopy] = []
        is_first = True
        with contextlib.ExitStack() as waiting:
            other: Request | None = None
            for _ in pauses(deadline.end, _LONGEST_PAUSE):
                wanted = [(copy, missing) for copy, chunks in wanted if len(missing := copy.chunks.missing(chunks))]
                if is_first:
                    full = [copy for copy, missing in wanted if not self._has_room(copy, missing)]
                    wanted = [(copy, missing) for copy, missing in wanted if copy not in full]
                    is_first = False
                if not wanted:
                    return full
                with contextlib.ExitStack() as stack:
                    running = []
                    for copy, chunks in wanted:
                        near = chunk_file.blocks(chunks, copy.chunks.num_chunks, _ALONG) if copy in along else chunks
                        claim = stack.enter_context(copy.chunks.claimed(self._sendable(copy, near), gap=GAP // CHUNK))
                        if claim.num_chunks:
                            running.append((copy, stack.enter_context(self._begin(copy, claim, GAP, deadline))))
                    for copy, download in running:
                        self._finish(copy, download)
                if not running:
                    if other is None:
                        other = Request("", attempt=0, note="another process fetches it")
                        waiting.enter_context(under_way(other))
                    other.location = wanted[0][0].shard.location
                    other.look()
        copy = wanted[0][0]
        raise CacheError(
            f"another process has been fetching parts of {copy.shard.shown} for {deadline.seconds:g} seconds "
            f"(download_timeout): end it, or resume from the checkpoint"
        )

    def fetch_ahead(self, shard: CopiedShard, needs: Members | None) -> bool:
        """Fetch what an epoch needs of a shard, or all of it; return false if there is no room.

        Any number of threads and processes may fetch one shard: each takes the next chunks that nobody has claimed. So
        this returns as soon as all chunks are claimed.

        Raises what `open` raises.
        """
        deadline = self.deadline()
        with self.clear_errors(shard.described), contextlib.closing(self.open(shard, deadline)) as copy:
            chunks = _needed_chunks(copy, needs)
            missing = copy.chunks.missing(chunks)
            if copy.is_private or not self._has_room(copy, missing, least=len(chunks)):
                return False
            while len(missing):
                with copy.chunks.claimed(
                    self._sendable(copy, missing), gap=GAP // CHUNK, most=_REQUEST_AHEAD // CHUNK
                ) as claim:
                    if not claim.num_chunks:
                        break
                    with self._begin(copy, claim, GAP, deadline, is_ahead=True) as download:
                        self._finish(copy, download)
                missing = copy.chunks.missing(missing)
            return True

    def fetch_all(self, shard: CopiedShard, needs: Members | None = None) -> None:
        """Fetch what an epoch needs of a shard, or all of it, and wait until it is there.

        Raises what `open` raises, and `CacheError` if there is no room.
        """
        deadline = self.deadline()
        with self.clear_errors(shard.described), contextlib.closing(self.open(shard, deadline)) as copy:
            if copy.is_private or self.fetch([(copy, _needed_chunks(copy, needs))], deadline):
                raise CacheError(
                    f"cache_limit is {self.limit:,} bytes, which leaves no room for {shard.described} beside what is "
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
        except PlantedError:
            return False
        return True

    def drop(self, copy: OpenCopy) -> None:
        """Close a copy that is of no use, and delete it unless other processes hold it."""
        copy.close()
        if not copy.is_private and self.evict(copy.shard.key):
            self.catalog.remove(copy.shard.key)

    def private(self, copy: OpenCopy) -> OpenCopy:
        """Return an empty private copy of the same shard."""
        file = LockableFile.in_memory(copy.shard.shown)
        chunk_file.initialise(file, copy.index.size, source=copy.shard.source)
        return OpenCopy(copy.shard, _opened(file), copy.index, is_private=True)

    def _existing(self, shard: CopiedShard) -> OpenCopy | None:
        """Return the cached copy of a shard, locked; ``None`` if this version has no copy."""
        path = self.path(shard)
        with contextlib.ExitStack() as stack:
            try:
                file = LockableFile(path, writable=True)
                stack.callback(file.close)
                # A lock on the empty file that another process has just made would keep it from locking it.
                if not (file.stat().st_size and file.lock(alone=False) and file.is_at(path)):
                    return None
                header = chunk_file.header_of(file)
                if header is None or header["version"] != shard.version:
                    return None
                index = beside(path)
                if not shard.keeps_index and shard.listed_index:
                    index, kept = shard.listed_index, 0
                elif is_own_file(index):
                    kept = index.stat().st_size
                else:
                    return None
                found = OpenCopy(shard, ChunkFile(file, header), shard.checked(shard_index.load(index)), kept)
            except (FileNotFoundError, PlantedError, IndexFormatError, ShardDamagedError):
                return None
            stack.pop_all()
            return found

    def _create(self, shard: CopiedShard, deadline: storage.Deadline) -> OpenCopy | None:
        """Create the copy of a shard, which this process alone does; ``None`` if it was evicted at once."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                content = shard.index_bytes(deadline)
                index = None if content is None else shard.loaded(content)
                if index is None or not shard.has_ranges:
                    return whole_copy.create(self, shard, content, index, deadline)
                break
            except ShardDamagedError as error:
                if not shard.is_remote:
                    raise
                if attempt == _ATTEMPTS:
                    raise ShardDamagedError(f"{error} (after {attempt} attempts)") from error
                self.count(retries=1)
        assert index is not None
        assert content is not None
        kept = content if shard.keeps_index else b""
        room = (chunk_file.room_of if self.limit is None else chunk_file.overhead)(index.size, len(kept))
        file = self.new_file(shard, room)
        if kept and file.is_in_memory and self.path(shard).exists():  # it is in use, and only its index was lost
            folder.write(beside(self.path(shard)), kept)
            if copy := self._existing(shard):
                return copy
            beside(self.path(shard)).unlink(missing_ok=True)
        chunk_file.initialise(file, index.size, source=shard.source, version=shard.version)
        return self.finish(shard, file, index, kept)

    def new_file(self, shard: CopiedShard, size: int) -> LockableFile:
        """Return the empty file of a new copy, locked by this process alone, with room for so many bytes.

        If there is no room, or another process still uses a damaged or old copy, the file lies in memory.
        """
        path = self.path(shard)
        if path.is_symlink() or (path.exists() and not is_own_file(path)):
            path.unlink()
        file = LockableFile(path, writable=True, create=True)
        if not (file.lock(alone=True) and file.is_at(path)):
            return LockableFile.in_memory(shard.shown)
        os.truncate(file.fileno(), 0)
        return file if self.catalog.add(shard.key, shard.source, size) else self.give_up(shard, file)

    def give_up(self, shard: CopiedShard, file: LockableFile) -> LockableFile:
        """Delete the file of a new copy for which there is no room; return one in memory."""
        if not file.is_in_memory:
            self.path(shard).unlink()
            beside(self.path(shard)).unlink(missing_ok=True)
            self.catalog.remove(shard.key)
            file.close()
        return LockableFile.in_memory(shard.shown)

    def finish(self, shard: CopiedShard, file: LockableFile, index: ShardIndex, kept: bytes) -> OpenCopy | None:
        """Write the index of a new copy beside it, and return it with a shared lock; ``None`` if it was evicted."""
        path = self.path(shard)
        if file.is_in_memory:
            return OpenCopy(shard, _opened(file), index, is_private=True)
        if kept:
            folder.write(beside(path), kept)
        # A lock is not changed in one step: another process may have evicted the copy in between.
        if file.lock(alone=False) and file.is_at(path):
            self.count(shards_fetched=int(shard.is_remote))
            for key in self.catalog.replaced_by(shard.key):
                if self.evict(key):
                    self.catalog.remove(key)
            return OpenCopy(shard, _opened(file), index, len(kept))
        file.close()
        return None

    def _has_room(self, copy: OpenCopy, missing: Int64s, *, least: int = 0) -> bool:
        """Reserve room for chunks that are missing, or for so many chunks in all."""
        if self.limit is None or copy.is_private:
            return True
        most = chunk_file.room_of(copy.index.size, copy.kept)
        if least:
            extra = chunk_file.overhead(copy.index.size, copy.kept)
            return self.catalog.grow(copy.shard.key, least=extra + least * CHUNK, most=most)
        return self.catalog.grow(copy.shard.key, more=len(missing) * CHUNK, most=most)

    def _sendable(self, copy: OpenCopy, chunks: Int64s) -> Int64s:
        """Return the chunks to claim: all, if the server of a shard sends whole files only."""
        is_whole = copy.shard.location in self._without_ranges
        return np.arange(copy.chunks.num_chunks) if is_whole else chunks

    def _begin(
        self, copy: OpenCopy, claim: Claim, gap: int, deadline: storage.Deadline, *, is_ahead: bool = False
    ) -> contextlib.AbstractContextManager[Any]:
        """Begin to fetch claimed chunks."""
        shard = copy.shard
        ranges = claim.ranges(gap, REQUEST)
        if not shard.is_remote:
            return contextlib.nullcontext(functools.partial(_copy, shard, ranges, claim))
        if shard.location in self._without_ranges:
            ranges = [(0, copy.index.file.size)]
        return storage.begin_ranges(
            shard.location, ranges, claim.write, shard.options,
            size=copy.index.file.size, deadline=deadline, is_ahead=is_ahead,
        )  # fmt: skip

    def _finish(self, copy: OpenCopy, download: Any) -> None:
        """Wait for a download, and count it."""
        try:
            done: storage.Transfer = download() if callable(download) else download.result()
        except StorageError as error:
            if error.kind == "ranges":
                self._without_ranges.add(copy.shard.location)
                return
            if error.kind == "length":
                raise ShardDamagedError(f"{error}: upload it again") from error
            raise
        self.count(bytes_fetched=done.bytes, retries=done.retries)

    @contextlib.contextmanager
    def clear_errors(self, what: str) -> Iterator[None]:
        """Turn ``OSError`` of the cache folder into `CacheError` with a remedy."""
        try:
            yield
        except OSError as error:
            cause: BaseException | None = error  # storage may have wrapped it
            while cause is not None:
                if isinstance(cause, OSError) and cause.errno in _FULL:
                    raise CacheError(
                        f"{self.root} has no room for {what} ({cause.strerror}; {shutil.disk_usage(self.root).free:,} "
                        f"bytes are free on its disk): free some, set cache_limit to what the disk holds, or choose "
                        f"another cache_dir"
                    ) from error
                if isinstance(cause, OSError) and (remedy := open_files_remedy(cause)):
                    raise CacheError(f"{what} cannot be opened ({cause.strerror}){remedy}") from error
                cause = cause.__cause__
            if isinstance(error, WdsdistError):
                raise
            raise CacheError(f"{self.root} cannot be used as a cache ({error}): choose another cache_dir") from error


def _needed_chunks(copy: OpenCopy, needs: Members | None) -> Int64s:
    """Return the chunks of what an epoch needs of a shard: all, unless it is less than half of the shard."""
    if needs is not None:
        members = needs(copy.index)
        if int(copy.index.sizes[members].sum()) < THIN * copy.index.size:
            return chunks_of_members(copy.index, members)
    return np.arange(copy.chunks.num_chunks)


def chunks_of_members(index: ShardIndex, members: Int64s) -> Int64s:
    """Return the chunks in which members lie, as far as they are read and checked."""
    offsets, lengths = shard_index.checksums.needed(index, members)
    return chunk_file.chunks_of(offsets, offsets + lengths)


@contextlib.contextmanager
def _hints() -> Iterator[None]:
    """Do without notes for later for which the disk is too full: what is in the cache can still be read."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise


def _opened(file: LockableFile) -> ChunkFile:
    header = chunk_file.header_of(file)
    assert header is not None
    return ChunkFile(file, header)


def _copy(shard: CopiedShard, ranges: list[tuple[int, int]], claim: Claim) -> storage.Transfer:
    """Copy ranges of a local shard."""
    try:
        source = storage.local_path(shard.location).open("rb", buffering=0)
    except FileNotFoundError as error:
        raise NotFoundError(f"shard {shard.location} does not exist") from error
    except OSError as error:
        raise StorageError(f"shard {shard.location} cannot be read: {error.strerror}") from error
    with source:
        for start, stop in ranges:
            at = start
            while at < stop:
                data = os.pread(source.fileno(), min(_PIECE, stop - at), at)
                if not data:
                    raise ShardDamagedError(f"shard {shard.shown} has become shorter: fetch or pack it again")
                claim.write(at, memoryview(data))
                at += len(data)
    return storage.Transfer(bytes=0, requests=0, retries=0)
