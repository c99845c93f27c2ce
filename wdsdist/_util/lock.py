"""The lock of a file, which one process at a time holds."""

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
def locked(
    path: Path,
    *,
    on_wait: Callable[[], object] = lambda: None,
    timeout: float | None = None,
    poll_seconds: float = 0.05,
    optional: bool = False,
) -> Iterator[None]:
    """Hold the lock of a file. The system frees it when this process ends, however it ends.

    Args:
        path: the file, which stays when the lock is free.
        on_wait: called if another process holds the lock, before this one waits for it.
        timeout: longest wait in seconds; ``None`` for no limit.
        poll_seconds: pause between two attempts.
        optional: on a file system without locks, log a warning and hold nothing.

    Raises ``TimeoutError`` after the longest wait, and any other ``OSError`` if the file cannot be locked.
    """
    # A file in place of a lock would outlive a process that is killed, and the others would wait without end.
    lock = FileLock(path, fallback_to_soft=False)
    try:
        try:
            lock.acquire(0)
        except Timeout:
            on_wait()
            lock.acquire(-1 if timeout is None else timeout, poll_seconds)
    except OSError as error:
        if not optional or error.errno not in _NO_LOCKS:
            raise
        _log.warning("%s is on a file system without locks (flock): let one process at a time write there", path.parent)
    try:
        yield
    finally:
        lock.release()
