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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from wdsdist._util.files import writing
from wdsdist._util.validation import human
from wdsdist.errors import StorageError, WdsdistError
from wdsdist.storage.failures import Attempts, Failure, failure_of
from wdsdist.storage.store import Sink, connect, stat
from wdsdist.storage.urls import StorageOptions, shown
from wdsdist.storage.waiting import Deadline, LongWait, policy

Range = tuple[int, int | None]
"""The first byte, and the one behind the last; ``None`` for the end of an object of unknown size."""

_THREADS = 16
_IDLE = 5.0
"""Seconds that a thread without work waits for more."""
_ATTEMPTS_AHEAD = 4
"""Attempts at what is fetched ahead; then its thread is free for other requests, and its chunks for a batch."""
_MOST_PARTS = 1 << 16
"""Requests that one file is fetched by, whatever size a server states."""
_FLOWS = 1 << 20
"""Bytes between two warnings of a download that makes progress, which needs none; nor does an upload without error."""
_LEAST = 1.0
"""Seconds for an attempt, also if the deadline is over before it: its error says what is wrong."""
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


_pools = {is_ahead: _Pool() for is_ahead in (False, True)}
os.register_at_fork(after_in_child=lambda: _pools.update({is_ahead: _Pool() for is_ahead in _pools}))


class Transfer(NamedTuple):
    """Figures of one download."""

    bytes: int
    """That arrived, and were needed."""
    retries: int
    """Requests that repeated another one."""


class _Cancelled(BaseException):
    """Nobody waits for the request any more."""


Task = Callable[[int, Sink, float], object]
"""Makes one attempt: takes the bytes that earlier ones received, a sink, and the seconds without a byte that end it."""


class Download:
    """A running download, of one or more requests; the end of its ``with`` block cancels it.

    Args:
        location: a path or URL.
        tasks: a request each.
        sink: takes the bytes; what it raises ends the download.
        deadline: for all requests.
        patience: without a deadline, the seconds from its first failure that a request is tried again for.
        verb: says in messages what the requests do.
        size: bytes to receive, if they are known.
        is_ahead: whether nobody waits for it yet, so that it has threads of its own.
    """

    def __init__(
        self, location: str, tasks: Sequence[Task], sink: Sink, deadline: Deadline | None, patience: float, *,
        verb: str = "read", size: int | None = None, is_ahead: bool = False,
    ) -> None:  # fmt: skip
        self._location = location
        self._sink = sink
        self._deadline = deadline
        self._patience = patience
        self._verb = verb
        self._size = size
        self._is_ahead = is_ahead
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._left = len(tasks)
        self._bytes = self._retries = 0
        self._error: BaseException | None = None
        self._attempts = Attempts(location, deadline, patience=patience)
        _pools[is_ahead].add([functools.partial(self._run, task) for task in tasks])

    def __enter__(self) -> Download:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopped.set()

    def result(self) -> Transfer:
        """Wait until all requests are answered.

        Raises `NotFoundError`, `StorageError` with its kind, or what the function raised that took the bytes.
        """
        end = self._deadline.end + _GRACE if self._deadline else math.inf
        wait, before = LongWait(), 0
        with self, self._changed:
            while self._left and self._error is None and time.monotonic() < end:
                self._changed.wait(max(0.0, min(wait.due, end) - time.monotonic()))
                if wait.is_due() and not self._is_ahead:
                    if self._bytes - before < _FLOWS and (self._verb != "written" or self._attempts.failures):
                        wait.warn(self._location, *self._progress())
                    before = self._bytes
            error = self._error or (self._attempts.error() if self._left else None)
        if error is not None:
            try:
                raise error from None
            finally:
                # `from None` only hides what is being handled: a pickle of the error, or a log of all of it, would show
                # the arguments of that exception.
                error.__context__ = None
                del error  # which holds this frame, and so all that its callers hold, until garbage is collected
        return Transfer(self._bytes, self._retries)

    def _progress(self) -> Iterator[str]:
        """Yield the progress of the download for a warning: the retry attempt, the bytes and the last error."""
        yield f"attempt {self._attempts.failures + 1}"
        if self._size:
            yield f"{human(self._bytes)} of {human(self._size)}"
        elif self._bytes:
            yield f"{human(self._bytes)} so far"
        if self._attempts.cause:
            yield f"last error: {self._attempts.cause}".replace(f"{shown(self._location)} cannot be {self._verb}: ", "")

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._stopped.set()
            self._changed.notify_all()

    def _run(self, task: Task) -> None:
        """Make attempts in a thread until one succeeds, none can, or nobody waits any more."""
        location, deadline = self._location, self._deadline
        attempts = Attempts(location, deadline, patience=self._patience)
        patience = min(policy.stall, deadline.seconds / 4) if deadline else policy.stall
        received = 0

        def take(offset: int, piece: memoryview) -> None:
            nonlocal received
            with self._changed:
                if self._stopped.is_set():
                    raise _Cancelled
                if not piece:
                    return
                try:
                    self._sink(offset, piece)
                except BaseException as error:
                    self._fail(error)
                    raise _Cancelled from None
                self._bytes += len(piece)
                received += len(piece)

        try:
            while not self._stopped.is_set():
                timeout = min(patience, max(_LEAST, deadline.left())) if deadline else patience
                with self._changed:  # `+=` of several threads would lose some
                    self._retries += attempts.failures > 0
                try:
                    task(received, take, timeout)
                    attempts.succeeded()
                    break
                except WdsdistError:
                    raise
                except Exception as error:
                    failure = failure_of(error, location, self._verb)
                if received and failure.kind in ("ranges", "invalid", "length"):  # from the start, then
                    failure = failure if failure.kind == "length" else Failure("broken", str(failure))
                    with self._changed:
                        self._bytes -= received
                        received = 0
                if failure.kind == "timeout":
                    patience *= 2  # the line may be slow rather than dead, if bytes come in whole parts
                if failure.kind == "expired":  # which S3 alone says
                    from wdsdist.storage import s3

                    s3.forget()
                self._attempts = attempts  # the last that failed
                pause = attempts.failed(failure)
                if pause is None or (self._is_ahead and attempts.failures == _ATTEMPTS_AHEAD):
                    raise attempts.error()
                self._stopped.wait(pause)
        except _Cancelled:
            pass
        except BaseException as error:
            self._fail(error)
        finally:
            with self._changed:
                self._left -= 1
                if not self._left:
                    self._changed.notify_all()


def begin_ranges(
    location: str, ranges: Iterable[Range], sink: Sink, options: StorageOptions | None = None, *,
    size: int | None = None, deadline: Deadline | None = None, is_ahead: bool = False,
) -> Download:  # fmt: skip
    """Start to fetch ranges of an object and return at once, so that one thread can run several downloads:

        with begin_ranges(shard, ranges, sink) as first, begin_ranges(other, ranges, other_sink) as second:
            first.result()
            second.result()

    Args:
        location: a path or URL.
        ranges: pairs of the first byte and the one behind the last, a request each.
        sink: takes an offset and bytes. Several threads call it at once; the memory is valid during the call only.
        options: for the client of the store.
        size: of the object in bytes, if it is known; another size is an error of the kind ``"length"``.
        deadline: for all of it; without one, a range that fails is tried again for 5 minutes.
        is_ahead: whether nobody waits for it yet, so that it has threads of its own.
    """
    pairs = list(ranges)
    known = sum((size or 0 if stop is None else stop) - start for start, stop in pairs)

    def task(start: int, stop: int | None, received: int, take: Sink, timeout: float) -> None:
        store, path = connect(location, options)
        store.read(path, start + received, stop, take, size=size, timeout=timeout)

    tasks = [functools.partial(task, *pair) for pair in pairs]
    return Download(location, tasks, sink, deadline, policy.download_patience, size=known or None, is_ahead=is_ahead)


def fetch(
    location: str, path: Path, options: StorageOptions | None = None, *, size: int | None = None,
    deadline: Deadline | None = None,
) -> Transfer:  # fmt: skip
    """Download a whole file to a local path in parallel parts; an existing file keeps its inode.

    Raises `NotFoundError`, or `StorageError` with its kind; `DestinationError` if the local file cannot be written.
    """
    total = stat(location, options, deadline=deadline).size if size is None else size
    size = None if total < 0 else total
    count = min(max(1, -(-total // policy.part_bytes)), _MOST_PARTS)
    parts: list[Range] = [(total * part // count, total * (part + 1) // count) for part in range(count)]
    ways: list[list[Range]] = [[(0, None)]] if size is None else [parts, [(0, size)]]  # for a server without ranges
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    with writing(f"{path}, a copy of {shown(location)},"), os.fdopen(os.open(path, flags, 0o666), "r+b", 0) as file:

        def write(offset: int, piece: memoryview) -> None:
            while piece:
                written = os.pwrite(file.fileno(), piece, offset)
                offset, piece = offset + written, piece[written:]

        while True:
            try:
                done = begin_ranges(location, ways.pop(0), write, options, size=size, deadline=deadline).result()
                file.truncate(done.bytes)
                return done
            except StorageError as error:
                if error.kind != "ranges":
                    raise
