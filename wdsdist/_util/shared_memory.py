"""Anonymous shared memory: the system frees it with the last process that holds it, however that ends."""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import weakref
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any

from wdsdist.errors import SharedMemoryError

_ALIGNMENT = 64


class AnonymousMemory:
    """Shared memory as a sparse, unnamed file (``memfd``), which forked processes inherit.

    It can be pickled only for a process that is being spawned. It needs no space in ``/dev/shm``.

    >>> memory = AnonymousMemory()
    >>> memory.allocate(0, 8)
    >>> first, second = memory.map(0, 8), memory.map(0, 8)
    >>> first[:6] = b"shared"
    >>> second[:6]
    b'shared'
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = os.memfd_create("wdsdist") if descriptor is None else descriptor
        # No ``__del__``: objects that live to the end of a program are dropped after ``os`` is unloaded.
        weakref.finalize(self, os.close, self._descriptor).atexit = False

    def allocate(self, offset: int, length: int) -> None:
        """Allocate a range. Without this, a process that touches a range without memory is killed (SIGBUS).

        Raises `SharedMemoryError` if too little memory is available.
        """
        try:
            os.posix_fallocate(self._descriptor, offset, length)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT):
                raise
            raise SharedMemoryError(
                f"{length:,} bytes of shared memory were refused ({error.strerror}), and {self.available:,} are left"
            ) from error

    @property
    def available(self) -> int:
        """Bytes that can still be allocated, as far as the system reports: on this machine, or in this container."""
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
        cached = [line for line in _lines("/sys/fs/cgroup/memory.stat") if line.startswith("inactive_f")]
        return max(0, min(machine, int(limit[0]) - int(used[0]) + sum(int(line.split()[1]) for line in cached)))

    def map(self, offset: int, length: int) -> mmap.mmap:
        """Map an allocated range; ``offset`` is a multiple of the page size."""
        return mmap.mmap(self._descriptor, length, offset=offset)

    def __reduce__(self) -> tuple[Any, ...]:
        context.assert_spawning(self)
        return _attached, (reduction.DupFd(self._descriptor),)


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


def _attached(descriptor: Any) -> AnonymousMemory:
    return AnonymousMemory(descriptor.detach())


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
