"""Urgency on the wire: what a batch waits for goes before anything that is fetched ahead, in all processes of a node.

Who waits holds a lock on a byte of one file, which the system frees with its process; who fetches ahead asks whether
anybody does, before each request and each piece of an answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from wdsdist.cache import folders
from wdsdist.cache.locks import FLOCK, LockableFile

_LONGEST = 5.0
"""Seconds after which a fetch goes on although others wait, counted from its first pause."""


class Urgency:
    """Who waits for parts of shards, among all processes that use a cache folder.

    Args:
        path: the file of the locks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let fetches ahead of need pause, in all processes, until the block ends."""
        folders.make_root(self._path.parent)
        with contextlib.closing(LockableFile(self._path, writable=True, create=True)) as file:
            # Of the open file, unlike POSIX locks, which closing any other one in this process would free.
            fcntl.fcntl(file.fileno(), fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_RDLCK, 0, 0, 1, 0))
            yield

    @contextlib.contextmanager
    def pauses(self) -> Iterator[Callable[[], bool]]:
        """Context of a prefetch: yields a function that says whether it has to pause for a batch that waits."""
        until: list[float] = []
        with contextlib.closing(LockableFile(self._path, writable=True, create=True)) as file:

            def must_pause() -> bool:
                if not file.is_open:  # the fetch was given up
                    return False
                asked = fcntl.fcntl(file.fileno(), fcntl.F_OFD_GETLK, FLOCK.pack(fcntl.F_WRLCK, 0, 0, 1, 0))
                if FLOCK.unpack(asked)[0] == fcntl.F_UNLCK:
                    return False
                if not until:
                    until.append(time.monotonic() + _LONGEST)
                return time.monotonic() < until[0]

            yield must_pause
