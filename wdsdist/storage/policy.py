"""How long requests take: deadlines, pauses between attempts, and waits that deserve a warning."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field


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


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """How requests are made and retried unless an argument says otherwise; `use_policy` sets another policy."""

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


_policy = RequestPolicy()


def policy() -> RequestPolicy:
    """Return the policy that requests of this process follow."""
    return _policy


@contextlib.contextmanager
def use_policy(policy: RequestPolicy) -> Iterator[None]:
    """Set the policy for the requests of all threads of this process, and of its children, until the block ends.

    >>> with use_policy(RequestPolicy(patience=5.0)):
    ...     print(policy().patience)
    5.0
    """
    global _policy
    before, _policy = _policy, policy
    try:
        yield
    finally:
        _policy = before


class LongWait:
    """Says when a wait is due for a warning: after 10 s, and each 30 s after, as the `RequestPolicy` says."""

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
