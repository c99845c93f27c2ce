"""How long requests take: deadlines, pauses, and a WARNING by the consumer that waits for one for long."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from wdsdist._util.validation import counted
from wdsdist.storage.urls import shown

_log = logging.getLogger("wdsdist")
jitter = random.SystemRandom()  # the program may have seeded the other


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

    def warn(self, location: str, *details: str) -> None:
        """Log a warning of a long wait for a download; one line, however many threads wait."""
        global _quiet_until
        if time.monotonic() >= _quiet_until:
            _quiet_until = time.monotonic() + policy.next_warning / 2
            _log.warning("still waiting for %s (%s)", shown(location), ", ".join((f"{self.seconds:.0f} s", *details)))


_quiet_until = 0.0


def pauses(deadline: float) -> Iterator[None]:
    """Yield at once, then after growing pauses of 1 to 5 ms (backoff with jitter), up to a ``time.monotonic()``."""
    pause = 0.001
    while True:
        yield
        left = deadline - time.monotonic()
        if left <= 0:
            return
        # Without jitter, processes in step would let the same one win each time.
        time.sleep(min(left, pause * jitter.uniform(0.7, 1.3)))
        pause = min(1.5 * pause, 0.005)
