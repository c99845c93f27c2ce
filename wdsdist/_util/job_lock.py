"""The lock of a folder that one process at a time may change, on file systems that have locks."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP)
"""Error numbers of mounts without ``flock``, as Lustre and FUSE may be."""

_log = logging.getLogger("wdsdist")


@contextlib.contextmanager
def locked(path: Path, is_held: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of a file, which the system frees where this process dies, however it dies.

    Without ``flock`` nothing is locked, as in a store, and a warning says so: a file in place of a lock would outlive a
    process that is killed, and those on other machines would wait for it without end. Any other failure to lock it, as
    of NFS whose lock daemon is down, is an ``OSError``.

    Args:
        path: of the file.
        is_held: called where another process holds the lock, before this one waits for it.
    """
    lock = FileLock(path, fallback_to_soft=False)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            is_held()
            lock.acquire()
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning("%s is on a file system without locks (flock): let one process at a time write there", path.parent)
    try:
        yield
    finally:
        lock.release()
