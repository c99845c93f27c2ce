"""Log of bad samples that were replaced: counted, logged, listed in quarantine files, and limited by a budget."""

from __future__ import annotations

import logging
import time

from wdsdist.errors import SampleError, printable
from wdsdist.samples.bad_samples import Replaced
from wdsdist.shards.quarantine import BadEntry, Quarantine

_log = logging.getLogger("wdsdist")

_SECONDS_BETWEEN_LINES = 60.0

LEAST_SAMPLES = 1_000
"""The share of bad samples is taken of at least so many, or of all where an epoch has fewer: of the first ten samples,
one bad one says little."""


class BadSampleLog:
    """Logs the bad samples of a data set, at most a line a minute, and adds them to its quarantine files.

    Args:
        error_budget: the share of bad samples that ends an epoch; ``None`` for no limit.
    """

    def __init__(self, error_budget: float | None) -> None:
        self.error_budget = error_budget
        self._files: dict[str, Quarantine] = {}
        self._next_line = 0.0

    def note(self, replaced: Replaced, summary: str) -> None:
        """Log and list the samples of a batch that were replaced."""
        by_file: dict[str, list[BadEntry]] = {}
        for entry, path in replaced.bad:
            if path:
                by_file.setdefault(path, []).append(entry)
        for path, entries in by_file.items():
            try:
                self._files.setdefault(path, Quarantine(path)).add(entries)
            except OSError as error:
                self._say("the quarantine file %s cannot be written (%s): it misses bad samples", path, error)
        latest = replaced.bad[-1][0]
        where = f"{latest.shard}, sample {latest.key!r}" + (f" of {latest.dataset!r}" if latest.dataset else "")
        field = f", {latest.field}" if latest.field else ""
        self._say("%s, the latest in %s", summary, printable(f"{where}{field}: {latest.reason}"))

    def _say(self, text: str, *values: object) -> None:
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + _SECONDS_BETWEEN_LINES
            _log.warning(text, *values)


class EpochBadSamples:
    """Counts the bad samples of one epoch on this rank, which has ``planned`` samples, and ends it at the budget."""

    def __init__(self, log: BadSampleLog, epoch: int, planned: int, log_prefix: str = "") -> None:
        self._log = log
        self._epoch = epoch
        self._log_prefix = log_prefix
        self._least = min(LEAST_SAMPLES, planned)
        self._places = 0

    def add(self, replaced: Replaced, samples: int) -> None:
        """Note the samples that were replaced among the latest ``samples``.

        Raises `SampleError` where more were bad than the budget allows.
        """
        self._places += replaced.places
        count = f"{self._places:,} of {samples:,} samples of epoch {self._epoch} were bad"
        self._log.note(replaced, f"{self._log_prefix}{count} and replaced so far")
        budget = self._log.error_budget
        if budget is not None and self._places > budget * max(samples, self._least):
            latest = replaced.bad[-1][0]
            raise SampleError(
                f"{count} on this rank, more than error_budget={budget:g} allows (of at least {self._least:,} "
                f"samples): mend or exclude them, or raise error_budget; the latest: sample {latest.key!r}, "
                f"{latest.field or 'as a whole'}: {latest.reason}"
            )
