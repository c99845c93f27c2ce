"""Urgency on the wire: what a batch waits for goes before anything that is fetched ahead, in all processes of a node.

Who waits holds locks on bytes of one file, which the system frees with its process: one byte for parts of shards, one
for each whole shard. Who fetches ahead asks whether anybody does, before each request and each piece of an answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from wdsdist.cache import folders
from wdsdist.cache.locks import FLOCK, LockableFile

LONGEST = 5.0
"""Seconds after which a fetch goes on although others wait, counted from its first pause."""
_PARTS = 0
"""The byte of who waits for parts; that of a whole shard is after it."""


class Urgency:
    """Who waits for shards or parts of them, among all processes that use a cache folder.

    Args:
        path: the file of the locks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._leader: Callable[[], Any] = lambda: None

    @contextlib.contextmanager
    def waiting(self, keys: Collection[str] | None = None) -> Iterator[None]:
        """Let fetches of all but these shards pause, in all processes, until the block ends; without any, of all."""
        folders.make_root(self._path.parent)
        with contextlib.closing(LockableFile(self._path, writable=True, create=True)) as file:
            for place in {_PARTS} if keys is None else set(map(_place, keys)):
                # Of the open file, unlike POSIX locks, which closing any other one in this process would free.
                fcntl.fcntl(file.fileno(), fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_RDLCK, 0, place, 1, 0))
            yield

    @contextlib.contextmanager
    def pauses(self, key: str) -> Iterator[Callable[[object], bool]]:
        """Context of a prefetch of a shard: yields a function that says whether a connection has to pause.

        One connection of each process goes on, so that the line is not idle between the requests of who waits.
        """
        until: list[float] = []
        with contextlib.closing(LockableFile(self._path, writable=True, create=True)) as file:

            def is_locked(start: int, length: int) -> bool:
                asked = fcntl.fcntl(file.fileno(), fcntl.F_OFD_GETLK, FLOCK.pack(fcntl.F_WRLCK, 0, start, length, 0))
                return bool(FLOCK.unpack(asked)[0] != fcntl.F_UNLCK)

            def must_pause(connection: object) -> bool:
                if not file.is_open:  # the fetch was given up
                    return False
                if not is_locked(0, 0) or is_locked(_place(key), 1):
                    return False
                if self._leader() is None:
                    self._leader = weakref.ref(connection)
                if self._leader() is connection:
                    return False
                if not until:
                    until.append(time.monotonic() + LONGEST)
                return time.monotonic() < until[0]

            yield must_pause


def _place(key: str) -> int:
    """Return the byte of a whole shard."""
    return 1 + zlib.crc32(key.encode())
