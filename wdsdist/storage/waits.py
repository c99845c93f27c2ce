"""Requests under way in this process, and a WARNING where they keep somebody waiting for long.

Who waits for a request cannot watch the clock, so a thread does, for as long as any request is under way. It ends
before the request returns: a process that forks has no thread of ours. A data loading worker publishes its requests
instead, and the main process, which knows how long its rank waits, warns.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from wdsdist._util.validation import human
from wdsdist.storage.retry import policy

_log = logging.getLogger("wdsdist")

_TICKS = 10
"""Looks at the requests before the first warning is due."""
_FLOWS = 1 << 20
"""Bytes between two looks of a download that is on its way: only slow ones are worth a warning."""
_SHOWN = 3
"""Requests that a warning names; it counts the others."""


class LongWait:
    """Tells when a wait is due for a warning: after 10 s, and each 30 s after, as the `RequestPolicy` says."""

    __slots__ = ("began", "due")

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.due = self.began + policy().first_warning

    def is_due(self) -> bool:
        """Return whether to warn now; the next warning is due later."""
        now = time.monotonic()
        if now < self.due:
            return False
        self.due = now + policy().next_warning
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
    """As messages show it."""
    verb: str = "read"
    size: int | None = None
    """Bytes of a download, where they are known."""
    attempt: int = 1
    """0 of what another process or thread fetches."""
    bytes: int = -1
    """Bytes of a download so far; -1 of other requests, whose answers come at once."""
    note: str = ""
    """The latest error, or what holds it up."""
    waited_for: LongWait | None = field(default_factory=LongWait)
    """``None`` for what is fetched ahead, which nobody waits for yet."""
    began: float = field(default_factory=time.monotonic)
    _looked: int = 0

    def failed(self, error: BaseException, attempts: int) -> None:
        """Note a failed attempt, after which there are so many."""
        self.attempt = max(self.attempt, attempts + 1)
        self.note = "last error: " + str(error).removeprefix(f"{self.location} cannot be {self.verb}: ")

    def flows(self) -> bool:
        """Return whether bytes have come since the last call, in some number; of an upload, whether none has failed."""
        before, self._looked = self._looked, self.bytes
        return self._looked - before >= _FLOWS or (self.verb == "written" and not self.note)

    def __str__(self) -> str:
        parts = [f"{time.monotonic() - self.began:.0f} s"]
        if self.attempt:
            parts.append(f"attempt {self.attempt}")
        if self.bytes >= 0:
            parts.append(human(self.bytes) + (f" of {human(self.size)}" if self.size is not None else " so far"))
        if self.note:
            parts.append(self.note)
        return f"{self.location} ({', '.join(parts)})"


class _Table:
    """The requests of this process, and the thread that looks at them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.requests: list[Request] = []
        self.thread: threading.Thread | None = None

    def add(self, request: Request) -> None:
        with self.changed:
            self.requests.append(request)
            if self.thread is None:
                thread = threading.Thread(target=self._watch, name="wdsdist-waits", daemon=True)
                with contextlib.suppress(RuntimeError):  # the interpreter is ending
                    thread.start()
                    self.thread = thread

    def remove(self, request: Request) -> None:
        with self.changed:
            self.requests.remove(request)
            thread = None
            if not self.requests:
                thread, self.thread = self.thread, None
                self.changed.notify_all()
        if thread is not None:
            thread.join()  # a thread that ends while another one forks can hang the child
            _report([])

    def _watch(self) -> None:
        while True:
            with self.changed:
                if self.thread is not threading.current_thread():
                    return
                self.changed.wait(policy().first_warning / _TICKS)
                requests = list(self.requests)
            if requests:
                _report(requests)


_table = _Table()
_thread = threading.local()
_quiet_until = 0.0


@contextlib.contextmanager
def under_way(request: Request) -> Iterator[Request]:
    """Keep a request in the table of this process, as long as the block runs."""
    if getattr(_thread, "is_ahead", False):
        request.waited_for = None
    _table.add(request)
    try:
        yield request
    finally:
        _table.remove(request)


def requests() -> list[Request]:
    """Return the requests under way, first those that somebody waits for, and of these the oldest."""
    found = list(_table.requests)
    waited_for = {one.location for one in found if one.waited_for is not None}
    made = {one.location for one in found if one.attempt}
    own = [one for one in found if one.attempt or one.location not in made]  # by another thread of this process
    return sorted(own, key=lambda one: (one.location not in waited_for, one.began))


def awaited() -> list[Request]:
    """Return those of the requests under way that somebody waits for, the oldest first."""
    waited_for = {one.location for one in _table.requests.copy() if one.waited_for is not None}
    return [one for one in requests() if one.location in waited_for]


def fetch_ahead() -> None:
    """Mark this thread as a prefetch thread, whose requests nobody waits for."""
    _thread.is_ahead = True


def describe(requests: Sequence[Request]) -> str:
    """Return the first of some requests in words, and the number of the others."""
    if not requests:
        return "no store: it reads, decodes or transforms samples"
    more = f", and {len(requests) - _SHOWN} more" if len(requests) > _SHOWN else ""
    return "; ".join(map(str, requests[:_SHOWN])) + more


def _warn(found: Sequence[Request]) -> None:
    """Log the requests that this process waits for, where a warning of one of them is due."""
    global _quiet_until
    due = [one for one in found if one.waited_for is not None and one.waited_for.is_due() and not one.flows()]
    if due and time.monotonic() >= _quiet_until:  # one line, however many threads wait
        _quiet_until = time.monotonic() + policy().next_warning / 2
        _log.warning("still waiting for %s", describe(awaited()))


_report: Callable[[Sequence[Request]], None] = _warn


def publish(report: Callable[[str], None]) -> None:
    """Report pending requests of this process to a function, each second or so and at the end, in place of warnings.

    The main process of a data loading worker warns in its place.
    """
    global _report
    _report = lambda _: report(describe(awaited()))  # noqa: E731 - it is replaced, not defined
    _report([])


def _forget() -> None:
    global _table, _thread
    _table, _thread = _Table(), threading.local()  # the others are the parent's


os.register_at_fork(after_in_child=_forget)
