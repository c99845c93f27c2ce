"""Patience with passing faults: how long, and how often to try again."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from wdsdist.errors import StorageError
from wdsdist.storage.failures import AwayError, FinalError, PassingError, UnfitError, WrongLengthError

_FIRST_PAUSE = 0.2  # seconds at most; doubled after each attempt
_LONGEST_PAUSE = 10.0
_MISFITS = 5  # what has the wrong length so many times will not get the right one


@dataclass(frozen=True, slots=True)
class Deadline:
    """So many seconds from now.

    >>> Deadline(300).left() > 299
    True
    """

    seconds: float
    began: float = field(default_factory=time.monotonic)

    @property
    def end(self) -> float:
        """That moment, as ``time.monotonic`` tells it."""
        return self.began + self.seconds

    def left(self) -> float:
        """Return the seconds until then, 0 afterwards."""
        return max(0.0, self.end - time.monotonic())


class Attempts:
    """Counts the attempts at one thing, and says how long to wait before the next: exponentially longer, full jitter.

    Jitter keeps many processes that a store has refused together from coming back together.
    """

    def __init__(self, deadline: Deadline | None, *, patience: float) -> None:
        """Begin to count. Without a deadline, there are so many seconds of patience from the first failure on."""
        self._deadline = deadline
        self._patience = patience
        self._failed = 0
        self._misfits = 0

    def failed(self, error: FinalError | PassingError) -> float:
        """Return the seconds to wait after a failed attempt.

        Raises `StorageError` with the number of attempts and the cause where another attempt cannot help, or where the
        time is over before it; `WrongLengthError` where too many answers had the wrong length, or the last one had;
        `AwayError` where the last one was that the store cannot answer, or there was none.
        """
        self._failed += 1
        if self._deadline is None:
            self._deadline = Deadline(self._patience)
        attempts = f"after {self._failed} attempt{'s'[: self._failed - 1]}"
        if isinstance(error, FinalError):
            raise StorageError(f"{error} ({attempts})" if self._failed > 1 else f"{error}") from None
        self._misfits += error.is_misfit
        most = min(_FIRST_PAUSE * 2 ** min(self._failed - 1, 10), _LONGEST_PAUSE)
        pause = (error.retry_after or 0.0) + random.uniform(0, most)
        if self._misfits < _MISFITS:
            if pause < self._deadline.left():
                return pause
            attempts = f"{attempts} in {self._deadline.seconds:g} s"
        kind = WrongLengthError if error.is_misfit else StorageError if isinstance(error, UnfitError) else AwayError
        raise kind(f"{error} ({attempts})") from None
