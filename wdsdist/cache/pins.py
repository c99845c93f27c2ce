"""A shard that may be read, because it is locked."""

from __future__ import annotations

from pathlib import Path

from wdsdist._util.files import sha256
from wdsdist.cache.locks import LockableFile
from wdsdist.errors import ShardDamagedError
from wdsdist.shards.index import ShardIndex


class Pinned:
    """A whole, verified shard on a local disk, which nobody evicts while it is locked.

    ``path`` says where it is and ``index`` what is in it. To map it, open ``path`` anew: a map keeps the file open
    that it was made of, also in forked children, and would keep a lock on that one.
    """

    def __init__(self, path: Path, index: ShardIndex, file: LockableFile | None) -> None:
        self.path = path
        self.index = index
        self._file = file  # none where the shard is read in place
        self._opened = self._seen = self._identity()
        self._is_locked = True

    @property
    def is_in_place(self) -> bool:
        """Whether it is a local shard, which no cache ever touches."""
        return self._file is None

    @property
    def is_locked(self) -> bool:
        """Whether the shard may be read now. In a forked child nothing is that was locked before."""
        return self._is_locked and (self._file is None or self._file.is_open)

    def lock(self) -> bool:
        """Lock the shard again; false where it was evicted or altered, or is being looked at: then pin it anew.

        One that was altered while it was locked stays so, for what still refers to its bytes.
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
        """Whether this process keeps a copy that was altered from being discarded, as it refers to its bytes."""
        return self.is_locked and self._file is not None and self._file.is_at(self.path)

    def check_in_place(self) -> None:
        """Raise `ShardDamagedError` where a local shard has other bytes than its index says, after it has changed.

        One that was only touched may be read on; so may one that another file has replaced, for a map is of the old.
        """
        now = self._identity()
        if now[:1] == self._opened[:1] and (now[2] != self.index.size or sha256(self.path) != self.index.sha256):
            raise ShardDamagedError(
                f"shard {self.path} was altered while it was being read: end what writes there, and fetch or pack the "
                f"shard again, or run `wdsdist index` if that was on purpose"
            )
        self._seen = now

    def unlock(self) -> None:
        """Allow that the shard is evicted."""
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
        """Return what tells the file from others and from what it was, inode first; nothing where it has gone."""
        try:
            found = self.path.stat() if self._file is None else self._file.stat()
        except FileNotFoundError:
            return ()
        return found.st_ino, found.st_nlink > 0, found.st_size, found.st_mtime_ns, found.st_ctime_ns
