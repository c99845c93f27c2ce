"""Memory that processes share and that has no name: it ends with the last process that holds it, however that ends."""

from __future__ import annotations

import errno
import functools
import gc
import mmap
import os
import pickle
import tempfile
import weakref
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any

from wdsdist.errors import SharedMemoryError

_FALLBACK = "/dev/shm"
_ALIGNMENT = 64


class AnonymousMemory:
    """A sparse file without a name, in memory.

    Processes that are forked inherit it; to one that is being started otherwise it can be pickled, and to no other.
    It needs no room in ``/dev/shm``, except on kernels without ``memfd_create``.

    >>> memory = AnonymousMemory()
    >>> memory.allocate(0, 8)
    >>> one, other = memory.map(0, 8), memory.map(0, 8)
    >>> one[:6] = b"shared"
    >>> other[:6]
    b'shared'
    """

    def __init__(self) -> None:
        self._attach(*_anonymous_file())

    def _attach(self, descriptor: int, is_limited: bool) -> None:
        self._descriptor = descriptor
        # No ``__del__``: what a program keeps to its end is dropped when ``os`` is gone already.
        weakref.finalize(self, os.close, descriptor).atexit = False
        self._is_limited = is_limited  # by the size of the file system

    def allocate(self, offset: int, length: int) -> None:
        """Make a range usable. Without this a range that finds no memory would end the process on its first use.

        Raises `SharedMemoryError` where there is too little.
        """
        try:
            os.posix_fallocate(self._descriptor, offset, length)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT):
                raise
            raise SharedMemoryError(
                f"{length:,} bytes of shared memory were asked for and {self.available:,} are left"
            ) from error

    @property
    def available(self) -> int:
        """Bytes that can still be allocated, as far as the system tells."""
        if self._is_limited:
            room = os.fstatvfs(self._descriptor)
            return min(room.f_bavail * room.f_frsize, _free_memory())
        return _free_memory()

    def map(self, offset: int, length: int) -> mmap.mmap:
        """Map an allocated range; ``offset`` is a multiple of the page size."""
        return mmap.mmap(self._descriptor, length, offset=offset)

    def __reduce__(self) -> tuple[Any, ...]:
        context.assert_spawning(self)
        return _attached, (reduction.DupFd(self._descriptor), self._is_limited)


class SharedCopy:
    """A value whose arrays lie in shared memory, for processes that are started with it as an argument.

    What is pickled is small, whatever the arrays hold; each process that unpickles it maps the same memory. The
    arrays cannot be written there.
    """

    def __init__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self._rest = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        self._spans: list[tuple[int, int]] = []
        end = 0
        for buffer in buffers:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + buffer.raw().nbytes
            self._spans.append((start, end))
        self._memory = AnonymousMemory()
        if end:
            self._memory.allocate(0, end)
            with self._memory.map(0, end) as content:
                for (start, stop), buffer in zip(self._spans, buffers, strict=True):
                    content[start:stop] = buffer.raw()

    def value(self) -> Any:
        """Return the value, with arrays that are views of the shared memory."""
        end = self._spans[-1][1] if self._spans else 0
        content = memoryview(self._memory.map(0, end) if end else b"").toreadonly()
        return pickle.loads(self._rest, buffers=[content[start:stop] for start, stop in self._spans])


def is_spawning() -> bool:
    """Whether what is pickled now goes to a process that is being started."""
    return context.get_spawning_popen() is not None


def _attached(descriptor: Any, is_limited: bool) -> AnonymousMemory:
    memory = AnonymousMemory.__new__(AnonymousMemory)
    memory._attach(descriptor.detach(), is_limited)
    return memory


def _anonymous_file() -> tuple[int, bool]:
    """Return the descriptor of a new file, and whether its file system bounds it."""
    try:
        return os.memfd_create("wdsdist"), False
    except (AttributeError, OSError):  # another system, or a sandbox that forbids it
        folder = _FALLBACK if Path(_FALLBACK).is_dir() else None
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.dup(file.fileno()), True


def _free_memory() -> int:
    """Bytes of memory that this machine, or this container, has left."""
    free = [
        int(line.split()[1]) << 10
        for line in _lines("/proc/meminfo")
        if line.startswith(("MemAvailable:", "SwapFree:"))
    ]
    machine = sum(free) if free else 1 << 62
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if not limit or not used or limit[0] == "max":
        return machine
    # Cached files count as used and are given up for what is asked for.
    cached = sum(int(line.split()[1]) for line in _lines("/sys/fs/cgroup/memory.stat") if line.startswith("inactive_f"))
    return max(0, min(machine, int(limit[0]) - int(used[0]) + cached))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


@functools.cache
def leave_inherited_objects() -> None:
    """Take what a forked worker inherited out of its garbage collection: to look at an object is to copy its page."""
    gc.freeze()
