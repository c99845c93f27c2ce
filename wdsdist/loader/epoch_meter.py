"""Measure the throughput of a loader's epochs, log their progress, and keep their totals for metrics."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from wdsdist.cache.shard_cache import Counters
from wdsdist.loader.stats import SUMMED, LoaderStats, progress_line
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.planned_epoch import PlannedProgress

_log = logging.getLogger("wdsdist")


class Label(NamedTuple):
    """Which figures belong together."""

    data: str
    """The data set, by its location."""
    rank: int


_changing = threading.RLock()  # the garbage collector may end a meter at any line
_running: weakref.WeakKeyDictionary[EpochMeter, Label] = weakref.WeakKeyDictionary()
_ended: dict[Label, Counter[str]] = {}
_last: dict[Label, LoaderStats] = {}


def totals() -> dict[Label, tuple[Counter[str], LoaderStats]]:
    """Return the sums over all epochs, and the figures of the latest one, of each data set on this process's rank.

    They only grow, whatever loader is gone.
    """
    with _changing:
        sums = {label: Counter(figures) for label, figures in _ended.items()}
        latest = dict(_last)
        running = list(_running.items())
    for meter, label in running:
        stats = meter.stats(until_now=True)
        sums.setdefault(label, Counter()).update(_figures(stats))
        latest[label] = stats
    return {label: (figures, latest[label]) for label, figures in sums.items()}


def _figures(stats: LoaderStats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in SUMMED}


class EpochMeter:
    """Measure the throughput of one epoch, or of what is left of one, on this rank.

    The time runs from when it is made, inside the first ``next`` of the iteration.

    Args:
        epoch: its number.
        plan: its batches.
        sample_bytes: what a sample takes in its shard.
        count: returns the cache counters of all workers together, since any moment before.
        label: under which the totals of this process count it.
        log_interval: seconds between lines on its progress; ``None`` logs none.
        log_prefix: what the lines begin with.
        clock: returns the time in seconds.
    """

    _final: LoaderStats | None = None
    _process = 0  # of the meter, once it is whole

    def __init__(
        self,
        epoch: int,
        *,
        plan: EpochPlan | PlannedProgress,
        sample_bytes: int,
        count: Callable[[], Counters],
        label: Label | None = None,
        log_interval: float | None = None,
        log_prefix: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._epoch = epoch
        self._plan = plan
        self._sample_bytes = sample_bytes
        self._count = count
        self._clock = clock
        self._before = count()
        self._batches = 0
        self._bad_samples = 0
        self._began = self._latest = self._clock()
        # Together, for metrics are read in another thread: seconds of waiting, and since when it waits now.
        self._waited: tuple[float, float | None] = 0.0, self._began
        self._log_interval = log_interval
        self._log_prefix = log_prefix
        self._line_due = float("inf") if log_interval is None else self._began + log_interval
        self._logged = self.stats()
        self._process = os.getpid()
        self._label = label
        if label is not None:
            with _changing:
                _running[self] = label

    def ask(self) -> None:
        """Note that the training loop asks for the next batch."""
        self._waited = self._waited[0], self._clock()

    def answer(self, batches: int, replaced: int = 0) -> None:
        """Record that the training loop gets its batch number ``batches``, with so many bad samples replaced in it."""
        self._bad_samples += replaced
        self._latest = self._clock()
        waited, asked = self._waited
        self._waited = waited + (0.0 if asked is None else self._latest - asked), None
        is_batch, self._batches = batches > self._batches, batches
        if is_batch and self._log_interval is not None and self._latest >= self._line_due:
            stats = self.stats()
            _log.info("%s%s", self._log_prefix, progress_line(self._logged, stats, time.time()))
            self._line_due, self._logged = self._latest + self._log_interval, stats

    def finish(self) -> None:
        """Note that no batches will follow, and log the epoch's figures."""
        if self._final is None:
            self._end()
            _log.info("%s%s", self._log_prefix, self._final)

    def _end(self) -> None:
        self._final = self.stats()
        if self._label is not None:
            with _changing:
                _running.pop(self, None)
                _ended.setdefault(self._label, Counter()).update(_figures(self._final))
                _last[self._label] = self._final

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        # An epoch that was given up with its loader; not at exit, where what this module imported is gone.
        if self._final is None and not is_exiting() and self._process == os.getpid():
            self._end()

    def stats(self, *, until_now: bool = False) -> LoaderStats:
        """Return the figures of the epoch so far, ``until_now`` with the wait that lasts."""
        if self._final is not None:
            return self._final
        waited, asked = self._waited
        if until_now and asked is not None:
            waited += self._clock() - asked
        samples = self._plan.samples_in(self._batches)
        return LoaderStats(
            epoch=self._epoch,
            batches=self._batches,
            planned_batches=self._plan.batches_per_rank,
            samples=samples,
            bad_samples=self._bad_samples,
            bytes=samples * self._sample_bytes,
            seconds=self._latest - self._began,
            seconds_waiting=waited,
            **(self._count() - self._before)._asdict(),
            epoch_share=self._plan.share(self._batches),
            fill=self._plan.fill,
        )
