"""Deadlines of requests."""

from __future__ import annotations

import time
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
