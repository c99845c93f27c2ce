"""Bad samples: the policy for them, the errors that make one, and their count, log and budget in an epoch."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import Literal

from wdsdist._util.validation import check_number, check_path
from wdsdist.errors import (
    ArgumentError,
    BadSample,
    CacheError,
    IndexFormatError,
    NotFoundError,
    SampleError,
    ShardDamagedError,
    StorageError,
    causes,
    printable,
)
from wdsdist.shards.quarantine import BadEntry, Quarantine
from wdsdist.storage import is_remote

_log = logging.getLogger("wdsdist")

OnError = Literal["raise", "replace"]

ADVICE = '; to replace such samples by others and train on, pass on_error="replace"'

_NEVER_THE_SAMPLE = (
    MemoryError, ImportError, ShardDamagedError, NotFoundError, StorageError, CacheError, IndexFormatError
)  # fmt: skip
"""Errors of the machine, the installation or a whole shard: another sample would only hide them."""

_LONGEST_REASON = 500
"""Characters: an error may quote a whole member."""

_SECONDS_BETWEEN_LINES = 60.0

LEAST_SAMPLES = 1_000
"""The budget is a share of at least so many samples: of the first ten, one bad one says little."""


@dataclass(frozen=True, slots=True)
class BadSamplePolicy:
    """Policy for bad samples: raise or replace, the file that lists them, and how many there may be."""

    replaces: bool = False
    """Whether other samples replace bad ones."""
    quarantine: str = ""
    """Path of the file that lists them, or an empty string."""
    budget: float | None = None
    """The largest share of bad samples; ``None`` for no limit."""

    @classmethod
    def of(
        cls, on_error: str, quarantine: str | os.PathLike[str] | None, error_budget: float | None = None
    ) -> BadSamplePolicy:
        """Check the arguments of a data set. Raises `ArgumentError` for values that cannot work."""
        if on_error not in ("raise", "replace"):
            raise ArgumentError(f'on_error is {on_error!r}: it must be "raise" or "replace"', argument="on_error")
        for name, value in (("quarantine", quarantine), ("error_budget", error_budget)):
            if value is not None and on_error != "replace":
                raise ArgumentError(f'{name} is given, but on_error is "raise": pass on_error="replace"', argument=name)
        budget = None if error_budget is None else check_number("error_budget", error_budget, 0, 1)
        return cls(on_error == "replace", "" if quarantine is None else checked_path(quarantine), budget)


STRICT = BadSamplePolicy()


def checked_path(quarantine: str | os.PathLike[str]) -> str:
    """Return the absolute path of a quarantine file. Raises `ArgumentError` if it cannot be written."""
    path = check_path("quarantine", quarantine).absolute()  # a worker may have another current folder
    if is_remote(str(quarantine)) or path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise ArgumentError(
            f"quarantine is {str(quarantine)!r}: it must be a local file in a folder that exists and can be written",
            argument="quarantine",
        )
    return str(path)


@dataclass(frozen=True, slots=True)
class Replaced:
    """The bad samples of one batch that were replaced."""

    substitutes: int
    """Samples of the batch that are substitutes."""
    bad: tuple[tuple[BadEntry, str], ...]
    """The bad samples, substitutes that were bad too included, each with the path of the file that lists it or an empty
    string."""


def is_fault_of_sample(error: BaseException) -> bool:
    """Return whether an error that was raised while a sample was made makes it a bad one."""
    return all(isinstance(cause, Exception) and not isinstance(cause, _NEVER_THE_SAMPLE) for cause in causes(error))


def described(error: Exception) -> tuple[str, str]:
    """Return the field that an error is about, or an empty string, and the error's cause."""
    field, reason = "", f"{type(error).__name__}: {error}"
    if isinstance(error, BadSample):
        reason = str(error) or "BadSample was raised"
    elif isinstance(error, SampleError) and error.reason:
        field, reason = error.field, error.reason
    return field, reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."


@dataclass(eq=False)
class BadSampleLog:
    """Counts the bad samples of an epoch on this rank, and ends it above the budget.

    It logs at most one line a minute, and appends each bad sample once to its quarantine file.
    """

    budget: float | None
    """The largest share of bad samples; ``None`` for no limit."""
    files: dict[str, Quarantine]
    """The quarantine files of the data set that have entries, by path."""
    epoch: int
    planned: int
    """Samples of the epoch on this rank."""
    log_prefix: str
    """Begins each line."""
    count: int = 0
    """Bad samples that were replaced."""
    _next_line: float = 0.0

    def add(self, replaced: Replaced, samples: int) -> None:
        """Note the samples that were replaced among the latest of ``samples``.

        Raises `SampleError` if more were bad than the budget allows.
        """
        for entry, path in replaced.bad:
            try:
                if path:
                    self.files.setdefault(path, Quarantine(path)).add([entry])
            except OSError as error:
                self._warn(f"the quarantine file {path} cannot be written ({error}): it misses bad samples")
        self.count += replaced.substitutes
        count = f"{self.count:,} of {samples:,} samples of epoch {self.epoch} were bad"
        entry = replaced.bad[-1][0]
        part = f" of {entry.dataset!r}" if entry.dataset else ""
        latest = f"sample {entry.key!r}{part} in {entry.shard}, {entry.field or 'as a whole'}: {entry.reason}"
        self._warn(f"{self.log_prefix}{count} and replaced so far, the latest is {latest}")
        least = min(LEAST_SAMPLES, self.planned)
        if self.budget is not None and self.count > self.budget * max(samples, least):
            raise SampleError(
                f"{count} on this rank, more than error_budget={self.budget:g} allows (of at least {least:,} "
                f"samples): repair or exclude them, or raise error_budget. The latest is {latest}"
            )

    def _warn(self, message: str) -> None:
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            _log.warning("%s", printable(message))
