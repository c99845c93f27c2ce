"""Verified copies of shards: their stamps, the check of a copy, and `Pinned`, which locks one while it is read.

A stamp is a file beside a copy with its digest and file times, so that it is hashed once; or with the space reserved
for a part.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from wdsdist._util import files
from wdsdist._util.host import boot
from wdsdist._util.ownership import is_own_file, read_own, why_not_own
from wdsdist.cache import folders
from wdsdist.cache.fetch import scan
from wdsdist.cache.locks import LockableFile
from wdsdist.cache.request import ShardRequest
from wdsdist.errors import IndexFormatError, ShardDamagedError
from wdsdist.shards import index as shard_index
from wdsdist.shards.index import ShardIndex, Stored

_EARLIER = 10_000_000_000  # nanoseconds


@dataclass(frozen=True, slots=True)
class Stamp:
    """Digest, size, times and inode of a file when it was verified."""

    sha256: str = ""
    size: int = -1
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0
    boot: str = ""
    """Boot id of the system: data that was not on disk at a crash may leave a file of zeros."""
    made_of: str = ""
    """Identity of the compressed file that was decompressed, as `ShardRequest.made_of` returns it."""
    reserved: int = 0
    """Bytes reserved for a part and its files."""

    def agrees(self, found: os.stat_result) -> bool:
        """Return whether the stamp is valid for a file: unchanged since verified, and writable by this user alone."""
        return Stamp.of(found, self.sha256, self.made_of) == self and not why_not_own(found)

    @classmethod
    def of(cls, found: os.stat_result, sha256: str, made_of: str) -> Stamp:
        """Return the stamp of a file with this ``stat``, whose bytes are verified."""
        return cls(sha256, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, boot(), made_of)

    @classmethod
    def read(cls, path: Path) -> Stamp | None:
        """Read a stamp; ``None`` where there is none, or it is incomplete or not this user's."""
        try:
            return cls(**json.loads(read_own(path) or b""))
        except (ValueError, TypeError):
            return None

    def write(self, path: Path) -> None:
        folders.write(path, json.dumps(asdict(self)).encode())


def stamp(descriptor: int, path: Path, sha256: str, made_of: str) -> None:
    """Write the stamp of an open file whose bytes are verified."""
    now = os.stat(descriptor).st_atime_ns
    # The time is set into the past, so that a write within the same clock tick changes it.
    with contextlib.suppress(PermissionError):  # another user's file
        os.fchmod(descriptor, os.stat(descriptor).st_mode & 0o755)
        os.utime(descriptor, ns=(now, os.stat(descriptor).st_mtime_ns - _EARLIER))
    Stamp.of(os.stat(descriptor), sha256, made_of).write(path)


def touch(path: Path) -> None:
    """Record that a copy is used now, by the time of its stamp."""
    with contextlib.suppress(OSError):  # it keeps an older time of use then
        os.utime(path)


def verify_bytes(request: ShardRequest, known: Stamp, *, is_trusted: bool) -> str:
    """Return the digest of a copy. Raises `ShardDamagedError` where it is not the listed shard.

    ``known`` is its stamp, which is trusted where the file has not changed since.
    """
    copy = request.paths.copy
    sha256 = known.sha256 if is_trusted else files.sha256(copy)
    promised = known.sha256 if request.listed.is_compressed else request.listed.sha256 or known.sha256
    if sha256 != promised or known.made_of != request.made_of() or request.listed_size not in (-1, copy.stat().st_size):
        raise ShardDamagedError(f"{copy} is not the shard that is listed")
    return sha256


def verified_index(request: ShardRequest, size: int, sha256: str) -> ShardIndex:
    """Return the index of a verified copy; without one the copy is scanned.

    Raises `ShardDamagedError` where the index is damaged or belongs to another shard.
    """
    kept = request.paths.index
    is_believed = is_own_file(kept)
    for path in (kept if is_believed else None, request.listed_index):
        if path and path.exists():
            try:
                index = shard_index.load(path)
            except IndexFormatError as error:
                raise ShardDamagedError(str(error)) from error
            if index.size != size or (index.sha256 and index.sha256 != sha256):
                raise ShardDamagedError(f"{path} is the index of another shard")
            return index
    index = scan(request, request.paths.copy, Stored(request.listed.size, request.listed.sha256))
    if not is_believed and (kept.is_symlink() or kept.exists()):
        kept.unlink(missing_ok=True)  # not written over: others may have mapped it
        folders.write(kept, shard_index.dumps(index))
    return index


class Pinned:
    """A verified shard on a local disk, locked against eviction.

    ``path`` is its file and ``index`` its index. To map it, open ``path`` anew: a map keeps its file open, also in
    forked children, and would keep the lock.
    """

    def __init__(self, path: Path, index: ShardIndex, file: LockableFile | None) -> None:
        self.path = path
        self.index = index
        self._file = file  # none where the shard is read in place
        self._opened = self._seen = self._identity()
        self._is_locked = True

    @property
    def is_in_place(self) -> bool:
        """Whether it is a local shard, which the cache never changes."""
        return self._file is None

    @property
    def is_locked(self) -> bool:
        """Whether the shard is locked and may be read. Locks do not survive a fork in the child."""
        return self._is_locked and (self._file is None or self._file.is_open)

    def lock(self) -> bool:
        """Lock the shard again; return false where it was evicted, altered or is being verified: then pin it anew.

        A shard that was altered while it was locked stays locked, for the values that refer to its bytes.
        """
        was_locked = self.is_locked
        if not was_locked and self._file is not None and not (self._file.is_open and self._file.lock(alone=False)):
            return False
        if self._identity() == self._seen:
            self._is_locked = True
            return True
        if not was_locked:
            self.unlock()
        return False

    @property
    def must_be_replaced(self) -> bool:
        """Whether this process holds the lock of an altered copy in the cache, so that it cannot be discarded."""
        return self.is_locked and self._file is not None and self._file.is_at(self.path)

    def check_in_place(self) -> None:
        """Raise `ShardDamagedError` where a local shard that has changed no longer agrees with its index.

        A shard with a new time only may be read on; so may a replaced one, because its map is of the old file.
        """
        now = self._identity()
        if now[:1] == self._opened[:1] and (now[2] != self.index.size or files.sha256(self.path) != self.index.sha256):
            raise ShardDamagedError(
                f"shard {self.path} was altered while it was being read: end what writes there, and fetch or pack the "
                f"shard again, or run `wdsdist index` if that was on purpose"
            )
        self._seen = now

    def unlock(self) -> None:
        """Unlock the shard, so that it may be evicted."""
        self._is_locked = False
        if self._file is not None:
            self._file.unlock()

    def close(self) -> None:
        """Unlock the shard for good."""
        self._is_locked = False
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Pinned:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _identity(self) -> tuple[int, ...]:
        """Return inode, links, size and times of the file, which change with it; empty where it is gone."""
        try:
            found = self.path.stat() if self._file is None else self._file.stat()
        except FileNotFoundError:
            return ()
        return found.st_ino, found.st_nlink > 0, found.st_size, found.st_mtime_ns, found.st_ctime_ns
