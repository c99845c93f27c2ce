"""Throughput of a loader: the figures of `StreamingDataLoader.stats`, and how they are measured."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from wdsdist._util.validation import decimal
from wdsdist.cache.counters import Counters
from wdsdist.loader import totals
from wdsdist.loader.planned_batches import PlannedProgress
from wdsdist.loader.progress_log import ProgressLog
from wdsdist.loader.totals import SUMMED, Label
from wdsdist.sampling.epoch_plan import EpochPlan

_log = logging.getLogger("wdsdist")


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
    """Times that a worker opened a remote shard which was in the cache by then, fetched ahead or long before."""
    shards_fetched: int = 0
    """Remote shards that this rank fetched into the cache."""
    bytes_fetched: int = 0
    """Bytes of those."""
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
        return replace(self, **{name: getattr(self, name) - getattr(before, name) for name in (*SUMMED, "seconds")})

    def __str__(self) -> str:
        part = "" if self.batches == self.planned_batches else f", {self.batches:,} of {self.planned_batches:,} batches"
        rate = f"{self.samples_per_second:,.0f}/s"
        if self.bytes:
            rate += f", {decimal(self.bytes_per_second)}/s"
        text = (
            f"epoch {self.epoch}{part}: {self.samples:,} samples in {self.seconds:.1f} s ({rate}), "
            f"waited {self.seconds_waiting:.1f} s ({100 * self.waiting_share:.0f} %) for data"
        )
        if self.bad_samples:
            text += f", {self.bad_samples:,} bad samples replaced"
        if self.cache_hits or self.shards_fetched or self.retries:  # none of them where shards are local
            text += (
                f", {self.shards_fetched:,} shards fetched ({decimal(self.bytes_fetched)}, {self.retries:,} retries), "
                f"{self.cache_hits:,} from the cache"
            )
        return text


class EpochMeter:
    """Measure the throughput of one epoch, or of what is left of one, on this rank.

    The time runs from when it is made, inside the first ``next`` of the iteration.

    Args:
        epoch: its number.
        plan: its batches.
        sample_bytes: what a sample takes in its shard.
        count: returns the cache counters of all workers together, since any moment before.
        label: under which the totals of this process count it.
        progress: logs the epoch's progress.
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
        progress: ProgressLog | None = None,
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
        self._progress = progress or ProgressLog(None)
        self._progress.begin(self._began, self.stats())
        self._process = os.getpid()
        self._label = label
        if label is not None:
            totals.begin(self, label)

    def ask(self) -> None:
        """Note that the training loop asks for the next batch."""
        self._waited = self._waited[0], self._clock()

    def answer(self, batches: int, replaced: int = 0) -> None:
        """Note that it gets its answer, by which it has had ``batches`` batches, with some samples replaced in it."""
        self._bad_samples += replaced
        self._latest = self._clock()
        waited, asked = self._waited
        self._waited = waited + (0.0 if asked is None else self._latest - asked), None
        is_batch, self._batches = batches > self._batches, batches
        if is_batch and self._latest >= self._progress.due:
            self._progress.log(self._latest, self.stats())

    def finish(self) -> None:
        """Note that no batches will follow, and log the epoch's figures."""
        if self._final is None:
            self._end()
            _log.info("%s", self._final)

    def _end(self) -> None:
        self._final = self.stats()
        if self._label is not None:
            totals.end(self, self._label, self._final)

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
