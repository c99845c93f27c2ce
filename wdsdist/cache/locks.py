"""Advisory locks on open files (flock): the system frees them when their process dies, and no fork passes them on."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from sys import is_finalizing

from wdsdist._util.ownership import is_owner
from wdsdist.errors import CacheError

_LONGEST_PAUSE = 0.02  # seconds

_open_files: weakref.WeakSet[LockableFile] = weakref.WeakSet()
# Held while files are opened and closed, so that no fork comes between a descriptor and the note of it. Reentrant,
# because collected garbage may close a file at any line.
_changing = threading.RLock()


_NO_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""What the system says of a link, a folder, and a socket."""


class PlantedError(OSError):
    """In a cache folder there is something that no cache of this user has made."""


class LockableFile:
    """An open file that can be locked; dropped, it is closed and so unlocked.

    A lock belongs to the open file, not to the process: two threads that open a path twice exclude each other. A
    forked child would share its parent's locks and keep them alive, so all these files are closed in it.

    Raises `PlantedError` where there is something else than a file of this user's.
    """

    def __init__(self, path: Path, *, writable: bool = False, create: bool = False) -> None:
        self.path = path
        self._descriptor = -1
        # A link in a cache folder was put there by somebody else, and leads to what is not ours.
        # A named pipe would keep whoever opens it waiting, but for O_NONBLOCK.
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
        """Say whether a path still names this file."""
        try:
            return self.is_open and os.path.samestat(self.stat(), path.lstat())
        except FileNotFoundError:
            return False

    def lock(self, *, alone: bool) -> bool:
        """Lock the file, alone or together with others, and say whether that could be done at once.

        Where it could not, a lock that was held before is lost too.
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

    def close(self) -> None:
        if is_finalizing():  # the system closes it, and a thread that has ended with the interpreter may hold the lock
            return
        with _changing:
            if self.is_open:
                os.close(self._descriptor)
                self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def pauses(deadline: float, longest: float = _LONGEST_PAUSE) -> Iterator[None]:
    """Yield at once, and then after pauses that grow, until a time of ``time.monotonic``."""
    pause = 0.001
    while True:
        yield
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, pause * random.uniform(0.7, 1.3)))  # in step, the same one would come first each time
        pause = min(1.5 * pause, longest)


def _close_in_child() -> None:
    for file in list(_open_files):
        file.close()
    _changing.release()


os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_close_in_child)
