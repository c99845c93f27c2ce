"""`Pinned`: a shard that is locked against eviction while it is read."""

from __future__ import annotations

from pathlib import Path

from wdsdist._util.files import sha256
from wdsdist.cache.locks import LockableFile
from wdsdist.errors import ShardDamagedError
from wdsdist.shards.index import ShardIndex


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
        if now[:1] == self._opened[:1] and (now[2] != self.index.size or sha256(self.path) != self.index.sha256):
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
