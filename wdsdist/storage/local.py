"""Local files as a `Store`."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import IO

from wdsdist._util.files import atomic_write
from wdsdist.errors import StorageError
from wdsdist.storage.store import Entry, Opened, Sink

_PIECE = 1 << 20


class LocalStore:
    """Store of local files, and of mounted file systems."""

    def read(
        self, path: str, start: int, stop: int | None, sink: Sink, *, size: int | None, timeout: float, opened: Opened
    ) -> Entry:
        """Give the bytes of a range to ``sink``, as `Store.read` says."""
        with Path(path).open("rb", buffering=0) as stream:
            entry = _entry(path, Path(path).name, os.fstat(stream.fileno()))
            end = entry.size if stop is None else stop
            if end > entry.size or size not in (None, entry.size):
                wanted = f"{end if size is None else size:,}"
                raise StorageError(
                    f"{path} cannot be read: {entry.size:,} bytes where there should be {wanted}", kind="length"
                )
            while start < end:
                piece = os.pread(stream.fileno(), min(_PIECE, end - start), start)
                if not piece:
                    raise StorageError(f"{path} cannot be read: it became shorter meanwhile", kind="length")
                sink(start, memoryview(piece))
                start += len(piece)
        return entry

    def stat(self, path: str, *, timeout: float) -> Entry:
        """Return the size and the time of a file."""
        return _entry(path, Path(path).name, Path(path).stat())

    def list(self, path: str, *, recursive: bool, timeout: float) -> list[Entry]:
        """Return what a folder holds, or all files below it."""
        root = Path(path)
        found = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for each in root.rglob("*") if recursive else root.iterdir():
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    if not (recursive and each.is_dir()):
                        found.append(_entry(str(each), str(each.relative_to(root)), each.stat()))
        return found

    def put(self, path: str, content: IO[bytes], *, timeout: float) -> None:
        """Write a file, whole or not at all."""
        with atomic_write(Path(path)) as stream:
            shutil.copyfileobj(content, stream, _PIECE)

    def delete(self, path: str, *, timeout: float) -> None:
        """Delete a file."""
        Path(path).unlink(missing_ok=True)


def _entry(path: str, name: str, status: os.stat_result) -> Entry:
    return Entry(name, status.st_size, f"{status.st_mtime_ns}", Path(path).is_dir())
