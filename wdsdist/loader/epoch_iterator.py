"""One iteration of a loader: batches in order from the workers, its position, its errors, and its figures."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from wdsdist._util.validation import counted, human
from wdsdist.errors import StateError
from wdsdist.loader.ipc.failure import WorkerFailure
from wdsdist.loader.worker_iterator import Message, NotedBatch
from wdsdist.samples.bad_samples import BadSampleLog, Replaced
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.plan import Plan, Position, Reached
from wdsdist.shards.source import Counters

if TYPE_CHECKING:
    from wdsdist.loader.loader import StreamingDataLoader

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


@dataclass(eq=False)
class EpochMeter:
    """Measures the throughput of one epoch, or of its rest, on this rank, from the first ``next`` of the iteration."""

    plan: Plan
    _: KW_ONLY
    sample_bytes: int
    """The mean of its shards."""
    num_copied: int = 0
    """Shards that are read through the cache."""
    log_prefix: str = ""
    """Begins the line of the log."""
    bad_samples: BadSampleLog | None = None
    """Log of bad samples that were replaced, with their count; ``None`` if bad samples are errors."""
    batches: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._counted = Counters()
        self._samples = 0
        self._fill: float | None = None
        self._waited = 0.0
        self._began = self._latest = time.perf_counter()
        self._asked: float | None = self._began  # when the training loop asked for the batch that it waits for
        self._is_finished = False

    def count(self, counted: Counters | None) -> None:
        """Add the cache counters of a worker: shards and bytes fetched, bytes found, retries."""
        if counted is not None:
            self._counted = self._counted.plus(counted)

    def ask(self) -> None:
        """Note that the training loop asks for the next batch."""
        self._asked = time.perf_counter()

    def answer(self, reached: Reached | None = None, replaced: Replaced | None = None) -> None:
        """Record that the training loop gets its next batch, of which samples were replaced, or the end of the epoch.

        Raises `SampleError` if too many samples were bad.
        """
        if reached is not None:
            if replaced is not None and self.bad_samples is not None:
                self.bad_samples.add(replaced, self._samples + reached.samples)
            self.batches += 1
            self._samples += reached.samples
            self._fill = reached.fill
        self._latest = time.perf_counter()
        if self._asked is not None:
            self._waited, self._asked = self._waited + self._latest - self._asked, None

    def finish(self) -> None:
        """Note that no batches will follow, and log the epoch's figures."""
        if not self._is_finished:
            self._is_finished = True
            _log.info("%s%s", self.log_prefix, self.stats())

    @functools.cached_property
    def _total(self) -> int:
        return self.plan.count_batches()

    @property
    def remaining(self) -> int:
        """Batches that are still to come; planned batches are counted at the first call."""
        return self._total - self.batches

    def stats(self) -> LoaderStats:
        """Return the figures of the epoch so far."""
        planned = self.plan.batches_per_rank
        figures = self._counted._replace(shards_fetched=min(self._counted.shards_fetched, self.num_copied))
        return LoaderStats(
            epoch=self.plan.start.epoch,
            batches=self.batches,
            planned_batches=self.batches if planned is None else planned,
            samples=self._samples,
            bad_samples=0 if self.bad_samples is None else self.bad_samples.count,
            bytes=self._samples * self.sample_bytes,
            seconds=self._latest - self._began,
            seconds_waiting=self._waited,
            **figures._asdict(),
            fill=self._fill,
        )


class EpochIterator(Iterator[Any]):
    """One iteration of a loader. Nothing happens before the first ``next``, so that a late ``set_epoch`` counts."""

    _messages: Iterator[Message]
    """The batches in order, as they come from the workers."""
    meter: EpochMeter | None = None
    """Known, with the plan of the epoch, from the first batch on."""

    def __init__(self, loader: StreamingDataLoader[Any]) -> None:
        self._loader = loader
        self._number = loader._iterations
        self._group: list[Any] = []  # the rest of it, the next batch last
        self.position = Position(0)
        """After the batch that was delivered last."""
        self._failed = False

    def __next__(self) -> Any:
        if self._loader._iterations != self._number:
            raise StateError(
                "this iterator was given up when the loader was iterated again, or a state loaded: iterate the loader"
            )
        if self._failed:
            raise StateError("this iteration ended with an error: iterate the loader again, or load a state first")
        if self.meter is None:
            self._messages, self.meter = self._loader._begin()
            self.position = self.meter.plan.start
        else:
            self.meter.ask()
        try:
            return self._deliver(self.meter)
        except StopIteration:
            raise
        except BaseException as error:
            # A failed worker has lost its place: what the others still hold would be an epoch with holes.
            self._failed = True
            self.meter.answer()
            self._loader._stop_workers(self._messages)
            if getattr(error, "is_of_worker", False):  # the frames of this process do not explain it
                raise error.with_traceback(None) from None
            raise

    def _deliver(self, meter: EpochMeter) -> Any:
        """Return the next batch; at the end, check that all came."""
        if not self._group:
            message = next(self._messages)
            meter.count(message.counted)
            for _ in range(1, 1 if message.batches else self._loader.num_workers):
                # Each worker says that it has no batch left, and what its cache has counted.
                meter.count(next(self._messages).counted)
            self._group = message.batches[::-1]
            if not self._group:
                if not self._loader.persistent_workers:
                    self._loader._stop_workers(self._messages)
                if not meter.plan.is_over(self.position):
                    raise StateError(f"the workers ended after {meter.batches:,} batches, before the epoch did")
                meter.answer()
                meter.finish()
                raise StopIteration
        batch, replaced, reached = self._group.pop(), None, None
        if isinstance(batch, WorkerFailure):
            batch.reraise()
        if isinstance(batch, NotedBatch):
            batch, replaced, reached = batch
        if reached is None:
            assert isinstance(meter.plan, EpochPlan)
            reached = meter.plan.reached(meter.batches + 1)
        meter.answer(reached, replaced)
        self.position = reached.position
        self._loader._progress.advance(self.position)  # for a checkpoint
        return batch
