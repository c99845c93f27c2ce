"""Throughput of a loader: measured over each epoch, in figures, lines in the log, and totals for metrics.

`RankStats` compares the figures of all ranks, and names the slowest.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from wdsdist._util.validation import check_seconds, counted, decimal, duration
from wdsdist.cache.counters import Counters
from wdsdist.distributed.agreement import gather
from wdsdist.errors import ArgumentError
from wdsdist.loader.checkpoint import Left

_log = logging.getLogger("wdsdist")

_SUMMED = ("batches", "samples", "bad_samples", "bytes", "seconds_waiting", "cache_hits", "shards_fetched",
          "bytes_fetched", "retries")  # fmt: skip
"""The figures of `LoaderStats` that add up over epochs."""

_LITTLE = 0.05
"""The share of its time that a rank may wait and yet is not slow."""
_ALIKE = 1.25
"""How many times as long as others a rank waits that is slower than they are; the same for what it fetches."""
_FEW = 3
"""Retries, or bad samples, that explain nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """Throughput and cache use of one epoch of a loader on this rank, all its workers together.

    >>> stats = LoaderStats(
    ...     epoch=3, batches=500, planned_batches=500, samples=32_000, bytes=2_240_000_000, seconds=1.6,
    ...     seconds_waiting=0.08, cache_hits=88, shards_fetched=12, bytes_fetched=820_000_000, retries=2,
    ... )
    >>> print(stats)
    epoch 3: 32,000 samples in 1.6 s (20,000/s, 1.4 GB/s), waited 0.1 s (5 %) for data, 12 shards fetched (820 MB, 2 \
retries), 88 from the cache
    """

    epoch: int = 0
    batches: int = 0
    """Batches that were handed out so far."""
    planned_batches: int = 0
    """Batches that there were to hand out: those of the epoch, or of what was left of it where it was resumed."""
    samples: int = 0
    """Samples in the batches that were handed out."""
    bad_samples: int = 0
    """Samples of these that were bad, in whose places others were handed out (``on_error="replace"``)."""
    bytes: int = 0
    """Bytes of the shards for these samples: as many times what a sample takes in its shard on average, members that
    ``fields`` leaves out included. 0 where the sizes of the shards are not known."""
    seconds: float = 0.0
    """From the first ``next`` until the latest one returned, or found the end."""
    seconds_waiting: float = 0.0
    """Seconds of these inside of ``next``: starting the workers, waiting for them, receiving what they made. With
    ``num_workers=0`` batches are made there, and that counts too."""
    cache_hits: int = 0
    """Times that a worker opened a remote shard which was in the cache by then, or the parts needed of it, fetched
    ahead or long before."""
    shards_fetched: int = 0
    """Remote shards that this rank fetched into the cache, all of each."""
    bytes_fetched: int = 0
    """Bytes of those, and of parts of shards."""
    retries: int = 0
    """Requests to the store that had failed and were made again."""
    epoch_share: float = 0.0
    """The part of the whole epoch that was handed out, between 0 and 1, with what came before a resume."""
    fill: float | None = None
    """Useful tokens of the latest planned batches over those that there is room for; ``None`` of other batches."""

    @property
    def samples_per_second(self) -> float:
        """Samples that were handed out in a second."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes of the shards for the samples that were handed out in a second."""
        return self.bytes / self.seconds if self.seconds else 0.0

    @property
    def waiting_share(self) -> float:
        """The part of the time that the training loop waited for data, between 0 and 1."""
        return self.seconds_waiting / self.seconds if self.seconds else 0.0

    def since(self, before: LoaderStats) -> LoaderStats:
        """Return the figures since earlier ones of the same epoch."""
        return replace(self, **{name: getattr(self, name) - getattr(before, name) for name in (*_SUMMED, "seconds")})

    def __str__(self) -> str:
        part = ""
        if self.batches != self.planned_batches:
            part = f", {self.batches:,} of {counted(self.planned_batches, 'batch')}"
        rate = f"{self.samples_per_second:,.0f}/s"
        if self.bytes:
            rate += f", {decimal(self.bytes_per_second)}/s"
        text = (
            f"epoch {self.epoch}{part}: {counted(self.samples, 'sample')} in {self.seconds:.1f} s ({rate}), "
            f"waited {self.seconds_waiting:.1f} s ({100 * self.waiting_share:.0f} %) for data"
        )
        if self.bad_samples:
            text += f", {counted(self.bad_samples, 'bad sample')} replaced"
        if self.cache_hits or self.bytes_fetched or self.retries:  # none of them where shards are local
            is_whole = self.shards_fetched or not self.bytes_fetched
            what = counted(self.shards_fetched, "shard") if is_whole else "parts of shards"
            text += (
                f", {what} fetched ({decimal(self.bytes_fetched)}, {counted(self.retries, 'retry')}), "
                f"{self.cache_hits:,} from the cache"
            )
        return text


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
    done = f"epoch {stats.epoch}: {100 * stats.epoch_share:.1f} % after {counted(stats.batches, 'batch')}"
    return f"{done}; {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class RankStats:
    """Throughput of one epoch on each rank; its text is one line that names the slowest rank, and why.

    >>> usual = LoaderStats(seconds=60, seconds_waiting=2)
    >>> print(RankStats((usual, LoaderStats(seconds=60, seconds_waiting=41, retries=37), usual)))
    rank 1 of 3 is the slowest: it waited 41.0 s (68 %) for data, the others 2.0 s; 37 requests of it were retried, of \
others 0
    """

    ranks: tuple[LoaderStats | None, ...]
    """Of each rank; ``None`` of one that did not answer."""

    @property
    def slowest(self) -> int:
        """The rank that waited longest for data: the others wait for it where ranks exchange gradients."""
        return max(range(len(self.ranks)), key=lambda rank: getattr(self.ranks[rank], "seconds_waiting", -1.0))

    def __str__(self) -> str:
        missing = [str(rank) for rank, one in enumerate(self.ranks) if one is None]
        tail = f"; no answer from rank{'s'[: len(missing) - 1]} {', '.join(missing)}" if missing else ""
        slow = self.ranks[self.slowest]
        others = [one for rank, one in enumerate(self.ranks) if one is not None and rank != self.slowest]
        if slow is None:
            return "no rank answered"
        which = f"rank {self.slowest} of {len(self.ranks)}"
        waited = f"waited {slow.seconds_waiting:.1f} s ({100 * slow.waiting_share:.0f} %) for data"
        if not others:
            return f"{which} {waited}{tail}"
        if slow.waiting_share < _LITTLE:
            return f"no rank is slowed down by data: {which} {waited}, the longest{tail}"
        usual = statistics.median(one.seconds_waiting for one in others)
        if slow.seconds_waiting < _ALIKE * usual:
            return f"all ranks wait for data alike: {which} {waited}, the longest, the others {usual:.1f} s{tail}"
        reasons = ", ".join(_reasons(slow, others))
        return f"{which} is the slowest: it {waited}, the others {usual:.1f} s; {reasons}{tail}"


def compare_ranks(stats: LoaderStats, *, timeout: float = 60.0) -> RankStats:
    """Gather the stats of all ranks, and name the slowest and why. Every rank calls it, as at the end of an epoch.

    It goes through the store of the process group, with no collective, and waits for the ranks that have not called it
    yet; one that does not within ``timeout`` seconds is named, and is no error. Without a process group there is this
    rank alone.

    >>> print(compare_ranks(LoaderStats(seconds=60, seconds_waiting=1)))
    rank 0 of 1 waited 1.0 s (2 %) for data
    """
    if not isinstance(stats, LoaderStats):
        raise ArgumentError(f"stats is {stats!r}: it must be what stats() of a loader returns")
    found = gather("stats", json.dumps(asdict(stats)), check_seconds("timeout", timeout))
    return RankStats(tuple(None if one is None else LoaderStats(**json.loads(one)) for one in found))


def _reasons(slow: LoaderStats, others: list[LoaderStats]) -> Iterator[str]:
    """Yield in which figures a rank differs from the others."""

    def usual(name: str) -> float:
        return float(statistics.median(getattr(one, name) for one in others))

    count = 0
    for name, text in (("retries", "requests of it were retried"), ("bad_samples", "bad samples of it were replaced")):
        if getattr(slow, name) > max(_FEW, 2 * usual(name)):
            count += 1
            yield f"{getattr(slow, name):,} {text}, of others {usual(name):,.0f}"
    if slow.bytes_fetched > _ALIKE * usual("bytes_fetched"):
        count += 1
        yield f"it fetched {decimal(slow.bytes_fetched)}, others {decimal(usual('bytes_fetched'))}"
    if not count:
        fetches = "fetches no more than others, so its network, " if slow.bytes_fetched else "fetches nothing, so its "
        yield f"it {fetches}disk or CPU is slow"


class Label(NamedTuple):
    """Label of figures that are summed for metrics: a data set and a rank."""

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
    return {name: getattr(stats, name) for name in _SUMMED}


class EpochMeter:
    """Measure the throughput of one epoch, or of the rest of one, on this rank.

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
        plan: Left,
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
