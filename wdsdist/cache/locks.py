"""Advisory locks of files and of their bytes, without waiting; the system frees them when their process dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from sys import is_finalizing

from wdsdist.errors import CacheError

_FLOCK = struct.Struct("@hhqqi4x")
"""The system's description of a lock on a range: kind, whence, start, length (0 for all), process."""

_open_files: weakref.WeakSet[LockableFile] = weakref.WeakSet()
# Held while files are opened and closed, so that no fork runs between the opening of a descriptor and its record.
# Reentrant, because garbage collection may close a file at any line.
_changing = threading.RLock()


class LockableFile(contextlib.AbstractContextManager["LockableFile"]):
    """An open file with an advisory lock, which is freed when the object is dropped.

    A lock belongs to the open file, not to the process: two threads that open a path twice exclude each other. A
    forked child would share its parent's locks and keep them alive, so all these files are closed in it.

    Raises ``OSError`` if the path is not a regular file of this user: somebody else has planted it.
    """

    def __init__(self, path: Path, *, writable: bool = False, create: bool = False) -> None:
        # Without O_NONBLOCK, opening a named pipe would block until somebody writes to it.
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        self._take(path, lambda: os.open(path, flags, 0o600))
        status = self.stat()
        if not (stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()):
            self.close()
            raise OSError(errno.EPERM, "it is not a file of this user", str(path))

    @classmethod
    def in_memory(cls, path: Path) -> LockableFile:
        """Return an empty file in anonymous memory, in place of the file of a path."""
        file = cls.__new__(cls)
        file._take(path, lambda: os.memfd_create("wdsdist"))
        file.is_in_memory = True
        return file

    def again(self) -> LockableFile:
        """Open the same file once more, writable, whatever its path leads to by now; its locks are its own."""
        file = type(self).__new__(type(self))
        file._take(self.path, lambda: os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC))
        return file

    def _take(self, path: Path, opened: Callable[[], int]) -> None:
        self.path = path
        self.is_in_memory = False
        self._num_shares = 0
        self._descriptor = -1
        with _changing:
            self._descriptor = opened()
            _open_files.add(self)

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    def fileno(self) -> int:
        return self._descriptor

    def stat(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def is_at(self, path: Path) -> bool:
        """Return whether a path still names this file."""
        try:
            return self.is_open and os.path.samestat(self.stat(), path.lstat())
        except FileNotFoundError:
            return False

    def lock(self, *, alone: bool) -> bool:
        """Try to lock the file, exclusively (``alone``) or shared, without waiting; return whether it is locked.

        After a failure, a lock that was held before is lost too.
        """
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise CacheError(
                f"{self.path} cannot be locked ({error.strerror}): choose a cache_dir on a file system with flock, "
                f"such as a local disk"
            ) from error
        return True

    def share(self) -> bool:
        """Take a shared lock (flock) against eviction, counted until `unshare`; return whether the file is locked."""
        with _changing:
            is_locked = self.lock(alone=False)
            self._num_shares += is_locked
        return is_locked

    def unshare(self) -> None:
        """Give up one hold of the shared lock; the last one unlocks the file, and its copy may be evicted."""
        with _changing:
            self._num_shares -= 1
            if self.is_open and not self._num_shares:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def claim(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Lock the free bytes of a range until `close`, and return them as ranges; other open files hold the rest.

        A lock belongs to the open file. A POSIX lock would be freed when any other open file of the process is closed.
        """
        if start >= stop:  # to the system, a length of 0 is all up to the end of the file
            return []
        try:
            lock = _FLOCK.pack(fcntl.F_WRLCK, 0, start, stop - start, 0)
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, lock)
        except BlockingIOError:
            kind, _, taken, length, _ = self._holder(start, stop)
            if kind == fcntl.F_UNLCK:  # freed in between
                return self.claim(start, stop)
            end = taken + length if length else stop
            return self.claim(start, taken) + self.claim(end, stop)
        return [(start, stop)]

    def is_claimed(self, byte: int) -> bool:
        """Return whether another open file has a lock on a byte."""
        return bool(self._holder(byte, byte + 1)[0] != fcntl.F_UNLCK)

    def _holder(self, start: int, stop: int) -> tuple[int, ...]:
        """Return a lock of another open file on a range: kind, whence, start, length (0 for all), process."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, 0, start, stop - start, 0)
        return _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked))

    def close(self) -> None:
        with _changing:
            if self.is_open:
                os.close(self._descriptor)
                self._descriptor = -1

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, is_ending: Callable[[], bool] = is_finalizing) -> None:
        # At the end of the interpreter, the system closes the file. A thread that was ended may hold the lock, and the
        # names of this module may be gone, but not the default of a parameter.
        if not is_ending():
            self.close()


def _close_in_child() -> None:
    for file in list(_open_files):
        file.close()
    _changing.release()


os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_close_in_child)
