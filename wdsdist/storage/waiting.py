"""How long requests take: deadlines, pauses, and a WARNING by the consumer that waits for one for long."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from wdsdist._util.validation import counted, human
from wdsdist.storage.urls import shown

_log = logging.getLogger("wdsdist")

_FLOWS = 1 << 20
"""Bytes between two warnings of a download that makes progress, which needs none; nor does an upload without error."""
_SHOWN = 3
"""Most requests for one object that a warning names."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment, so many seconds from now.

    >>> Deadline(300).left() > 299
    True
    """

    seconds: float
    name: str = ""
    """The argument that sets it, which messages name."""
    began: float = field(default_factory=time.monotonic)

    @property
    def end(self) -> float:
        """The moment on the clock of ``time.monotonic``."""
        return self.began + self.seconds

    def left(self) -> float:
        """Return the seconds until then, 0 afterwards."""
        return max(0.0, self.end - time.monotonic())

    def spent(self, attempts: int, *, is_over: bool = False) -> str:
        """Return the end of an error message: attempts, seconds, this timeout if it ended them, and how to resume.

        >>> Deadline(2, "download_timeout").spent(3, is_over=True)
        '(3 attempts in 0.0 s; download_timeout=2 is the limit; training can resume from the last checkpoint)'
        """
        seconds = time.monotonic() - self.began
        parts = [f"{counted(attempts, 'attempt')} in {seconds:.{1 if seconds < 10 else 0}f} s"]
        if self.name:
            if is_over or not self.left():
                parts.append(f"{self.name}={self.seconds:g} is the limit")
            parts.append("training can resume from the last checkpoint")
        return f"({'; '.join(parts)})"


@dataclass(slots=True)
class RequestPolicy:
    """How requests are made and retried unless an argument says otherwise."""

    first_pause: float = 0.2
    """Seconds at most before the first retry; doubled for each further one."""
    longest_pause: float = 10.0
    """Seconds at most before any retry."""
    patience: float = 30.0
    """Seconds from its first failure that a small request is retried for, if it has no deadline."""
    download_patience: float = 300.0
    """The same for each range of a download."""
    stall: float = 20.0
    """Seconds without a byte after which a connection is dropped; a deadline may make it less."""
    part_bytes: int = 10 << 20
    """Most bytes of a part of a file that is fetched whole, each a request."""
    first_warning: float = 10.0
    """Seconds of waiting after which a warning says so."""
    next_warning: float = 30.0
    """Seconds until the next warning."""


policy = RequestPolicy()
"""The policy of all requests of this process, and of processes that it forks."""


class LongWait:
    """Says when a wait is due for a warning: after 10 s, and each 30 s after, as the `RequestPolicy` says."""

    __slots__ = ("began", "due")

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.due = self.began + policy.first_warning

    def is_due(self) -> bool:
        """Return whether to warn now; the next warning is due later."""
        now = time.monotonic()
        if now < self.due:
            return False
        self.due = now + policy.next_warning
        return True

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return time.monotonic() - self.began


@dataclass(slots=True, eq=False)
class Request:
    """State of a running request to a store: bytes, retries and last error.

    >>> print(Request("s3://bucket/7.tar", size=64 << 20, bytes=1 << 20, attempt=3, note="last error: 503 Slow Down"))
    s3://bucket/7.tar (0 s, attempt 3, 1.0 MiB of 64.0 MiB, last error: 503 Slow Down)
    """

    location: str
    verb: str = "read"
    size: int | None = None
    """Bytes of a download, if they are known."""
    attempt: int = 1
    """0 if another process or thread makes the request."""
    bytes: int = -1
    """Bytes of a download so far; -1 of other requests, whose answers come at once."""
    note: str = ""
    """The latest error, or what holds it up."""
    is_ahead: bool = False
    """Whether nobody waits for it yet."""
    wait: LongWait = field(default_factory=LongWait)
    _looked: int = 0

    def failed(self, error: BaseException, attempts: int) -> None:
        """Note a failed attempt, the latest of so many."""
        self.attempt = max(self.attempt, attempts + 1)
        self.note = "last error: " + str(error).removeprefix(f"{shown(self.location)} cannot be {self.verb}: ")

    def look(self) -> None:
        """Warn if the wait is long; the consumer of this request calls it while it waits.

        The request of another thread for the same object says what the consumer waits for.
        """
        global _quiet_until
        if self.is_ahead or not self.wait.is_due():
            return
        before, self._looked = self._looked, self.bytes
        flows = self._looked - before >= _FLOWS or (self.verb == "written" and not self.note)
        if not flows and time.monotonic() >= _quiet_until:  # one line, however many threads wait
            _quiet_until = time.monotonic() + policy.next_warning / 2
            running = [request for request in _requests.copy().values() if request.location == self.location]
            _log.warning("still waiting for %s", "; ".join(map(str, running[:_SHOWN] or [self])))

    def __str__(self) -> str:
        parts = [f"{self.wait.seconds:.0f} s"]
        if self.attempt:
            parts.append(f"attempt {self.attempt}")
        if self.bytes >= 0:
            parts.append(human(self.bytes) + (f" of {human(self.size)}" if self.size is not None else " so far"))
        if self.note:
            parts.append(self.note)
        return f"{shown(self.location)} ({', '.join(parts)})"


_requests: dict[int, Request] = {}
_quiet_until = 0.0


@contextlib.contextmanager
def under_way(request: Request) -> Iterator[None]:
    """Keep a request in the table of this process while the block runs."""
    _requests[id(request)] = request
    try:
        yield
    finally:
        _requests.pop(id(request), None)


os.register_at_fork(after_in_child=_requests.clear)
