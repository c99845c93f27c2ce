"""Advisory file locks (flock): the system frees them when their process dies, and forks do not inherit them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import stat
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from sys import is_finalizing

from wdsdist._util.ownership import is_owner
from wdsdist.errors import CacheError

_LONGEST_PAUSE = 0.02  # seconds

_FLOCK = struct.Struct("@hhqqi4x")
"""The system's description of a lock on a range: kind, whence, start, length (0 for all), process."""

_open_files: weakref.WeakSet[LockableFile] = weakref.WeakSet()
# Held while files are opened and closed, so that no fork runs between the opening of a descriptor and its record.
# Reentrant, because garbage collection may close a file at any line.
_changing = threading.RLock()


_NO_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""Error numbers for a link, a folder, and a socket."""


class PlantedError(OSError):
    """A cache folder holds an entry that no cache of this user has made."""


class LockableFile:
    """An open file with an advisory lock, which is freed when the object is dropped.

    A lock belongs to the open file, not to the process: two threads that open a path twice exclude each other. A
    forked child would share its parent's locks and keep them alive, so all these files are closed in it.

    Raises `PlantedError` where the path is not a regular file of this user.
    """

    def __init__(self, path: Path, *, writable: bool = False, create: bool = False) -> None:
        self.path = path
        self._descriptor = -1
        # A link in a cache folder was planted by somebody else.
        # Without O_NONBLOCK, opening a named pipe would block until somebody writes to it.
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        with _changing:
            try:
                self._descriptor = os.open(path, flags, 0o600)
            except OSError as error:
                if error.errno in _NO_FILE:
                    raise PlantedError(error.errno, error.strerror, str(path)) from None
                raise
            _open_files.add(self)
        found = self.stat()
        if not (stat.S_ISREG(found.st_mode) and is_owner(found)):
            self.close()
            raise PlantedError(errno.EPERM, "it is no file of this user's", str(path))

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

    def unlock(self) -> None:
        if self.is_open:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def claim(self, start: int, stop: int, *, alone: bool = True) -> bool:
        """Try to lock a range of the file, exclusively (``alone``) or shared, until `unclaim`; return whether it is.

        It belongs to the open file, as `lock` does, and unlike POSIX locks, which closing any other one in this process
        would free. `lock` does not know of it.
        """
        if start == stop:  # to the system, all up to the end of the file
            return True
        kind = fcntl.F_WRLCK if alone else fcntl.F_RDLCK
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, 0, start, stop - start, 0))
        except BlockingIOError:
            return False
        return True

    def is_claimed(self, place: int) -> bool:
        """Return whether another open file has a lock on a byte."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, 0, place, 1, 0)
        found = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked)
        return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)

    def unclaim(self) -> None:
        """Unlock all ranges."""
        if self.is_open:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, 0, 0, 0))

    def close(self) -> None:
        if is_finalizing():  # the system closes it, and a thread that the interpreter has ended may hold the lock
            return
        with _changing:
            if self.is_open:
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> LockableFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def pauses(deadline: float, longest: float = _LONGEST_PAUSE) -> Iterator[None]:
    """Yield at once, then after growing pauses (backoff with jitter), until a deadline of ``time.monotonic``."""
    pause = 0.001
    while True:
        yield
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, pause * random.uniform(0.7, 1.3)))  # jitter: in step, the same process would win each time
        pause = min(1.5 * pause, longest)


def is_free(path: Path, *, writable: bool = True) -> bool:
    """Return whether a file is unlocked: no process holds its advisory lock, or there is no file, or a planted one."""
    try:
        file = LockableFile(path, writable=writable)  # NFS locks exclusively only what may be written
    except (FileNotFoundError, PlantedError):
        return True
    with file:
        return file.lock(alone=True)


def wait_until_free(path: Path, deadline: float) -> None:
    """Wait while another process or thread has a file locked exclusively, at most until a deadline.

    A look takes microseconds, where a look at the copy takes milliseconds, which whoever fetches it lacks.
    """
    with contextlib.suppress(FileNotFoundError, PlantedError), LockableFile(path) as file:
        for _ in pauses(deadline):
            if file.lock(alone=False):
                break


def _close_in_child() -> None:
    for file in list(_open_files):
        file.close()
    _changing.release()


os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_close_in_child)
