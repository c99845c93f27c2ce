"""Elect one process for a call, by a lock that the kernel frees when its holder dies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from wdsdist.distributed.results import Records
from wdsdist.errors import DataDownloadError, DataDownloadTimeoutError, DestinationError

_log = logging.getLogger("wdsdist")

_here = threading.local()
"""The calls that this thread is running: to wait for one of those would be to wait for ever."""


@contextmanager
def elected(name: str, records: Records, timeout: float | None, poll_seconds: float) -> Iterator[None]:
    """Hold the lock of a call, and let the others know who does.

    Args:
        name: the function, for messages.
        records: the files of the call.
        timeout: longest wait for the lock in seconds; None waits as long as its holder lives.
        poll_seconds: how often to look whether it is free.

    Raises:
        DataDownloadError: this thread holds the lock already.
        DataDownloadTimeoutError: another process held it for too long.
        DestinationError: the file system gives no locks.
    """
    running: set[str] = _here.__dict__.setdefault("running", set())
    if records.key in running:
        raise DataDownloadError(f"{name}() calls itself with the same arguments: it would wait for itself")
    # Where there is no flock, filelock would make do with a file that outlives a killed holder: all others would wait
    # for ever.
    lock = FileLock(records.lock, fallback_to_soft=False)
    try:
        try:
            lock.acquire(0)
        except Timeout:
            _log.info("waiting for %s, which runs %s()", records.holder(), name.rpartition(".")[2])
            lock.acquire(-1 if timeout is None else timeout, poll_seconds)
    except Timeout:
        raise DataDownloadTimeoutError(
            f"{name}() was not finished within {timeout:g} s by {records.holder()}: see what it is doing, end it so "
            "that another process takes over, or wait longer with timeout=..."
        ) from None
    except (OSError, NotImplementedError) as error:
        raise DestinationError(f"cannot lock {records.lock} ({error}): choose another directory=...") from error
    running.add(records.key)
    try:
        # Before anyone looks at the outcome: over NFS, only a change to a directory makes sure that a file which was
        # missing a moment ago is not still taken to be missing.
        records.announce()
        yield
    finally:
        running.discard(records.key)
        records.withdraw()
        lock.release()
