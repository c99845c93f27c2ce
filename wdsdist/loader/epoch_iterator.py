"""Iterate over an epoch's batches, check their number, and record throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from wdsdist.errors import LoaderStateError
from wdsdist.loader.bad_sample_log import EpochBadSamples
from wdsdist.loader.stats import EpochMeter
from wdsdist.loader.ipc.channel import NotedBatch
from wdsdist.loader.ipc.failure import WorkerFailure, is_of_worker
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.planned_epoch import Place, PlannedProgress


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch that has begun."""

    groups: Iterator[list[Any]]
    """Its batches in order, as they come from the workers."""
    plan: EpochPlan | PlannedProgress
    """How many there must be, and where each leads to."""
    meter: EpochMeter
    bad_samples: EpochBadSamples


class EpochIterator(Iterator[Any]):
    """One iteration of a loader. Nothing happens before the first ``next``, so that a late ``set_epoch`` counts.

    Args:
        begin: starts the workers on an epoch.
        note: is called after each batch with the samples of the epoch that are consumed, from its start on, and with
            the place in an epoch of planned batches.
        stop: ends the workers behind the groups of an epoch.
        is_latest: tells whether the loader has not been iterated again since.
    """

    def __init__(
        self,
        begin: Callable[[], Epoch],
        *,
        note: Callable[[int, Place | None], None],
        stop: Callable[[Iterator[list[Any]]], None],
        is_latest: Callable[[], bool],
    ) -> None:
        self._begin = begin
        self._note = note
        self._stop = stop
        self._is_latest = is_latest
        self._epoch: Epoch | None = None
        self._group: list[Any] = []  # what is left of it, the next batch last
        self._delivered = 0
        self._failed = False

    @property
    def plan(self) -> EpochPlan | None:
        """The plan of the epoch, once that has begun; ``None`` for planned batches."""
        plan = None if self._epoch is None else self._epoch.plan
        return plan if isinstance(plan, EpochPlan) else None

    def __next__(self) -> Any:
        if not self._is_latest():
            raise LoaderStateError("this iterator was given up when the loader was iterated again: use the newer one")
        if self._failed:
            raise LoaderStateError("this iteration ended with an error: iterate the loader anew, or load a state first")
        if self._epoch is None:
            self._epoch = self._begin()
            self._note(self._epoch.plan.consumed(0), self._epoch.plan.place)
        else:
            self._epoch.meter.ask()
        try:
            return self._deliver(self._epoch)
        except StopIteration:
            raise
        except BaseException as error:
            # A failed worker has lost its place: what the others still hold would be an epoch with holes.
            self._failed = True
            self._epoch.meter.answer(self._delivered)
            self._stop(self._epoch.groups)
            if is_of_worker(error):
                raise error.with_traceback(None) from None
            raise

    def _deliver(self, epoch: Epoch) -> Any:
        """Return the next batch; at the end, check that none was missing."""
        if not self._group:
            group = next(epoch.groups, None)
            if group is None:
                if not epoch.plan.is_complete(self._delivered):
                    raise LoaderStateError(
                        f"the workers ended after {self._delivered:,} of {epoch.plan.batches_per_rank:,} batches"
                    )
                epoch.meter.answer(self._delivered)
                epoch.meter.finish()
                raise StopIteration
            self._group = group[::-1]
        batch, replaced = self._group.pop(), None
        if isinstance(batch, WorkerFailure):
            batch.reraise()
        if isinstance(batch, NotedBatch):
            batch, replaced, reached = batch.batch, batch.replaced, batch.reached
            if isinstance(epoch.plan, PlannedProgress) and reached is not None:
                epoch.plan.add(reached)
            if replaced is not None:
                epoch.bad_samples.add(replaced, epoch.plan.samples_in(self._delivered + 1))
        self._delivered += 1
        self._note(epoch.plan.consumed(self._delivered), epoch.plan.place)
        epoch.meter.answer(self._delivered, replaced.places if replaced else 0)
        return batch
