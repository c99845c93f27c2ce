"""Throughput of a loader, measured over each epoch: figures, and a line in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from wdsdist._util.validation import counted, human
from wdsdist.samples.bad_samples import BadSampleLog, Replaced
from wdsdist.sampling.plan import Plan, Reached
from wdsdist.shards.source import Counters

_log = logging.getLogger("wdsdist")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """Throughput and cache use of one epoch of a loader on this rank, over all its workers.

    >>> stats = LoaderStats(
    ...     epoch=3, batches=500, planned_batches=500, samples=32_000, bytes=2_240_000_000, seconds=1.6,
    ...     seconds_waiting=0.08, bytes_cached=0, shards_fetched=12, bytes_fetched=820_000_000, retries=2,
    ... )
    >>> print(stats)
    epoch 3: 32,000 samples in 1.6 s (20,000/s, 1.3 GiB/s), waited 0.1 s (5 %) for data, 12 shards fetched (782.0 MiB, \
2 retries), 0 B from the cache
    """

    epoch: int = 0
    batches: int = 0
    """Batches that were handed out so far."""
    planned_batches: int = 0
    """Total batches of this epoch, or of its rest after a resume; those so far if planned batches are not counted."""
    samples: int = 0
    """Samples in the batches that were handed out."""
    bad_samples: int = 0
    """Bad samples that were replaced by others (``on_error="replace"``)."""
    bytes: int = 0
    """Bytes of these samples in their shards, by the mean over all samples and members; 0 if sizes are not known."""
    seconds: float = 0.0
    """From the first ``next`` to the return of the latest one."""
    seconds_waiting: float = 0.0
    """Seconds of these inside ``next``: to start workers, wait for them and receive batches; with ``num_workers=0``
    also to make the batches."""
    bytes_cached: int = 0
    """Bytes of samples that were in the cache before the data set was opened, each counted when it is first read."""
    shards_fetched: int = 0
    """Remote shards that this rank began to fetch into the cache; once more after an eviction, up to their number."""
    bytes_fetched: int = 0
    """Bytes that this rank fetched from stores."""
    retries: int = 0
    """Requests to the store that failed and were repeated."""
    fill: float | None = None
    """Useful tokens of the latest planned batches as a share of their room; ``None`` for other batches."""

    @property
    def samples_per_second(self) -> float:
        """Samples per second that the training loop received."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def waiting_share(self) -> float:
        """The share of the time that the training loop waited for data, between 0 and 1."""
        return self.seconds_waiting / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        done = f"epoch {self.epoch}"
        if self.batches != self.planned_batches:
            done += f", {self.batches:,} of {counted(self.planned_batches, 'batch')}"
        rate = f"{self.samples_per_second:,.0f}/s"
        if self.bytes and self.seconds:
            rate += f", {human(self.bytes / self.seconds)}/s"
        parts = [
            f"{done}: {counted(self.samples, 'sample')} in {self.seconds:.1f} s ({rate})",
            f"waited {self.seconds_waiting:.1f} s ({100 * self.waiting_share:.0f} %) for data",
        ]
        if self.bad_samples:
            parts.append(f"{counted(self.bad_samples, 'bad sample')} replaced")
        if self.bytes_cached or self.bytes_fetched or self.retries:  # 0 if shards are local
            fetched = f"{human(self.bytes_fetched)}, {counted(self.retries, 'retry')}"
            parts.append(f"{counted(self.shards_fetched, 'shard')} fetched ({fetched})")
            parts.append(f"{human(self.bytes_cached)} from the cache")
        return ", ".join(parts)


class EpochMeter:
    """Measures the throughput of one epoch, or of its rest, on this rank, from the first ``next`` of the iteration.

    Args:
        plan: of the epoch.
        sample_bytes: the mean of its shards.
        num_copied: shards that are read through the cache.
        log_prefix: begins the line of the log.
        bad_samples: counts what was replaced; ``None`` if bad samples are errors.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        sample_bytes: int,
        num_copied: int = 0,
        log_prefix: str = "",
        bad_samples: BadSampleLog | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.plan, self._sample_bytes, self._num_copied = plan, sample_bytes, num_copied
        self._log_prefix, self._bad_samples, self._clock = log_prefix, bad_samples, clock
        self._counted = Counters()
        self._total = plan.batches_per_rank
        self.batches = self._samples = 0
        self._fill: float | None = None
        self._waited = 0.0
        self._began = self._latest = self._clock()
        self._asked: float | None = self._began  # when the training loop asked for the batch that it waits for
        self._is_finished = False

    def count(self, counted: Counters | None) -> None:
        """Add the cache counters of a worker: shards and bytes fetched, bytes found, retries."""
        if counted is not None:
            self._counted = self._counted.plus(counted)

    def ask(self) -> None:
        """Note that the training loop asks for the next batch."""
        self._asked = self._clock()

    def answer(self, reached: Reached | None = None, replaced: Replaced | None = None) -> None:
        """Record that the training loop gets its next batch, of which samples were replaced, or the end of the epoch.

        Raises `SampleError` if too many samples were bad.
        """
        if reached is not None:
            if replaced is not None and self._bad_samples is not None:
                self._bad_samples.add(replaced, self._samples + reached.samples)
            self.batches += 1
            self._samples += reached.samples
            self._fill = reached.fill
        self._latest = self._clock()
        if self._asked is not None:
            self._waited, self._asked = self._waited + self._latest - self._asked, None

    def finish(self) -> None:
        """Note that no batches will follow, and log the epoch's figures."""
        if not self._is_finished:
            self._is_finished = True
            _log.info("%s%s", self._log_prefix, self.stats())

    @property
    def remaining(self) -> int:
        """Batches that are still to come; planned batches are counted at the first call."""
        if self._total is None:
            self._total = self.plan.count_batches()
        return self._total - self.batches

    def stats(self) -> LoaderStats:
        """Return the figures of the epoch so far."""
        planned = self.plan.batches_per_rank
        figures = self._counted._replace(shards_fetched=min(self._counted.shards_fetched, self._num_copied))
        return LoaderStats(
            epoch=self.plan.reached(0).position.epoch,
            batches=self.batches,
            planned_batches=self.batches if planned is None else planned,
            samples=self._samples,
            bad_samples=0 if self._bad_samples is None else self._bad_samples.count,
            bytes=self._samples * self._sample_bytes,
            seconds=self._latest - self._began,
            seconds_waiting=self._waited,
            **figures._asdict(),
            fill=self._fill,
        )
