"""Anonymous shared memory: the system frees it with the last process that holds it, however that ends."""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import resource
import tempfile
import weakref
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any

from wdsdist.errors import SharedMemoryError

_FALLBACK = "/dev/shm"
UNUSABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOSYS)
"""Error numbers of a shared-memory folder that is read-only, closed to this user, or missing."""
_ALIGNMENT = 64


class AnonymousMemory:
    """Shared memory as a sparse, unnamed file (``memfd``), which forked processes inherit.

    It can be pickled only for a process that is being spawned. It needs no space in ``/dev/shm``, except on kernels
    without ``memfd_create``.

    >>> memory = AnonymousMemory()
    >>> memory.allocate(0, 8)
    >>> first, second = memory.map(0, 8), memory.map(0, 8)
    >>> first[:6] = b"shared"
    >>> second[:6]
    b'shared'
    """

    def __init__(self) -> None:
        self._attach(*_anonymous_file())

    def _attach(self, descriptor: int, is_limited: bool) -> None:
        self._descriptor = descriptor
        # No ``__del__``: objects that live to the end of a program are dropped after ``os`` is unloaded.
        weakref.finalize(self, os.close, descriptor).atexit = False
        self._is_limited = is_limited  # by the size of the file system

    def allocate(self, offset: int, length: int) -> None:
        """Allocate a range. Without this, a process that touches a range without memory is killed (SIGBUS).

        Raises `SharedMemoryError` if too little memory is available.
        """
        try:
            os.posix_fallocate(self._descriptor, offset, length)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT):
                raise
            why = f"{self.available:,} are left"
            if error.errno == errno.EFBIG:  # slots lie far apart in one sparse file
                most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
                why = f"`ulimit -f` allows files of {most:,}: set it to unlimited"
            raise SharedMemoryError(f"{length:,} bytes of shared memory were asked for and {why}") from error

    @property
    def available(self) -> int:
        """Bytes that can still be allocated, as far as the system reports."""
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
    """A value whose arrays lie in shared memory, for spawned processes that get it as an argument.

    Its pickle is small, whatever the arrays hold; each process that unpickles it maps the same memory. The arrays
    are read-only there.
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
    """Return whether the current pickling is for a process that is being spawned."""
    return context.get_spawning_popen() is not None


def _attached(descriptor: Any, is_limited: bool) -> AnonymousMemory:
    memory = AnonymousMemory.__new__(AnonymousMemory)
    memory._attach(descriptor.detach(), is_limited)
    return memory


def _anonymous_file() -> tuple[int, bool]:
    """Return the descriptor of a new unnamed file, and whether its size is bounded by its file system."""
    try:
        return os.memfd_create("wdsdist"), False
    except (AttributeError, OSError):  # another system, or a sandbox that forbids it
        folder = _FALLBACK if Path(_FALLBACK).is_dir() else None
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.dup(file.fileno()), True


def _free_memory() -> int:
    """Return the bytes of memory that are free on this machine, or in this container."""
    free = [
        int(line.split()[1]) << 10
        for line in _lines("/proc/meminfo")
        if line.startswith(("MemAvailable:", "SwapFree:"))
    ]
    machine = sum(free) if free else 1 << 62
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if not limit or not used or limit[0] == "max":
        return machine
    # Cached files count as used, but the kernel evicts them for new allocations.
    cached = sum(int(line.split()[1]) for line in _lines("/sys/fs/cgroup/memory.stat") if line.startswith("inactive_f"))
    return max(0, min(machine, int(limit[0]) - int(used[0]) + cached))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
