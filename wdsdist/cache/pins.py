"""A shard that may be read, because it is locked."""

from __future__ import annotations

import os
from pathlib import Path

from wdsdist.cache.locks import LockableFile
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
        self._seen = _identity(file)
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
        """Lock the shard again; false where it was evicted or altered, or is being looked at: then pin it anew."""
        if not self.is_locked and (self._file is None or (self._file.is_open and self._file.lock(alone=False))):
            self._is_locked = _identity(self._file) == self._seen
            if not self._is_locked:
                self.unlock()
        return self.is_locked

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


def _identity(file: LockableFile | None) -> tuple[bool, int, int]:
    """Return what tells a copy from one that has lost its name or changed its bytes."""
    if file is None:
        return True, 0, 0
    found: os.stat_result = file.stat()
    return found.st_nlink > 0, found.st_size, found.st_mtime_ns
