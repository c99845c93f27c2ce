"""Urgency on the wire: what a batch waits for goes before anything that is fetched ahead, in all processes of a node.

Byte 0 of one file is locked by who fetches what a batch waits for, and a byte for each shard by who waits for it; the
system frees these locks with their process. Who fetches ahead asks before each request and each piece of an answer.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from wdsdist.cache import folders
from wdsdist.cache.locks import LockableFile

LONGEST = 5.0
"""Seconds after which a fetch goes on although others wait, counted from its first pause."""
_URGENT = 0


class Urgency:
    """Who waits for shards or parts of them, among all processes that use a cache folder.

    Args:
        path: the file of the locks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._leader: Callable[[], Any] = lambda: None
        self._process = 0

    def leads(self, connection: object) -> bool:
        """Return whether a connection is the one of this process that goes on while its others pause.

        So the line is never idle. Where there is none, or only that of a parent process, it is this connection now.
        """
        if self._process != os.getpid() or self._leader() is None:
            self._process, self._leader = os.getpid(), weakref.ref(connection)
        return self._leader() is connection

    @contextlib.contextmanager
    def waiting(self, keys: Collection[str] | None = None) -> Iterator[None]:
        """Let fetches ahead of need pause, in all processes, until the block ends.

        With keys of shards, only while one of these is fetched, which then goes before all others.
        """
        folders.make_root(self._path.parent)
        with LockableFile(self._path, writable=True, create=True) as file:
            for place in {_URGENT} if keys is None else set(map(_place, keys)):
                file.claim(place, place + 1, alone=False)
            yield

    @contextlib.contextmanager
    def line(self, key: str) -> Iterator[Line]:
        """Context of the fetch of a whole shard: yields its place in the line."""
        with LockableFile(self._path, writable=True, create=True) as file:
            yield Line(self, key, file)


class Line:
    """The place of one fetch in the line, as `storage.begin_fetch` takes it."""

    def __init__(self, urgency: Urgency, key: str, file: LockableFile) -> None:
        self._urgency = urgency
        self._place = _place(key)
        self._file = file
        self._is_urgent = False
        self._until = 0.0

    def must_pause(self, connection: object) -> bool:
        """Return whether a connection has to wait for others, which is asked again until it has not."""
        if self._is_urgent or not self._file.is_open:  # it was given up
            return False
        if self._file.is_claimed(self._place):
            self._file.claim(_URGENT, _URGENT + 1, alone=False)
            self._is_urgent = True
            return False
        if not self._file.is_claimed(_URGENT) or self._urgency.leads(connection):
            return False
        self._until = self._until or time.monotonic() + LONGEST
        return time.monotonic() < self._until

    def leave(self) -> None:
        """Leave the line to others: all bytes are there."""
        if self._file.is_open:
            self._file.unclaim()


def _place(key: str) -> int:
    """Return the byte of a shard."""
    return 1 + zlib.crc32(key.encode())
