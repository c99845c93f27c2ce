"""The engine: requests to stores in threads of this process, each retried under one deadline.

Threads take requests from a queue in the order in which they were begun, 16 for what a batch needs and 16 for what is
fetched ahead. The consumer waits in `Download.result`: it watches the deadline, logs long waits, and abandons a thread
that a back end blocks. A forked child has no thread of its parent.
"""

from __future__ import annotations

import collections
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from wdsdist.errors import DestinationError, StorageError, WdsdistError
from wdsdist.storage.deadline import Deadline
from wdsdist.storage.failures import Attempts, Failure, mapped, policy, raise_alone
from wdsdist.storage.options import StorageOptions
from wdsdist.storage.store import Entry, Store, connect, stat
from wdsdist.storage.urls import scheme, shown
from wdsdist.storage.waiting import Request, under_way

T = TypeVar("T")
Into = int | Callable[[int, memoryview], None]
"""A file descriptor, or a function that takes an offset in the object and the bytes there."""
Range = tuple[int, int | None]
"""The first byte, and the one behind the last; ``None`` for the end of an object of unknown size."""

_THREADS = 16
_IDLE = 5.0
"""Seconds that a thread without work waits for more."""
_GRACE = 2.0
"""Seconds beyond the deadline for a thread to say what failed."""


class _Pool:
    """Pool of daemon threads for queued downloads; neither a caller nor the process waits for their end."""

    def __init__(self) -> None:
        self._queue: collections.deque[Callable[[], None]] = collections.deque()
        self._changed = threading.Condition()
        self._threads = self._idle = 0

    def add(self, tasks: Sequence[Callable[[], None]]) -> None:
        with self._changed:
            self._queue.extend(tasks)
            self._changed.notify(len(tasks))
            for _ in range(min(len(self._queue) - self._idle, _THREADS - self._threads)):
                threading.Thread(target=self._work, name="wdsdist-storage", daemon=True).start()
                self._threads += 1

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                has_work = self._changed.wait_for(lambda: self._queue, _IDLE)
                self._idle -= 1
                if not has_work:
                    self._threads -= 1
                    return
                task = self._queue.popleft()
            task()


_pools: dict[bool, _Pool] = {}


def _begin_without_threads() -> None:
    global _pools
    _pools = {is_ahead: _Pool() for is_ahead in (False, True)}


_begin_without_threads()
os.register_at_fork(after_in_child=_begin_without_threads)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Figures of one download."""

    bytes: int
    """That arrived, and were needed."""
    requests: int
    """Requests made, with those that failed."""
    retries: int
    """Requests that repeated another one."""


class _Cancelled(BaseException):
    """Nobody waits for the request any more."""


class _Attempt:
    """What a task knows of its attempts: how long to wait for a byte, and whether anybody waits for it."""

    def __init__(self, download: Download) -> None:
        self._download = download
        self.timeout = 0.0
        self.abort: Callable[[], None] | None = None

    def opened(self, abort: Callable[[], None]) -> None:
        """Note how to end the attempt from another thread."""
        self.abort = abort
        self._download.check()


Task = Callable[[_Attempt], Any]


class Download:
    """Handle of running requests; the end of its ``with`` block cancels what still runs."""

    def __init__(self, request: Request, tasks: Sequence[Task], deadline: Deadline | None, patience: float) -> None:
        self.request = request
        self._tasks = tasks
        self._deadline = deadline
        self._patience = patience
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._running: set[_Attempt] = set()
        self._writing = 0
        self._left = len(tasks)
        self._requests = self._retries = 0
        self._error: BaseException | None = None
        self._attempts = Attempts(request.location, deadline, patience=patience)
        self.at_end: Callable[[], None] = lambda: None

    def start(self) -> Download:
        """Queue the requests."""
        _pools[self.request.is_ahead].add([functools.partial(self._run, task) for task in self._tasks])
        return self

    def __enter__(self) -> Download:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._stopped.set()
            running = list(self._running)
            self._changed.wait_for(lambda: not self._writing)
            at_end, self.at_end = self.at_end, lambda: None
        for attempt in running:
            if attempt.abort is not None:
                attempt.abort()
        at_end()

    def result(self) -> Transfer:
        """Wait until all requests are answered.

        Raises `NotFoundError`, `StorageError` with its kind, or what the function raised that took the bytes.
        """
        end = self._deadline.end + _GRACE if self._deadline else math.inf
        with under_way(self.request), self, self._changed:
            while self._left and self._error is None and time.monotonic() < end:
                self._changed.wait(min(self.request.step, max(0.0, end - time.monotonic())))
                self.request.look()
            error, left = self._error, self._left
        if error is not None:
            raise_alone(error)
        if left:
            raise_alone(self._attempts.over())
        return Transfer(max(0, self.request.bytes), self._requests, self._retries)

    def check(self) -> None:
        """Raise if nobody waits for the requests any more."""
        if self._stopped.is_set():
            raise _Cancelled

    def give(self, action: Callable[..., object], *arguments: object, size: int = 0) -> None:
        """Call a function of the consumer's, unless the consumer has left, and count so many bytes."""
        with self._changed:
            self.check()
            self._writing += 1
        try:
            action(*arguments)
        except BaseException as error:
            self._fail(error)
            raise _Cancelled from None
        finally:
            with self._changed:
                self._writing -= 1
                self.request.bytes += size
                if self._stopped.is_set():
                    self._changed.notify_all()

    def count(self, size: int = 0, *, requests: int = 0, retries: int = 0) -> None:
        """Add to the figures of the download."""
        with self._changed:  # `+=` of several threads would lose some
            self.request.bytes += size
            self._requests += requests
            self._retries += retries

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._stopped.set()
            self._changed.notify_all()

    def _run(self, task: Task) -> None:
        attempt = _Attempt(self)
        with self._changed:
            self._running.add(attempt)
        try:
            self._persist(task, attempt)
        except _Cancelled:
            pass
        except BaseException as error:
            self._fail(error)
        finally:
            with self._changed:
                self._running.discard(attempt)
                self._left -= 1
                if not self._left:
                    self._changed.notify_all()

    def _persist(self, task: Task, attempt: _Attempt) -> None:
        """Run a task until it succeeds; raise `StorageError` once it cannot."""
        location, verb = self.request.location, self.request.verb
        attempts = Attempts(location, self._deadline, patience=self._patience)
        patience = min(policy().stall, self._deadline.seconds / 4) if self._deadline else policy().stall
        while True:
            self.check()
            attempt.timeout = min(patience, self._deadline.left()) if self._deadline else patience
            self.count(requests=1)
            try:
                with mapped(location, verb):
                    if attempt.timeout <= 0:
                        raise TimeoutError("the time is over before it could be asked for")
                    task(attempt)
                return
            except Failure as failure:
                attempt.abort = None
                if failure.kind == "timeout":
                    patience *= 2  # the line may be slow rather than dead, if bytes come in whole parts
                if failure.kind == "expired":
                    forget_credentials(location)
                self._attempts = attempts
                pause = attempts.failed(failure)
                self.request.failed(failure, attempts.failures)
            self.count(retries=1)
            self._stopped.wait(pause)


def forget_credentials(location: str) -> None:
    """Drop the clients of a kind of store, whose credentials have expired: new ones read the credentials again."""
    if scheme(location) in ("s3", "s3a"):
        from wdsdist.storage import s3

        s3.forget()


def run(location: str, action: Callable[[float], T], verb: str, deadline: Deadline | None) -> T:
    """Run an action that takes the seconds to wait for an answer, with retries; return what it returns."""
    found: list[T] = []

    def task(attempt: _Attempt) -> None:
        found[:] = [action(attempt.timeout)]

    Download(Request(location, verb), [task], deadline, policy().patience).start().result()
    return found[0]


def begin_ranges(
    location: str, ranges: Iterable[Range], into: Into, options: StorageOptions | None = None, *,
    size: int | None = None, deadline: Deadline | None = None, done: Callable[[int, int], None] | None = None,
    is_ahead: bool = False,
) -> Download:  # fmt: skip
    """Start to fetch ranges of an object and return at once, so that one thread can run several downloads:

        with begin_ranges(shard, ranges, file) as first, begin_ranges(other, ranges, other_file) as second:
            first.result()
            second.result()

    Args:
        location: a URL.
        ranges: pairs of the first byte and the one behind the last, a request each.
        into: a file descriptor, at whose same offsets the bytes are written, or a function that takes an offset and
            bytes, which several threads call at once, and whose memory is valid during the call only.
        options: for the client of the store.
        size: of the object in bytes, if it is known; another size is an error of the kind ``"length"``.
        deadline: for all of it; without one, a range that fails is tried again for 5 minutes.
        done: called in a thread with the start and the end of a range that was written whole.
        is_ahead: whether nobody waits for it yet, so that it has threads of its own.
    """
    wanted = list(ranges)
    known = sum((size or 0 if stop is None else stop) - start for start, stop in wanted)
    request = Request(location, size=known or None, bytes=0, is_ahead=is_ahead)
    stamps: set[str] = set()
    file = os.dup(into) if isinstance(into, int) else None
    sink = _writer(file) if file is not None else into
    assert callable(sink)

    def task(start: int, stop: int | None, attempt: _Attempt) -> None:
        store, path = connect(location, options)
        got = 0

        def take(offset: int, piece: memoryview) -> None:
            nonlocal got
            download.give(sink, offset, piece, size=len(piece))
            got += len(piece)

        try:
            entry = store.read(path, start, stop, take, size=size, timeout=attempt.timeout, opened=attempt.opened)
            _check_version(store, entry, stamps, location)
        except BaseException:
            download.count(-got)
            raise
        if done is not None:
            download.give(done, start, start + got)

    tasks = [functools.partial(task, start, stop) for start, stop in wanted]
    download = Download(request, tasks, deadline, policy().download_patience)
    if file is not None:
        download.at_end = functools.partial(os.close, file)
    return download.start()


def _check_version(store: Store, entry: Entry, stamps: set[str], location: str) -> None:
    if store.has_versions and entry.stamp:
        stamps.add(entry.stamp)
        if len(stamps) > 1:
            raise StorageError(
                f"{shown(location)} was replaced while it was downloaded: try again once it is at rest", kind="length"
            )


def _writer(file: int) -> Callable[[int, memoryview], None]:
    def write(offset: int, piece: memoryview) -> None:
        while piece:
            written = os.pwrite(file, piece, offset)
            offset, piece = offset + written, piece[written:]

    return write


def read_ranges(
    location: str, ranges: Iterable[Range], into: Into, options: StorageOptions | None = None, *,
    size: int | None = None, deadline: Deadline | None = None, done: Callable[[int, int], None] | None = None,
    is_ahead: bool = False,
) -> Transfer:  # fmt: skip
    """Fetch ranges of an object and wait for them, as `begin_ranges` does."""
    running = begin_ranges(location, ranges, into, options, size=size, deadline=deadline, done=done, is_ahead=is_ahead)
    with running as download:
        return download.result()


def fetch(
    location: str, path: Path, options: StorageOptions | None = None, *, size: int | None = None,
    deadline: Deadline | None = None,
) -> Transfer:  # fmt: skip
    """Download a whole file to a local path in parallel parts; an existing file keeps its inode.

    Raises `NotFoundError`, or `StorageError` with its kind; `DestinationError` if the local file cannot be written.
    """
    if size is None:
        size = stat(location, options, deadline=deadline).size
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        parts: list[Range] = [(0, None)] if size < 0 else list(evenly(size, policy().part_bytes))
        known = None if size < 0 else size
        try:
            done = read_ranges(location, parts, file, options, size=known, deadline=deadline)
        except StorageError as error:
            if error.kind != "ranges":
                raise
            done = read_ranges(location, [(0, known)], file, options, size=known, deadline=deadline)
        os.ftruncate(file, done.bytes)
        return done
    except WdsdistError:
        raise
    except OSError as error:
        raise DestinationError(f"{path} cannot take {shown(location)}: {error.strerror}") from None
    finally:
        os.close(file)


def evenly(size: int, most: int) -> Iterable[tuple[int, int]]:
    """Yield the ranges of about the same size, of at most so many bytes each, that a file falls into.

    >>> list(evenly(10, 4)), list(evenly(0, 4))
    ([(0, 3), (3, 6), (6, 10)], [(0, 0)])
    """
    count = max(1, -(-size // most))
    for number in range(count):
        yield size * number // count, size * (number + 1) // count
