"""What may befall a file between two runs, or a process in one."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path


def flip(path: Path, offset: int | None = None) -> None:
    """Change one byte in place, by default the middle one."""
    with path.open("r+b") as stream:
        place = os.fstat(stream.fileno()).st_size // 2 if offset is None else offset
        byte = os.pread(stream.fileno(), 1, place)
        os.pwrite(stream.fileno(), bytes([byte[0] ^ 1]), place)


def flip_keeping_its_time(path: Path) -> None:
    before = path.stat()
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 9 // 10)


@contextlib.contextmanager
def open_files_limited(more: int) -> Iterator[None]:
    """Let this process open so many files more than it has open now, and no others."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path(os.devnull).open() as following:
        number = following.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (number + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
