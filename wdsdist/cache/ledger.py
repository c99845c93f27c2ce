"""How many bytes are in use in a cache folder, kept in the file that is locked, so that nobody has to add them up.

Thousands of copies take longer to look through than one of them to fetch. Whoever changes the folder empties the ledger
first and writes the new sum afterwards: who is killed in between leaves an empty one, and the next one adds up.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from wdsdist.cache import stamps
from wdsdist.cache.locks import LockableFile
from wdsdist.cache.paths import Place
from wdsdist.cache.usage import size_of


class Ledger:
    """The sum as it stands while the folder is locked.

    Args:
        file: that is locked.
        is_kept: whether this process keeps account of what it changes.
    """

    def __init__(self, file: LockableFile, *, is_kept: bool) -> None:
        self._file = file
        self._is_kept = is_kept and bool(stamps.boot())

    def read(self) -> int | None:
        """Return the bytes in use; nothing where that is not known, also of what was written before a crash."""
        used, _, boot = os.pread(self._file.fileno(), 100, 0).decode().partition(" ")
        return int(used) if boot == f"{stamps.boot()}\n" and self._is_kept else None

    def write(self, used: int) -> None:
        if self._is_kept:
            os.pwrite(self._file.fileno(), f"{used} {stamps.boot()}\n".encode(), 0)

    def forget(self) -> None:
        """Let the next one add up what is there."""
        os.ftruncate(self._file.fileno(), 0)

    @contextlib.contextmanager
    def changing(self, place: Place) -> Iterator[None]:
        """Keep account of what changes at one place. After an error nothing is known."""
        used, before = self.read(), size_of(place) if self._is_kept else 0
        self.forget()
        yield
        if used is not None:
            self.write(used + size_of(place) - before)
