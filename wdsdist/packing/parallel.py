"""Write the shards of a plan: keep what is whole, and hand the rest to processes, here or elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import platform
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from wdsdist._util.host import cpu_count
from wdsdist._util.pools import pool
from wdsdist.errors import ArgumentError, DestinationError, SourceError, WdsdistError
from wdsdist.packing.destination import Place, records
from wdsdist.packing.job import Job, prepared
from wdsdist.packing.options import Options
from wdsdist.packing.plan import PackPlan
from wdsdist.packing.sources.source import Source, Stream
from wdsdist.packing.writer import WrittenShard, whole_index, write_shard
from wdsdist.shards.manifest import APPEND_RECORD

_AHEAD = 2  # shards handed out for each process: one that it writes, and one so that it need not wait
_ABREAST = 2
"""Shards of files that one process writes at once: while one is digested, or waits for the disk, the other is read."""


@dataclass(frozen=True, slots=True)
class PackProgress:
    """How far packing has come."""

    samples_done: int
    samples: int | None
    """Of the whole data set, as are the other two; ``None`` while an iterable has not ended."""
    shards_done: int
    shards: int | None
    bytes_done: int
    bytes: int | None
    """Of all tars, headers and padding included, as they were planned."""
    left_out: int = 0
    """Samples that could not be packed, of those done."""
    samples_kept: int = 0
    """Samples that an interrupted run had written and that a resume keeps, of those done."""
    bytes_kept: int = 0


ShowProgress = Callable[[PackProgress], None]


def later(done: PackProgress, shard: WrittenShard, size: int) -> PackProgress:
    """Return how far packing has come with one shard more, which counts for ``size`` bytes."""
    left_out = len(shard.left_out)
    return replace(
        done,
        samples_done=done.samples_done + shard.listed.num_samples + left_out,
        shards_done=done.shards_done + 1,
        bytes_done=done.bytes_done + size,
        left_out=done.left_out + left_out,
    )


def write_planned(
    source: Source, plan: PackPlan, place: Place, job: Job, options: Options, progress: ShowProgress | None
) -> list[WrittenShard]:
    """Write the shards of a plan that are not there yet, and return all of them in order.

    ``job`` is the one on record at the place, by which workers elsewhere recognise it.

    Raises what `write_shard` does, and `WdsdistError` if a process that writes dies.
    """
    shards = _Shards(source, plan, place, job, options, progress)
    missing = shards.keep()
    if missing:
        lent = options.executor
        # The executors of the standard library know how many tasks they run at once, and others may.
        stated = getattr(lent, "_max_workers", None)
        workers = options.workers or (stated if isinstance(stated, int) and stated > 0 else None)
        # Only files can be read by any thread, at any time; other sources make samples, or decode them in order.
        of_files = source.contents.of_files and options.reencoding is None and not options.check_decode
        threads = _ABREAST if of_files and not lent else 1
        try:
            with contextlib.nullcontext(lent) if lent else pool(workers, len(missing), threads=threads) as executor:
                shards.write(executor, missing, _AHEAD * max(min(workers or cpu_count(), len(missing)), threads))
        except BrokenExecutor as error:
            raise WdsdistError(
                "a process that was writing shards died, perhaps killed for want of memory: run the same command "
                "again, with fewer workers; the shards that are whole are kept"
            ) from error
    return [shards.done[number] for number in range(len(plan))]


class _Shards:
    """The shards of one plan, and those of them that are there."""

    def __init__(
        self, source: Source, plan: PackPlan, place: Place, job: Job, options: Options, show: ShowProgress | None
    ) -> None:
        self.source = source
        self.plan = plan
        self.place = place
        self.job = job
        self.options = options
        self.show = show
        self.done: dict[int, WrittenShard] = {}
        self.progress = PackProgress(0, len(source), 0, len(plan), 0, int(plan.sizes.sum()), len(source.left_out))

    def keep(self) -> list[int]:
        """Note the shards that are whole; return the numbers of the others."""
        counts, sizes = self.plan.counts.tolist(), self.plan.sizes.tolist()
        present = self.place.sizes()
        # Images that are encoded again have other sizes.
        are_exact = self.source.contents.has_exact_sizes and self.options.reencoding is None
        for number in range(len(self.plan)):
            name = self.plan.name(number)
            index = whole_index(self.place, name, present.get(name), self.options.on_error)
            if index is None or index.num_samples + len(index.left_out) != counts[number]:
                continue
            if index.left_out or not are_exact or index.size == sizes[number]:
                self._add(number, WrittenShard.of(name, index))
        done = self.progress
        self.progress = replace(done, samples_kept=done.samples_done, bytes_kept=done.bytes_done)
        self._report()
        return [number for number in range(len(self.plan)) if number not in self.done]

    def write(self, executor: Executor, missing: list[int], ahead: int) -> None:
        """Hand out shards a few at a time: the list of a shard's samples is large where samples are small."""
        todo = iter(missing)
        running: dict[Future[WrittenShard], int] = {}
        done: SimpleQueue[Future[WrittenShard]] = SimpleQueue()  # as in `pools.completed`
        try:
            while True:
                for number in itertools.islice(todo, ahead - len(running)):
                    future = self._submit(executor, number)
                    running[future] = number
                    future.add_done_callback(done.put)
                if not running:
                    return
                future = done.get()
                self._add(running.pop(future), future.result())
                self._report()
        finally:
            for future in running:  # of a borrowed executor, which stays open
                future.cancel()

    def _submit(self, executor: Executor, number: int) -> Future[WrittenShard]:
        options, root = self.options, self.source.location
        samples = prepared(self.source.take(self.plan.samples(number)), options)
        shard = self.plan.name(number), samples, root, options.on_error, options.compress
        if options.executor is None:
            return executor.submit(write_shard, self.place, *shard)
        has_local_source = self.job.kind != "dataset" and Path(self.job.location).exists()
        return executor.submit(_write_elsewhere, self.job, has_local_source, self.place, *shard)

    def _add(self, number: int, shard: WrittenShard) -> None:
        self.done[number] = shard
        # The bytes that it was to have, so that all add up to the whole.
        self.progress = later(self.progress, shard, int(self.plan.sizes[number]))

    def _report(self) -> None:
        if self.show is not None:
            self.show(self.progress)


def refuse_to_travel(source: Source | Stream) -> None:
    """Raise `ArgumentError` for a source that workers elsewhere cannot be given."""
    if isinstance(source, Stream):
        raise ArgumentError(
            f"executor is given, but {source.location} is one stream of samples, which one process reads in its order: "
            f"leave executor out, or give a data set with __len__ and __getitem__",
            argument="executor",
        )
    if source.kind != "dataset":
        return
    try:
        pickle.dumps(source.take(np.empty(0, np.int64)))
    except Exception as error:  # each class has its own
        raise ArgumentError(
            f"executor is given, but {source.location} does not pickle, so that it cannot go to the workers "
            f"({type(error).__name__}: {error}): define it, and encode, in a module, and let it open files when it is "
            f"first asked for an item; or leave executor out",
            argument="executor",
        ) from error


def _write_elsewhere(job: Job, has_local_source: bool, place: Place, *shard: Any) -> WrittenShard:
    """Write a shard, as `write_shard`, where the job's record and its source are seen, or else raise."""
    known = [*records(place), *records(place, APPEND_RECORD)[-1:]]
    if all(record.job.differences(job) for record in known):
        raise DestinationError(
            f"the worker on {platform.node()} does not see {place} as the packing process does: every worker must "
            f"reach it, so choose a folder on a shared file system, or a URL"
        )
    if has_local_source and not Path(job.location).exists():
        raise SourceError(
            f"the worker on {platform.node()} does not see the source {job.location}: every worker must reach it, so "
            f"put it on a shared file system"
        )
    return write_shard(place, *shard)
