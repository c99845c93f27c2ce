"""One fetch while it runs: parts in parallel, each tried again until it is there or the time is over.

Everything runs as coroutines on the event loop of fsspec's thread, which writes the bytes as they arrive. So there are
no threads to wait for, none is made before a fork, and what is cancelled writes no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from wdsdist.errors import ArgumentError
from wdsdist.storage.deadline import Attempts, Deadline
from wdsdist.storage.failures import FinalError, MisfitError, PassingError, mapped
from wdsdist.storage.streams import NoRangesError, pieces, size_of
from wdsdist.storage.urls import shown

T = TypeVar("T")
GRACE = 2.0
"""Seconds for what is cancelled to end."""
_PART = 8 << 20  # bytes
_PATIENCE = 300.0  # seconds
_STALL = 20.0  # seconds without a byte


@dataclass(frozen=True, slots=True)
class Transfer:
    """What it took to fetch a file."""

    bytes: int
    """Its size."""
    requests: int
    """All that were made, those that failed included."""
    retries: int
    """Of these, the ones that repeated another."""


class Connections:
    """At most so many requests at once, by all the fetches of a process that share it.

    Any thread may use it. In another process it is another one with the same limit: where each of several workers
    fetches, give each its share.
    """

    def __init__(self, limit: int = 16) -> None:
        if limit < 1:
            raise ArgumentError(f"limit={limit}: there must be at least one connection")
        self.limit = limit
        # Of each event loop, as a forked process has another; made when it is first used there.
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"Connections({self.limit})"

    def __reduce__(self) -> tuple[type[Connections], tuple[int]]:
        return Connections, (self.limit,)

    def slot(self) -> asyncio.Semaphore:
        """Return what to hold during a request, on the running loop."""
        return self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.limit))


@dataclass(slots=True)
class _Watch:
    """Over one request and its repetitions."""

    allowance: float
    """Seconds without a byte that count as a fault."""
    moved: float = 0.0
    """When the last bytes came."""


@dataclass(eq=False)
class Copy:
    """One fetch while it runs, on the event loop."""

    location: str
    path: Path
    client: Any
    remote: str
    deadline: Deadline | None
    connections: Connections
    requests: int = 0
    retries: int = 0
    fault: FinalError | PassingError | None = None
    """The last one."""
    file: int = -1
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when nothing is written any more."""

    async def run(self, size: int | None) -> Transfer:
        try:
            with self._kept():
                self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if size is None:
                size = await self._persist(lambda _: size_of(self.client, self.remote))
            if size is None or size <= _PART:
                size = await self._part(None, size)
            else:
                try:
                    await self._parts(size)
                except NoRangesError:
                    await self._part(None, size)
            with self._kept():
                if os.fstat(self.file).st_size != size:
                    os.ftruncate(self.file, size)
        finally:
            file, self.file = self.file, -1  # what does not heed its cancellation must not write into another's file
            if file >= 0:
                os.close(file)
            self.ended.set()
        return Transfer(size, self.requests, self.retries)

    async def _parts(self, size: int) -> None:
        starts = range(0, size, _PART)
        tasks = [
            asyncio.ensure_future(self._part(range(start, stop), stop - start))
            for start, stop in zip(starts, [*starts[1:], size], strict=True)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            await _cancel(*tasks)

    async def _part(self, wanted: range | None, size: int | None) -> int:
        """Copy a range, or the whole file, whose size may be known; returns its size."""
        return await self._persist(lambda watch: self._receive(wanted, size, watch))

    async def _receive(self, wanted: range | None, size: int | None, watch: _Watch) -> int:
        start, got = wanted.start if wanted else 0, 0
        async with contextlib.aclosing(pieces(self.client, self.remote, wanted)) as stream:
            async for piece in stream:
                if size is not None and got + len(piece) > size:
                    raise MisfitError(f"more than {size:,} bytes")
                self._write(piece, start + got)
                got += len(piece)
                watch.moved = time.monotonic()
        if size is not None and got != size:
            raise MisfitError(f"{got:,} bytes where there should be {size:,}")
        return got

    def _write(self, piece: bytes, at: int) -> None:
        view = memoryview(piece)
        with self._kept():
            while view:
                written = os.pwrite(self.file, view, at)
                at, view = at + written, view[written:]

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Tell faults of this machine's disk from those of the store."""
        try:
            yield
        except OSError as error:
            raise FinalError(f"{shown(self.location)} cannot be kept in {self.path}: {error.strerror}") from None

    async def _persist(self, action: Callable[[_Watch], Coroutine[Any, Any, T]]) -> T:
        """Make a request, and again after a pause where it fails.

        The connection is held all the while, so a store that is too busy gets fewer requests.
        """
        attempts = Attempts(self.deadline, patience=_PATIENCE)
        watch = _Watch(min(_STALL, self.deadline.seconds / 4) if self.deadline else _STALL)
        async with self.connections.slot():
            while True:
                self.requests += 1
                try:
                    with mapped(self.location):
                        return await self._watched(action, watch)
                except (FinalError, PassingError) as error:
                    self.fault = error
                    pause = attempts.failed(error)
                self.retries += 1
                await asyncio.sleep(pause)

    async def _watched(self, action: Callable[[_Watch], Coroutine[Any, Any, T]], watch: _Watch) -> T:
        """Await a request as long as bytes come, and drop its connection when none do."""
        watch.moved = time.monotonic()
        task = asyncio.ensure_future(action(watch))
        try:
            while not task.done():
                idle = time.monotonic() - watch.moved
                if idle >= watch.allowance:
                    watch.allowance *= 2  # the line may be slow rather than dead, where bytes come in whole parts
                    raise TimeoutError(f"no byte in {idle:.1f} s")
                left = self.deadline.left() if self.deadline else _STALL
                if not left:
                    raise TimeoutError(f"the time is over, {idle:.1f} s after the last byte")
                await asyncio.wait({task}, timeout=min(watch.allowance - idle, left))
            return task.result()
        finally:
            await _cancel(task)


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs and wait until it has ended, as it writes into a file that will be closed."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=GRACE)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # looked at, or asyncio would print it
