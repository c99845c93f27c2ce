"""The space of a cache folder: reserve space for a part, evict copies, install fetched ones.

Files are created, renamed and deleted only here, under one lock that is held briefly.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist.cache import folders
from wdsdist.cache.copies import Stamp, stamp
from wdsdist.cache.extents import ExtentMap
from wdsdist.cache.fetch import Fetched
from wdsdist.cache.folders import LOCK, READERS, WAITING, CopyPaths
from wdsdist.cache.locks import LockableFile, PlantedError, is_free, pauses
from wdsdist.cache.priorities import NEVER, Need, Reader, all_needs
from wdsdist.cache.request import ShardRequest
from wdsdist.cache.usage import STAMP_BYTES, Held, Ledger, all_held, reserved_for, size_of, sparse_size
from wdsdist.errors import CacheError
from wdsdist.shards.index import ShardIndex
from wdsdist.storage import Deadline

_SLACK = 64
"""An eviction may free one such part of the limit in excess, because a scan of a full folder is slow."""

_MOMENT = 0.002
"""Longest pause in seconds between attempts to lock the folder."""

_BLOCK_BYTES = 4096
"""Of a file system: each range of a sparse copy may take two more of them in part."""

_MAP_BYTES = 4096
"""Of a map with few extents."""

_BEYOND = 1 << 33
"""Byte of a file of locks after those that `Urgency` uses."""

_PATIENCE = 10.0
"""Least seconds to wait for the folder's lock, whatever the deadline, so that a late fetch is not lost."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a shard cannot be fetched now; the request may be repeated."""

    reason: str
    has_room_later: bool = False
    """Whether others than the batch that needs it hold enough space, which they will free."""


class CacheSpace:
    """The space of one cache folder, as one process uses it: reservation, eviction and installation.

    Args:
        root: the folder.
        limit: bytes that it may take; without one nothing is evicted.
    """

    def __init__(self, root: Path, limit: int | None) -> None:
        self.root = root
        self._limit = limit
        self.reader = Reader(root / READERS)

    @contextlib.contextmanager
    def alone(self, deadline: Deadline) -> Iterator[Ledger]:
        """Hold the folder's lock; the first time, register this process and delete the files of dead ones."""
        folders.make_root(self.root)
        with LockableFile(self.root / LOCK, writable=True, create=True) as file:
            for _ in pauses(max(deadline.end, time.monotonic() + _PATIENCE), _MOMENT):
                if file.lock(alone=True):
                    break
            else:
                raise CacheError(f"{self.root} stays locked by a process that is stopped: end that process")
            ledger = Ledger(file, is_kept=self._limit is not None)
            if not self.reader.has_joined:
                self.reader.join()
                self._all_held(ledger)
            yield ledger

    def check(self, paths: CopyPaths) -> None:
        """Raise `CacheError` where other users can have replaced the folders of a copy."""
        with contextlib.suppress(FileNotFoundError):
            folders.check_root(self.root)
            folders.check_folder(paths.folder)

    def take(self, paths: CopyPaths, deadline: Deadline, *, anew: bool = False) -> LockableFile | None:
        """Create and lock the part file of a shard, to fetch it; ``None`` where it is cached or being fetched.

        With ``anew`` the shard is fetched even where a copy is cached.
        """
        with self.alone(deadline) as ledger:
            folders.make_folder(paths.folder)
            if not anew and _is_there(paths.copy):
                return None
            with ledger.changing(paths):
                part = LockableFile(paths.part, writable=True, create=True)
                if not part.lock(alone=True):
                    return None
                if reserved_for(paths):  # by a dead process: this part would count with its bytes
                    Stamp().write(paths.stamp)
            return part

    def expect(self, needs: Iterable[Need], job: str, deadline: Deadline) -> None:
        """Publish the copies that this process will read, nearest first."""
        if not self.reader.has_joined:
            with self.alone(deadline):
                pass
        self.reader.expect(needs, job)

    def reserve(self, part: LockableFile, request: ShardRequest) -> Refusal | None:
        """Reserve space for a part and its index, and evict copies that are needed later; return why it is refused."""
        paths, size = request.paths, request.size
        if size < 0 and self._limit is not None:
            raise CacheError(
                f"{request.shown} has a size that neither index.json nor its store tells, so cache_limit cannot be "
                f"kept: index the data set with `wdsdist index`, or set no cache_limit"
            )
        index_bytes = request.index_bytes(ask=self._limit is not None)
        reserved = max(0, size) + request.extra_bytes + index_bytes + STAMP_BYTES
        if self._limit is not None and reserved > self._limit:
            raise CacheError(
                f"cache_limit is {self._limit:,} bytes but {request.shown} takes {reserved:,} with its index: raise it"
            )
        with self.alone(request.deadline) as ledger:
            sparse = sparse_size(paths)
            if refusal := self._find_room(ledger, paths, reserved + sparse):
                # The parts of a shard must not keep all of it out, which a batch waits for.
                if request.is_ahead or not sparse or self._find_room(ledger, paths, reserved):
                    return refusal
                with ledger.changing(paths):
                    is_dropped = _drop_sparse(paths)
                if not is_dropped:
                    return refusal
            with ledger.changing(paths):
                Stamp(reserved=reserved).write(paths.stamp)
                os.ftruncate(part.fileno(), 0)
                _allocate(part.fileno(), size)
        return None

    @contextlib.contextmanager
    def alone_with(self, request: ShardRequest) -> Iterator[None]:
        """Let one process or thread at a time do something for a shard, at least until the deadline of its request."""
        folders.make_root(self.root)
        place = _BEYOND + zlib.crc32(request.paths.key.encode())
        # Not of the folder's lock file: NFS keeps a lock on it by making it one on all of its bytes.
        with LockableFile(self.root / WAITING, writable=True, create=True) as file:
            for _ in pauses(request.deadline.end, _MOMENT):
                if file.claim(place, place + 1):
                    break
            yield

    def claim(self, batch: Collection[str], deadline: Deadline) -> None:
        """Publish that a batch of this thread needs these copies, until its reader rests: others make room for them."""
        if self._limit is not None:
            with self.alone(deadline):
                self.reader.claim(batch, all_needs(self.root / READERS).latest)

    def add_sparse(self, request: ShardRequest, index: ShardIndex) -> Refusal | None:
        """Add a sparse copy of a shard, without an extent; return why it is refused."""
        paths, sidecar = request.paths, request.sidecar or b""
        with self.alone(request.deadline) as ledger:
            folders.make_folder(paths.folder)
            if _is_there(paths.sparse):
                return None  # of another process, meanwhile
            if refusal := self._find_more(ledger, paths, len(sidecar) + _MAP_BYTES):
                return refusal
            folders.note_source(paths.folder, storage.split(request.location)[0])
            with ledger.changing(paths):
                if sidecar and not paths.copy.exists():
                    _remove(paths.index)  # never written over: others may have mapped it
                    folders.write(paths.index, sidecar)
                _remove(paths.sparse, paths.extents)
                ExtentMap.create(paths.extents, index.size, index.sha256)
                # The copy last: who finds it finds its index and its map.
                with LockableFile(paths.sparse, writable=True, create=True) as file:
                    os.ftruncate(file.fileno(), request.size)
        return None

    def drop_sparse(self, paths: CopyPaths, deadline: Deadline) -> None:
        """Delete a sparse copy, unless a process uses it."""
        with self.alone(deadline) as ledger, ledger.changing(paths):
            _drop_sparse(paths)

    def allocate(self, request: ShardRequest, sparse: int, ranges: Int64s, *, recorded: int) -> Refusal | None:
        """Allocate the disk space of ranges of an open sparse copy; return why it is refused.

        ``recorded`` are the bytes that its map has. Others may be fetching what is allocated beyond these, which counts
        twice where it is what is asked for.
        """
        paths = request.paths
        with self.alone(request.deadline) as ledger:
            more = int(((ranges[:, 1] - ranges[:, 0]) + 2 * _BLOCK_BYTES).sum()) + 16 * len(ranges)
            coming = max(0, sparse_size(paths) - recorded)
            if refusal := self._find_more(ledger, paths, more, coming):
                return refusal
            with ledger.changing(paths):
                for start, stop in ranges.tolist():
                    _allocate(sparse, stop - start, start)
        return None

    def record(self, request: ShardRequest, extents: ExtentMap, ranges: Int64s) -> None:
        """Record ranges whose bytes are written and checked in the map of a sparse copy."""
        if self._limit is None:
            extents.add(ranges)
            return
        with self.alone(request.deadline) as ledger, ledger.changing(request.paths):
            extents.add(ranges)

    def give_up(self, part: LockableFile, paths: CopyPaths, deadline: Deadline) -> None:
        """Delete a part that this process has taken."""
        with part, self.alone(deadline) as ledger, ledger.changing(paths):
            _remove(paths.part)
            if not paths.copy.exists():
                _remove(paths.stamp, *(() if paths.sparse.exists() else (paths.index,)))

    def install(self, part: LockableFile, request: ShardRequest, fetched: Fetched) -> None:
        """Rename a verified part to the copy, and write its index beside it."""
        paths, sidecar = request.paths, fetched.sidecar
        taken = part.stat().st_size + len(sidecar or b"") + STAMP_BYTES
        with self.alone(request.deadline) as ledger, ledger.changing(paths):
            _remove(paths.index)  # never written over: others may have mapped it
            # The size of an index that had to be made was an estimate: where it exceeds its reservation it is not kept.
            if sidecar is not None and (self._limit is None or taken <= reserved_for(paths)):
                folders.write(paths.index, sidecar)
            paths.part.replace(paths.copy)
            stamp(part.fileno(), paths.stamp, fetched.sha256, fetched.made_of)
            _drop_sparse(paths)

    def discard(self, paths: CopyPaths, copy: LockableFile, deadline: Deadline) -> None:
        """Delete a copy that this process has opened and locked exclusively."""
        with self.alone(deadline) as ledger, ledger.changing(paths):
            if copy.is_at(paths.copy):
                _drop(paths, copy)

    def stamp(self, request: ShardRequest, copy: LockableFile, sha256: str) -> None:
        """Stamp a copy, locked exclusively by this process, as verified.

        A file that the user has put there becomes part of the cache.
        """
        paths = request.paths
        with self.alone(request.deadline) as ledger, ledger.changing(paths):
            stamp(copy.fileno(), paths.stamp, sha256, request.made_of())

    def replace_index(self, request: ShardRequest, content: bytes) -> None:
        """Write another index beside a copy that this process has locked; without room for it, none stays."""
        paths = request.paths
        with self.alone(request.deadline) as ledger:
            with ledger.changing(paths):
                _remove(paths.index)  # never written over: others may have mapped it
            # Looked at first: room is made only for what a process has said that it needs.
            if self._fits(ledger, paths, len(content)) or not self._find_room(ledger, paths, len(content)):
                with ledger.changing(paths):
                    folders.write(paths.index, content)

    def refusal(self, request: ShardRequest) -> Refusal | None:
        """Return why a shard cannot be prefetched now, before its store is asked for anything; evict nothing."""
        if self._limit is None:
            return None
        with self.alone(request.deadline) as ledger:
            wanted = request.paths, request.listed_size
            # Looked at first, for the lists of readers are many files.
            return None if self._fits(ledger, *wanted) else self._find_room(ledger, *wanted, evicts=False)

    def held(self, deadline: Deadline) -> list[tuple[Held, bool]]:
        """Return all shards in the folder, each with whether a live process reads, fetches or needs it."""
        with self.alone(deadline) as ledger:
            needs = all_needs(self.root / READERS)
            held = self._all_held(ledger)
            return [(one, needs.rank(one.paths.key) != NEVER or not _is_free(one)) for one in held]

    def remove(self, unwanted: Iterable[Held], deadline: Deadline) -> list[Held]:
        """Remove copies that no live process reads, fetches or needs; return those that were removed."""
        with self.alone(deadline) as ledger:
            needs = all_needs(self.root / READERS)
            ledger.forget()
            return [
                one for one in unwanted if needs.rank(one.paths.key) == NEVER and one.is_whole and _evict(one.paths)
            ]

    def _fits(self, ledger: Ledger, paths: CopyPaths, wanted: int) -> bool:
        """Return whether the ledger shows enough space for a shard."""
        used = ledger.read()
        return used is not None and self._missing(used, paths, wanted) <= 0

    def _missing(self, used: int, paths: CopyPaths, wanted: int) -> int:
        """Return the bytes that are missing for a shard when ``used`` bytes are in use, its own files included."""
        return used - (0 if paths.copy.exists() else size_of(paths)) + wanted - (self._limit or 0)

    def _find_more(self, ledger: Ledger, paths: CopyPaths, more: int, coming: int = 0) -> Refusal | None:
        """Make room for ``more`` bytes of a sparse copy; return why that is refused."""
        if paths.copy.exists():
            return Refusal("all of it has come meanwhile")
        return self._find_room(ledger, paths, size_of(paths) + more, coming=coming)

    def _find_room(
        self, ledger: Ledger, paths: CopyPaths, wanted: int, *, evicts: bool = True, coming: int = 0
    ) -> Refusal | None:
        """Make room for the files of a shard, of ``wanted`` bytes in all; return why that is refused.

        Copies of a lower priority are evicted until they fit; without ``evicts``, it is only found whether they would.
        Once the ``coming`` bytes are there, which others fetch, that many may be wanted no more.
        """
        if self._limit is None:
            return None
        needs = all_needs(self.root / READERS)
        rank = min(needs.rank(paths.key), self.reader.claimed(paths.key))
        if rank == NEVER and needs.ranks:  # read and evicted since its prefetch was scheduled
            return Refusal("nobody needs it any more")
        if self._fits(ledger, paths, wanted):
            return None
        held = self._all_held(ledger)
        missing = self._missing(sum(one.size for one in held), paths, wanted)
        whole = [one for one in held if one.is_whole]
        later = [one for one in whole if needs.rank(one.paths.key) > rank]
        sooner = sum(one.size for one in whole) - sum(one.size for one in later)
        freed = 0
        if 0 < missing <= sum(one.size for one in later):
            if not evicts:
                return None
            # Copies that no process needs by their last use, then the others by their next use, furthest first.
            later.sort(key=lambda one: one.last_use)
            later.sort(key=lambda one: needs.rank(one.paths.key), reverse=True)
            freed = self._evict(ledger, later, missing)
            missing -= freed
        if missing <= 0:
            return None
        # Not told by the rank: a copy has that of the oldest of the batches that wait for it.
        of_others = (
            sum(one.size for one in held if one.paths.key not in batch) for batch in self.reader.batches_with(paths.key)
        )
        return Refusal(
            f"{missing:,} bytes of the {self._limit:,} of cache_limit are missing, where {sooner:,} hold what is "
            f"needed sooner and the rest is being read or fetched",
            has_room_later=missing + freed - coming <= max(of_others, default=0),
        )

    def _evict(self, ledger: Ledger, copies: Iterable[Held], missing: int) -> int:
        """Evict copies in this order until ``missing`` bytes are free, and a few more; return the bytes freed."""
        used, freed = ledger.read(), 0
        ledger.forget()
        most = missing + (self._limit or 0) // _SLACK
        for one in copies:
            if (freed < missing or freed + one.size <= most) and _evict(one.paths):
                freed += one.size
        if used is not None:
            ledger.write(used - freed)
        return freed

    def _all_held(self, ledger: Ledger) -> list[Held]:
        """List all shards in the folder, which is slow for a large cache, and write their sum to the ledger."""
        ledger.forget()
        held = all_held(self.root)
        ledger.write(sum(one.size for one in held))
        return held


def _is_there(copy: Path) -> bool:
    """Return whether there is a copy; planted files in its place do not count, and will be replaced."""
    try:
        LockableFile(copy).close()
    except (FileNotFoundError, PlantedError):
        return False
    return True


def _is_free(one: Held) -> bool:
    """Return whether no process reads or fetches a shard."""
    for path in (one.paths.copy, one.paths.sparse):
        with contextlib.suppress(PermissionError):  # it is not ours to read
            if not is_free(path, writable=False):
                return False
    return one.is_whole


def _evict(paths: CopyPaths) -> bool:
    """Evict a shard from the cache, whole or sparse copy, unless a process is reading it; return whether it was."""
    is_sparse = paths.sparse.exists()
    if is_sparse and not _drop_sparse(paths):
        return False
    try:
        with LockableFile(paths.copy) as file:
            if file.lock(alone=True):
                _drop(paths, file)
                return True
    except FileNotFoundError:
        if is_sparse:
            _remove(paths.index, paths.stamp)
        return is_sparse
    except OSError:  # it is not ours to write
        pass
    return False


def _drop_sparse(paths: CopyPaths) -> bool:
    """Evict a sparse copy and its extent map, unless a process uses it; return whether it is gone."""
    try:
        with LockableFile(paths.sparse, writable=True) as file:
            if not file.lock(alone=True):
                return False
            os.ftruncate(file.fileno(), 0)
    except FileNotFoundError:
        pass
    except PlantedError:  # a link is deleted, not what it leads to
        pass
    _remove(paths.sparse, paths.extents)
    return True


def _drop(paths: CopyPaths, copy: LockableFile) -> None:
    """Delete a copy that is locked exclusively, with its index and its stamp."""
    if copy.stat().st_nlink == 1:
        # A map of it must not keep the disk space. A file with several names may be the user's data: it is not emptied.
        with contextlib.suppress(FileNotFoundError):  # where there is no /proc
            os.truncate(f"/proc/self/fd/{copy.fileno()}", 0)  # this file, whatever its path leads to by now
    paths.copy.unlink()
    # The stamp last: if this process is killed before, the stamp marks the leftover files as the cache's own.
    _remove(paths.index, paths.stamp)


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _allocate(descriptor: int, size: int, start: int = 0) -> None:
    """Allocate the disk space of a file, so that a full disk is found before anything is fetched."""
    if size > 0:
        try:
            os.posix_fallocate(descriptor, start, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            os.truncate(descriptor, max(start + size, os.fstat(descriptor).st_size))
