"""The bytes of a tar on their way to disk: filled by one thread, digested and written by two others.

Bytes go from the system into a buffer and from there into the tar; none becomes a Python object. Both threads work on
the same buffer, so the digest is that of the very bytes that were written. (``copy_file_range`` and ``sendfile`` were
measured: no faster, for the digest has to read the bytes all the same.)
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from wdsdist.shards.index import Stored
from wdsdist.storage.compression import Zstd

BUFFER = 1 << 20
"""Bytes of a buffer: measured best, for what one core has read is still in the cache for the others."""
SPARE = 1
"""Bytes behind them, so that a file can be asked for one byte more than it should have."""

_BUFFERS = 4  # one that is filled, while others are digested and written
_SYNC = 16 << 20  # bytes after which the disk begins to write: the last fsync would have all of it to wait for


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place in a tar that can be gone back to."""

    position: int
    digest: Any
    file_position: int
    """Where that is in the file, which may hold the tar in compressed form."""
    file_digest: Any


class TarOutput:
    """Writes a file from its start by whole buffers; without a descriptor, it only counts and digests.

    With ``compress``, as `compression.checked` returns it, the file holds the tar in compressed form.

    Errors of the system surface at the next `buffer`, at `checkpoint` or at `finish`.
    """

    def __init__(self, descriptor: int | None, compress: str | None = None) -> None:
        self._descriptor = descriptor
        self._digest = hashlib.sha256()
        self._zstd = Zstd(compress) if compress else None
        self._file_digest = hashlib.sha256()  # of the compressed form, which the writing thread meets first
        self._file_position = 0
        self._threads = ThreadPoolExecutor(1, "wdsdist-digest"), ThreadPoolExecutor(1, "wdsdist-write")
        self._syncing = ThreadPoolExecutor(1, "wdsdist-sync")
        self._sync: Future[None] | None = None
        self._unsynced = 0
        self._free = deque(memoryview(mmap.mmap(-1, BUFFER + SPARE)) for _ in range(_BUFFERS))
        self._busy: deque[tuple[memoryview, tuple[Future[None], ...]]] = deque()
        self.position = 0

    def __enter__(self) -> TarOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in (*self._threads, self._syncing):
            thread.shutdown(cancel_futures=kind is not None)

    def buffer(self) -> memoryview:
        """Return a buffer to fill; it waits until one is free."""
        if not self._free:
            self._settle()
        return self._free[0]

    def send(self, count: int) -> None:
        """Write the first ``count`` bytes of the buffer that was filled."""
        view = self._free.popleft()
        digest, write = self._threads
        self._busy.append(
            (view, (digest.submit(self._digest.update, view[:count]), write.submit(self._write, view[:count])))
        )
        self.position += count

    def checkpoint(self) -> Checkpoint:
        """Wait until all that was sent is written, and note where that is."""
        while self._busy:
            self._settle()
        if self._zstd:
            self._put(memoryview(self._zstd.end_frame()))
        return Checkpoint(self.position, self._digest.copy(), self._file_position, self._file_digest.copy())

    def go_back(self, checkpoint: Checkpoint) -> None:
        """Drop what was sent since."""
        self.checkpoint()
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, checkpoint.file_position)
            os.lseek(self._descriptor, checkpoint.file_position, os.SEEK_SET)
        self._digest, self.position = checkpoint.digest, checkpoint.position
        self._file_digest, self._file_position = checkpoint.file_digest, checkpoint.file_position

    def finish(self) -> str:
        """Wait until all is written; return the SHA-256 digest, hexadecimal."""
        self.checkpoint()
        if self._sync is not None:
            self._sync.result()  # the system tells a descriptor of a failed write once, here or to the last fsync
        return str(self._digest.hexdigest())

    @property
    def stored(self) -> Stored | None:
        """The finished file, where it holds the tar in compressed form."""
        return Stored(self._file_position, self._file_digest.hexdigest()) if self._zstd else None

    def _settle(self) -> None:
        view, futures = self._busy.popleft()
        for future in futures:
            future.result()
        self._free.append(view)

    def _write(self, data: memoryview) -> None:
        self._put(memoryview(self._zstd.add(data)) if self._zstd else data)

    def _put(self, data: memoryview) -> None:
        if self._descriptor is None:
            return
        self._file_position += len(data)
        if self._zstd:
            self._file_digest.update(data)
        while data:
            count = os.write(self._descriptor, data)
            data, self._unsynced = data[count:], self._unsynced + count
        if self._unsynced >= _SYNC and (self._sync is None or self._sync.done()):
            if self._sync is not None:
                self._sync.result()
            self._sync, self._unsynced = self._syncing.submit(os.fdatasync, self._descriptor), 0
