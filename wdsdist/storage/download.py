"""Download remote files to local ones: parts in parallel, each retried until it is there or the time is over.

Coroutines on an event loop, in a thread of its own or for clients of fsspec in fsspec's, write the bytes as they
arrive; what blocks is in threads that nobody waits for, and none is made before a fork. So what is cancelled writes no
more.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import hashlib
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from wdsdist.errors import NotFoundError, StorageError
from wdsdist.storage.clients import StorageOptions, renew
from wdsdist.storage.direct import Direct, reader
from wdsdist.storage.pieces import ChangedError, content, in_thread, receive, size_of
from wdsdist.storage.retry import (
    Attempts,
    Deadline,
    FinalError,
    MisfitError,
    NoRangesError,
    NotKeptError,
    PassingError,
    RequestPolicy,
    answered,
    policy,
)
from wdsdist.storage.urls import shown
from wdsdist.storage.waits import Request, under_way

T = TypeVar("T")
_GRACE = 2.0  # seconds for what is cancelled to end
_PAUSE = 0.01
"""Seconds between looks whether others still need the line."""
_CHANGES = 3
"""Times that an object may be replaced while it is downloaded."""
_PIECE = 256 << 10
"""Bytes that are hashed at once, in the same memory: those of a processor's cache."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Figures of one download."""

    bytes: int
    """Its size."""
    requests: int
    """Requests made, with those that failed."""
    retries: int
    """Requests that repeated another one."""
    sha256: str = ""
    """Digest of the file, where it was asked for."""
    known: int = 0
    """Bytes that did not have to be fetched."""


class Line(Protocol):
    """The place of a download among others that share the line to a store."""

    def must_pause(self, connection: object) -> bool:
        """Return whether the connection that an object stands for has to wait for others, for now."""

    def leave(self) -> None:
        """Note that all bytes are there."""


class Connections:
    """A limit on concurrent requests of the downloads of one process that are given it. Any thread may use it."""

    def __init__(self, limit: int = 16) -> None:
        self._limit = limit
        # Of each event loop, as a forked process has another; made when it is first used there.
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    def slot(self) -> asyncio.Semaphore:
        """Return the semaphore to hold during a request, on the running loop."""
        return self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._limit))


_shared = Connections()


def fetch(
    location: str,
    path: Path,
    options: StorageOptions | None = None,
    *,
    size: int | None = None,
    deadline: Deadline | None = None,
    connections: Connections | None = None,
) -> Transfer:
    """Download a remote file to a local path, in parallel parts, with retries after passing faults.

    An existing file keeps its inode and its room: it is written in place. Where the file cannot be had, what is at the
    path is of no use.

    Args:
        location: a URL.
        path: of the local file.
        options: for the client of the back end.
        size: of the file in bytes, which saves asking; what has another size is not accepted.
        deadline: until when. Without one it goes on as long as bytes come, and a part that fails is tried again for
            5 minutes.
        connections: shared with other fetches; by default with all of this process, 16 at once.

    Raises `NotFoundError` where there is no such file, at once; `StorageError` with the number of attempts and
    the cause where it cannot be had before the deadline, or at once where another attempt would not help.
    """
    with begin_fetch(location, path, options, size=size, deadline=deadline, connections=connections) as running:
        return running.result()


def begin_fetch(
    location: str,
    path: Path,
    options: StorageOptions | None = None,
    *,
    size: int | None = None,
    deadline: Deadline | None = None,
    connections: Connections | None = None,
    digest: bool = False,
    ranges: Sequence[range] | None = None,
    line: Line | None = None,
    known: Callable[[range], Sequence[range]] | None = None,
) -> Fetching:
    """Start what `fetch` does and return at once, so that one thread can run several downloads:

        with begin_fetch(shard, path) as one, begin_fetch(index, other_path) as other:
            one.result()
            other.result()

    Takes what `fetch` takes, and:

    Args:
        digest: whether to compute the digest of the whole file while its bytes arrive.
        ranges: of bytes, which alone are fetched, each to its place; the rest of the local file stays what it is. A
            store that gives whole files only is a `NoRangesError`.
        line: asked before each request and between the pieces of its answer whether the connection has to pause.
        known: called in a thread before a part of the whole file is requested: writes to the local file what is known
            of the part, and returns what is left to fetch.

    Raises `StorageError` where there is no client for the location.
    """
    client, remote, loop = _begun(location, options)
    request = Request(shown(location), size=sum(map(len, ranges)) if ranges is not None else size, bytes=0)
    link = connections or _shared
    copy = _Copy(location, path, options, client, remote, request, deadline, link, ranges, line, known)
    copy.sha256 = hashlib.sha256() if digest else None
    return Fetching(copy, asyncio.run_coroutine_threadsafe(copy.run(size), loop))


_beginning = threading.RLock()
"""Held while a thread makes a client or the event loop, which takes locks of other libraries: no child is forked then,
for it would wait for these locks for ever."""


def _begun(location: str, options: StorageOptions | None) -> tuple[Any, str, asyncio.AbstractEventLoop]:
    """Return the client of a store, the path of the location there, and the event loop of this process."""
    with _beginning:
        client, remote = reader(location, options, retries=False)
        if isinstance(client, Direct):
            return client, remote, _own_loop()
        import fsspec.asyn

        return client, remote, fsspec.asyn.get_loop()


@functools.cache
def _own_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process for `Direct` clients: to import fsspec takes 40 ms of a first batch."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="wdsdist-downloads", daemon=True).start()
    return loop


def _begin_anew() -> None:
    _beginning.release()
    _own_loop.cache_clear()  # a child has none of its parent's threads
    if module := sys.modules.get("fsspec.asyn"):
        module.reset_lock()  # a thread of the user's may have held it; fsspec itself resets only its loop


os.register_at_fork(before=_beginning.acquire, after_in_parent=_beginning.release, after_in_child=_begin_anew)


class Fetching:
    """Handle of a running download; the end of its ``with`` block cancels it unless it is done."""

    def __init__(self, copy: _Copy, future: concurrent.futures.Future[Transfer]) -> None:
        self._copy = copy
        self._future = future
        self._under_way = under_way(copy.request)

    def __enter__(self) -> Fetching:
        self._under_way.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._future.cancel()
        self._copy.ended.wait(_GRACE)  # until nothing is written to the file any more
        self._under_way.__exit__(None, None, None)

    def result(self) -> Transfer:
        """Wait for the download to complete. Raises what `fetch` raises."""
        copy, deadline = self._copy, self._copy.deadline
        try:
            return self._future.result(timeout=deadline.left() + _GRACE if deadline else None)
        except FileNotFoundError:
            raise NotFoundError(f"{shown(copy.location)} does not exist") from None
        except concurrent.futures.TimeoutError:  # also while it waited for a connection
            cause = f", last: {copy.fault}" if copy.fault else ""
            raise StorageError(
                f"{shown(copy.location)} cannot be read in time ({copy.retries} retries{cause})"
            ) from None
        except StorageError as error:  # without the traceback of the event loop
            raise type(error)(str(error)) from None


@dataclass(eq=False)
class _Watch:
    """The stall detector of one request and its retries."""

    allowance: float
    """Seconds without a byte that count as a fault."""
    moved: float = 0.0
    """When the last bytes came; never over, in a pause."""


@dataclass(eq=False)
class _Copy:
    """A running download, on the event loop."""

    location: str
    path: Path
    options: StorageOptions | None
    client: Any
    remote: str
    request: Request
    deadline: Deadline | None
    connections: Connections
    ranges: Sequence[range] | None = None
    line: Line | None = None
    known: Callable[[range], Sequence[range]] | None = None
    size: int = 0
    """Bytes of the whole file."""
    taken: int = 0
    """Bytes that were known."""
    requests: int = 0
    retries: int = 0
    policy: RequestPolicy = field(default_factory=policy)
    fault: FinalError | PassingError | None = None
    """The last one."""
    file: int = -1
    sha256: hashlib._Hash | None = None
    tags: set[str] = field(default_factory=set)
    """ETags that answers of S3 gave; of a web server with several machines, each may have its own."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when nothing is written any more."""
    looking: threading.Lock = field(default_factory=threading.Lock)
    """Held by the one connection that looks for all when a pause is over."""

    async def run(self, size: int | None) -> Transfer:
        try:
            with self._kept():
                self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if self.ranges is not None:
                await self._parts_of_one_object(self.ranges)
                return Transfer(sum(map(len, self.ranges)), self.requests, self.retries)
            if size is None:
                size = await self._persist(lambda _: size_of(self.client, self.remote))
            self.size = size or 0
            if size is None or (size <= self.policy.part_bytes and self.known is None):
                size = await self._whole(size)
            else:
                try:
                    await self._parts_of_one_object([range(size)])
                except NoRangesError:
                    self._begin_anew()
                    await self._whole(size)
            with self._kept():
                if os.fstat(self.file).st_size != size:
                    os.ftruncate(self.file, size)
        finally:
            file, self.file = self.file, -1  # what does not heed its cancellation must not write into another's file
            if file >= 0:
                os.close(file)
            self.ended.set()
        digest = self.sha256.hexdigest() if self.sha256 else ""
        return Transfer(size, self.requests, self.retries, digest, self.taken)

    async def _whole(self, size: int | None) -> int:
        size = await self._part(None, size)
        await self._hash(0, size)
        return size

    async def _parts_of_one_object(self, ranges: Sequence[range]) -> None:
        for _ in range(_CHANGES):
            self._begin_anew()
            with contextlib.suppress(ChangedError):
                return await self._parts(ranges)
        raise ChangedError(f"{shown(self.location)} is replaced again and again: try again once it is at rest")

    def _begin_anew(self) -> None:
        self.tags.clear()
        self.sha256 = self.sha256 and hashlib.sha256()
        self.taken = 0

    async def _parts(self, ranges: Sequence[range]) -> None:
        parts = [part for wanted in ranges for part in _evenly(wanted, self.policy.part_bytes)]
        tasks = [asyncio.ensure_future(self._part(part, len(part))) for part in parts]
        hashing = asyncio.ensure_future(self._hash_in_order([part.start for part in parts], tasks))
        try:
            await asyncio.gather(*tasks)
            if self.line is not None:
                self.line.leave()
            await hashing
        finally:
            await _cancel(*tasks, hashing)

    async def _hash_in_order(self, starts: Sequence[int], parts: Sequence[asyncio.Future[int]]) -> None:
        for start, part in zip(starts, parts, strict=True):
            await self._hash(start, start + await part)

    async def _hash(self, start: int, stop: int) -> None:
        """Update the SHA-256 of the download by a part that is written, in a thread, while later parts arrive."""
        if self.sha256 is not None:
            await in_thread(self._update, self.sha256, start, stop)

    def _update(self, sha256: hashlib._Hash, start: int, stop: int) -> None:
        buffer = memoryview(bytearray(min(_PIECE, stop - start)))
        while got := os.preadv(self.file, [buffer[: stop - start]], start):
            sha256.update(buffer[:got])
            start += got

    async def _part(self, wanted: range | None, size: int | None) -> int:
        """Copy a range, or the whole file, whose size may be known; returns its size."""
        known = self.known
        if wanted is None or known is None:
            return await self._persist(lambda watch: self._receive(wanted, size, watch))

        missing: list[range] | None = None
        fetched = 0

        async def rest(watch: _Watch) -> None:
            nonlocal missing, fetched
            if missing is None:  # asked as late as can be, as more is known by then
                missing = list(await in_thread(known, wanted))
            while missing:
                one = missing[0]
                fetched += await self._receive(None if one == range(self.size) else one, len(one), watch)
                del missing[0]  # so that a retry asks for no more than what is left

        await self._persist(rest)
        self.taken += len(wanted) - fetched
        return len(wanted)

    async def _receive(self, wanted: range | None, size: int | None, watch: _Watch) -> int:
        start, got = wanted.start if wanted else 0, 0

        def take(piece: bytes | memoryview) -> None:
            nonlocal got
            if size is not None and got + len(piece) > size:
                raise MisfitError(f"more than {size:,} bytes")
            self._write(piece, start + got)
            got += len(piece)
            self.request.bytes += len(piece)

        try:
            if isinstance(self.client, Direct):
                await receive(self.client, self.remote, wanted, self.tags, take, functools.partial(self._pause, watch))
            else:
                take(await content(self.client, self.remote, wanted))
                await self._let_pass(watch)
            if size is not None and got != size:
                raise MisfitError(f"{got:,} bytes where there should be {size:,}")
        except BaseException:
            self.request.bytes -= got
            raise
        return got

    def _write(self, piece: bytes | memoryview, at: int) -> None:
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
            raise NotKeptError(f"{shown(self.location)} cannot be kept in {self.path}: {error.strerror}") from None

    async def _persist(self, action: Callable[[_Watch], Coroutine[Any, Any, T]]) -> T:
        """Make a request with retries.

        The connection is held all the while, so a store that is too busy gets fewer requests.
        """
        attempts = Attempts(self.deadline, patience=self.policy.download_patience)
        stall = self.policy.stall
        watch = _Watch(min(stall, self.deadline.seconds / 4) if self.deadline else stall)
        async with self.connections.slot():
            while True:
                await self._let_pass(watch)
                self.requests += 1
                client = self.client
                try:
                    with answered(self.location):
                        return await self._watched(action, watch)
                except (FinalError, PassingError) as error:
                    self.fault = error
                    pause = attempts.failed(error)
                    self.request.failed(error, attempts.failures)
                    if self.client is client and renew(self.location, error):  # else another part has done it
                        renewed, remote = reader(self.location, self.options, retries=False)
                        # Those of fsspec work on its event loop only.
                        if isinstance(renewed, Direct) or not isinstance(client, Direct):
                            self.client, self.remote = renewed, remote
                self.retries += 1
                await asyncio.sleep(pause)

    async def _let_pass(self, watch: _Watch) -> None:
        """Pause while urgent downloads run, by `_pause` in a thread, so that the event loop goes on."""
        if self.line is not None and self.line.must_pause(watch):
            await in_thread(self._pause, watch)
        watch.moved = time.monotonic()

    def _pause(self, watch: _Watch) -> None:
        """Pause while others need the line, which is no stall, however long it takes."""
        if self.line is not None and self.line.must_pause(watch):
            watch.moved = math.inf
            with self.looking:
                while self.line.must_pause(watch):
                    time.sleep(_PAUSE)
        watch.moved = time.monotonic()

    async def _watched(self, action: Callable[[_Watch], Coroutine[Any, Any, T]], watch: _Watch) -> T:
        """Await a request as long as bytes come, and drop its connection when none do."""
        watch.moved = time.monotonic()
        task = asyncio.ensure_future(action(watch))
        try:
            while not task.done():
                idle = max(0.0, time.monotonic() - watch.moved)  # looked at after a pause too
                if idle >= watch.allowance:
                    watch.allowance *= 2  # the line may be slow rather than dead, where bytes come in whole parts
                    raise TimeoutError(f"no byte in {idle:.1f} s")
                left = self.deadline.left() if self.deadline else self.policy.stall
                if not left:
                    raise TimeoutError(f"the time is over, {idle:.1f} s after the last byte")
                await asyncio.wait({task}, timeout=min(watch.allowance - idle, left))
            return task.result()
        finally:
            await _cancel(task)


def _evenly(wanted: range, most: int) -> Iterator[range]:
    """Yield a range in as few parts as there can be of so many bytes at most, of about the same size."""
    count = -(-len(wanted) // most)
    for number in range(count):
        yield wanted[len(wanted) * number // count : len(wanted) * (number + 1) // count]


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the part downloads that still run and wait for their end: they write into a file that will be closed."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=_GRACE)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # looked at, or asyncio would print it
