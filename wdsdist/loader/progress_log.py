"""Log the progress of an epoch each so many seconds: how fast it is, how much of it is done, when it ends."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from wdsdist._util.validation import check_seconds, decimal, duration

if TYPE_CHECKING:
    from wdsdist.loader.stats import LoaderStats

_log = logging.getLogger("wdsdist")


class ProgressLog:
    """Logs a line at the first batch after each interval, about the time since the line before.

    Args:
        seconds: the interval; ``None`` logs nothing.

    Raises `ArgumentError` for an interval that is not above 0.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = None if seconds is None else check_seconds("log_interval", seconds)
        self.due = float("inf")
        self._before: LoaderStats | None = None

    def begin(self, now: float, stats: LoaderStats) -> None:
        """Start an epoch."""
        if self._seconds is not None:
            self.due, self._before = now + self._seconds, stats

    def log(self, now: float, stats: LoaderStats) -> None:
        """Log the progress since the last line."""
        if self._seconds is not None and self._before is not None:
            _log.info("%s", progress_line(self._before, stats, time.time()))
            self.due, self._before = now + self._seconds, stats


def progress_line(before: LoaderStats, stats: LoaderStats, now: float) -> str:
    """Return the progress of an epoch, with the rates since earlier figures of it; ``now`` in seconds since 1970."""
    latest = stats.since(before)
    parts = [f"{latest.samples_per_second:,.0f} samples/s"]
    if latest.bytes:
        parts.append(f"{decimal(latest.bytes_per_second)}/s")
    parts.append(f"waited {100 * latest.waiting_share:.0f} % for data")
    gained = stats.epoch_share - before.epoch_share
    if gained > 0:
        left = (1 - stats.epoch_share) * latest.seconds / gained
        form = "%H:%M" if left < 86_400 else "%Y-%m-%d %H:%M"
        parts.append(f"{duration(left)} left, until {time.strftime(form, time.localtime(now + left))}")
    done = f"epoch {stats.epoch}: {100 * stats.epoch_share:.1f} % after {stats.batches:,} batches"
    return f"{done}; {', '.join(parts)}"
