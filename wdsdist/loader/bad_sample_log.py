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
    """Counts the bad samples of an epoch on this rank, and ends it above the budget.

    It logs at most one line a minute, and appends each bad sample once to its quarantine file.

    Args:
        error_budget: the largest share of bad samples; ``None`` for no limit.
    """

    def __init__(self, error_budget: float | None) -> None:
        self._budget = error_budget
        self._files: dict[str, Quarantine] = {}
        self._next_line = 0.0

    def begin(self, epoch: int, planned: int, log_prefix: str) -> None:
        """Begin to count an epoch of ``planned`` samples on this rank."""
        self._epoch, self._log_prefix = epoch, log_prefix
        self._least = min(LEAST_SAMPLES, planned)
        self._count = 0

    def add(self, replaced: Replaced, samples: int) -> None:
        """Note the samples that were replaced among the latest of ``samples``.

        Raises `SampleError` if more were bad than the budget allows.
        """
        for entry, path in replaced.bad:
            try:
                if path:
                    self._files.setdefault(path, Quarantine(path)).add([entry])
            except OSError as error:
                self._warn(f"the quarantine file {path} cannot be written ({error}): it misses bad samples")
        self._count += replaced.substitutes
        count = f"{self._count:,} of {samples:,} samples of epoch {self._epoch} were bad"
        entry = replaced.bad[-1][0]
        part = f" of {entry.dataset!r}" if entry.dataset else ""
        latest = f"sample {entry.key!r}{part} in {entry.shard}, {entry.field or 'as a whole'}: {entry.reason}"
        self._warn(f"{self._log_prefix}{count} and replaced so far, the latest is {latest}")
        if self._budget is not None and self._count > self._budget * max(samples, self._least):
            raise SampleError(
                f"{count} on this rank, more than error_budget={self._budget:g} allows (of at least {self._least:,} "
                f"samples): repair or exclude them, or raise error_budget. The latest is {latest}"
            )

    def _warn(self, message: str) -> None:
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            _log.warning("%s", printable(message))
