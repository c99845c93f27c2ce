"""Requests under way in this process, and a WARNING by the consumer that waits for one of them for long."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from wdsdist._util.validation import human
from wdsdist.storage.policy import LongWait, policy
from wdsdist.storage.urls import shown

_log = logging.getLogger("wdsdist")

_STEPS = 10
"""Looks at the requests before the first warning is due."""
_FLOWS = 1 << 20
"""Bytes between two warnings of a download that makes progress: only slow ones are worth a warning."""
_SHOWN = 3
"""Requests that a warning names; it counts the others."""


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
        """Warn if the wait is long; the consumer of this request calls it while it waits."""
        global _quiet_until
        is_long = not self.is_ahead and self.wait.is_due() and not self._flows()
        if is_long and time.monotonic() >= _quiet_until:  # one line, however many threads wait
            _quiet_until = time.monotonic() + policy().next_warning / 2
            _log.warning("still waiting for %s", awaited())

    @property
    def step(self) -> float:
        """Seconds until the consumer looks again."""
        return policy().first_warning / _STEPS

    def _flows(self) -> bool:
        """Return whether bytes have come since the last call, in some number; for an upload, whether none failed."""
        before, self._looked = self._looked, self.bytes
        return self._looked - before >= _FLOWS or (self.verb == "written" and not self.note)

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
def under_way(request: Request) -> Iterator[Request]:
    """Keep a request in the table of this process while the block runs."""
    _requests[id(request)] = request
    try:
        yield request
    finally:
        _requests.pop(id(request), None)


def awaited() -> str:
    """Return the requests under way that somebody waits for, in words, the oldest first.

    A request of another thread stands for the wait of a consumer that makes none itself.
    """
    requests = list(_requests.copy().values())
    needed = {request.location for request in requests if not request.is_ahead}
    made = {request.location for request in requests if request.attempt}
    own = [each for each in requests if each.attempt and each.location in needed]
    # Any number of threads may wait for one request of another process.
    others = {each.location: each for each in requests if not each.attempt and each.location not in made}
    oldest = sorted([*own, *others.values()], key=lambda request: request.wait.began)
    more = f", and {len(oldest) - _SHOWN} more" if len(oldest) > _SHOWN else ""
    return "; ".join(map(str, oldest[:_SHOWN])) + more


os.register_at_fork(after_in_child=_requests.clear)
