"""One epoch as a loader hands it out: its batches, in order and all of them, and what they came to."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from wdsdist.cache.counters import Counters
from wdsdist.errors import LoaderStateError
from wdsdist.loader.ipc import opened
from wdsdist.loader.progress import Progress
from wdsdist.loader.stats import LoaderStats
from wdsdist.loader.worker_state import EpochRequest
from wdsdist.sampling.epoch_plan import EpochPlan

_log = logging.getLogger("wdsdist")


class EpochMeter:
    """Measures one epoch, or what is left of one, on this rank.

    Its clock starts when it is made, inside the first ``next`` of the iteration.

    Args:
        epoch: its number.
        plan: its batches.
        sample_bytes: what a sample takes in its shard.
        count: returns what all workers together have had from the cache, since any moment before.
    """

    def __init__(self, epoch: int, *, plan: EpochPlan, sample_bytes: int, count: Callable[[], Counters]) -> None:
        self._epoch = epoch
        self._plan = plan
        self._sample_bytes = sample_bytes
        self._count = count
        self._before = count()
        self._batches = 0
        self._waited = 0.0
        self._final: LoaderStats | None = None
        self._began = self._asked = self._latest = time.perf_counter()

    def ask(self) -> None:
        """Note that the training loop asks for the next batch."""
        self._asked = time.perf_counter()

    def answer(self, batches: int) -> None:
        """Note that it gets its answer, by which it has had ``batches`` batches."""
        self._latest = time.perf_counter()
        self._waited += self._latest - self._asked
        self._batches = batches

    def finish(self) -> None:
        """Note that no batches will follow, and log what the epoch came to."""
        if self._final is None:
            self._final = self.stats()
            _log.info("%s", self._final)

    def stats(self) -> LoaderStats:
        """Return what the epoch has come to."""
        if self._final is not None:
            return self._final
        samples = min(self._batches * self._plan.batch_size, self._plan.samples_per_rank)
        return LoaderStats(
            epoch=self._epoch,
            batches=self._batches,
            planned_batches=self._plan.batches_per_rank,
            samples=samples,
            bytes=samples * self._sample_bytes,
            seconds=self._latest - self._began,
            seconds_waiting=self._waited,
            **(self._count() - self._before)._asdict(),
        )


class Epoch(Iterator[Any]):
    """The batches of an epoch that has begun; its progress is what has been handed out.

    Args:
        groups: the batches in order, as they come from the workers.
        plan: how many there must be.
        progress: is told of each that was handed out.
        request: the epochs that are asked for meanwhile.
        meter: is told of each that was handed out, and of the end.
    """

    def __init__(
        self,
        groups: Iterator[list[Any]],
        *,
        plan: EpochPlan,
        progress: Progress,
        request: EpochRequest,
        meter: EpochMeter,
    ) -> None:
        self.groups = groups
        self.meter = meter
        self._plan = plan
        self._progress = progress
        self._request = request
        self._group: list[Any] = []  # what is left of it, the next batch last
        self._delivered = 0
        progress.advance(plan.consumed(0))

    def __next__(self) -> Any:
        try:
            if not self._group:
                self._group = next(self.groups)[::-1]
        except StopIteration:
            if self._delivered != self._plan.batches_per_rank:
                raise LoaderStateError(
                    f"the workers ended after {self._delivered:,} of {self._plan.batches_per_rank:,} batches"
                ) from None
            self.meter.answer(self._delivered)
            self.meter.finish()
            raise
        batch = opened(self._group.pop())
        self._delivered += 1
        self._request.pass_to(self._progress)
        self._progress.advance(self._plan.consumed(self._delivered))
        self.meter.answer(self._delivered)
        return batch


class Iteration(Iterator[Any]):
    """One iteration of a loader. Nothing happens before the first ``next``, so that a late ``set_epoch`` counts.

    Args:
        begin: starts the workers on an epoch; its meter's clock runs from there.
        stop: ends the workers behind the groups of an epoch.
        is_latest: tells whether the loader has not been iterated again since.
    """

    def __init__(
        self,
        begin: Callable[[], Epoch],
        stop: Callable[[Iterator[list[Any]]], None],
        is_latest: Callable[[], bool],
    ) -> None:
        self._begin = begin
        self._stop = stop
        self._is_latest = is_latest
        self._epoch: Epoch | None = None
        self._failed = False

    def __next__(self) -> Any:
        if not self._is_latest():
            raise LoaderStateError("this iterator was given up when the loader was iterated again: use the newer one")
        if self._failed:
            raise LoaderStateError("this iteration ended with an error: iterate the loader anew, or load a state first")
        if self._epoch is None:
            self._epoch = self._begin()
        else:
            self._epoch.meter.ask()
        try:
            return next(self._epoch)
        except StopIteration:
            raise
        except BaseException:
            # A failed worker has lost its place: what the others still hold would be an epoch with holes.
            self._failed = True
            self._stop(self._epoch.groups)
            raise
