"""Bad samples that were replaced: counted, logged, appended to the quarantine files, and limited by a budget."""

from __future__ import annotations

import logging
import time

from wdsdist.errors import SampleError, printable
from wdsdist.samples.bad_samples import Replaced
from wdsdist.shards.quarantine import Quarantine

_log = logging.getLogger("wdsdist")

_SECONDS_BETWEEN_LINES = 60.0

LEAST_SAMPLES = 1_000
"""The budget is a share of at least so many samples: of the first ten, one bad one says little."""


class BadSampleLog:
    """Logs the bad samples of a data set, at most one line a minute, and appends each once to its quarantine file."""

    def __init__(self, error_budget: float | None) -> None:
        self.error_budget = error_budget
        """The share of bad samples that ends an epoch; ``None`` for no limit."""
        self._files: dict[str, Quarantine] = {}
        self._next_line = 0.0

    def note(self, replaced: Replaced, summary: str) -> None:
        """Log and list the samples of a batch that were replaced."""
        for entry, path in replaced.bad:
            if not path:
                continue
            try:
                self._files.setdefault(path, Quarantine(path)).add([entry])
            except OSError as error:
                self._say("the quarantine file %s cannot be written (%s): it misses bad samples", path, error)
        latest = replaced.bad[-1][0]
        sample = f"{latest.shard}, sample {latest.key!r}" + (f" of {latest.dataset!r}" if latest.dataset else "")
        field = f", {latest.field}" if latest.field else ""
        self._say("%s, the latest in %s", summary, printable(f"{sample}{field}: {latest.reason}"))

    def _say(self, message: str, *values: object) -> None:
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + _SECONDS_BETWEEN_LINES
            _log.warning(message, *values)


class EpochBadSamples:
    """Counts the bad samples of one epoch of ``planned`` samples on this rank, and ends it above the budget."""

    def __init__(self, log: BadSampleLog, epoch: int, planned: int, log_prefix: str = "") -> None:
        self._log = log
        self._epoch = epoch
        self._log_prefix = log_prefix
        self._least = min(LEAST_SAMPLES, planned)
        self._places = 0

    def add(self, replaced: Replaced, samples: int) -> None:
        """Note the samples that were replaced among the latest ``samples``.

        Raises `SampleError` if more were bad than the budget allows.
        """
        self._places += replaced.substitutes
        count = f"{self._places:,} of {samples:,} samples of epoch {self._epoch} were bad"
        self._log.note(replaced, f"{self._log_prefix}{count} and replaced so far")
        budget = self._log.error_budget
        if budget is not None and self._places > budget * max(samples, self._least):
            latest = replaced.bad[-1][0]
            raise SampleError(
                f"{count} on this rank, more than error_budget={budget:g} allows (of at least {self._least:,} "
                f"samples): repair or exclude them, or raise error_budget. The latest is sample {latest.key!r}, "
                f"{latest.field or 'as a whole'}: {latest.reason}"
            )
