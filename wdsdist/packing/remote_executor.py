"""Shards that a caller's executor writes, perhaps on other machines: those must see what this one sees."""

from __future__ import annotations

import functools
import pickle
import platform
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np

from wdsdist.errors import ArgumentError, DestinationError, SourceError
from wdsdist.packing import append
from wdsdist.packing import job as jobs
from wdsdist.packing.destination import Place
from wdsdist.packing.job import Job
from wdsdist.packing.sources.source import Source, Stream


def refuse_to_travel(source: Source | Stream) -> None:
    """Raise `ArgumentError` for a source that workers elsewhere cannot be given."""
    if isinstance(source, Stream):
        raise ArgumentError(
            f"executor is given, but {source.location} is one stream of samples, which one process reads in its order: "
            f"leave executor (--engine) out, or give a data set with __len__ and __getitem__"
        )
    if source.kind != "dataset":
        return
    try:
        pickle.dumps(source.take(np.empty(0, np.int64)))
    except Exception as error:  # each class has its own
        raise ArgumentError(
            f"executor is given, but {source.location} does not pickle, so that it cannot go to the workers "
            f"({type(error).__name__}: {error}): define it, and encode, in a module, and let it open files when it is "
            f"first asked for an item; or leave executor (--engine) out"
        ) from error


def parallelism(executor: Executor) -> int | None:
    """Return how many things an executor does at once, where it says so as those of the standard library do."""
    count = getattr(executor, "_max_workers", None)
    return count if isinstance(count, int) and count > 0 else None


class Borrowed(Executor):
    """A caller's executor for a block: it runs things where the job's record and source are seen, or else raises.

    The end of the block cancels what has not begun; the executor stays open.
    """

    def __init__(self, executor: Executor, place: Place, job: Job) -> None:
        self._executor = executor
        self._place = place
        self._job = job
        self._local_source = job.kind != "dataset" and Path(job.location).exists()
        self._futures: WeakSet[Future[Any]] = WeakSet()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        work = _Work(self._place, self._job, self._local_source, functools.partial(fn, *args, **kwargs))
        future = self._executor.submit(_do, work)
        self._futures.add(future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for future in list(self._futures):
            future.cancel()


class _Work:
    """One call, opaque to executors that search the arguments of a call for values to be replaced."""

    def __init__(self, place: Place, job: Job, local_source: bool, call: Callable[[], Any]) -> None:
        self.place, self.job, self.local_source, self.call = place, job, local_source, call


def _do(work: _Work) -> Any:
    known = [*jobs.load(work.place), *jobs.load(work.place, append.FILE_NAME)[-1:]]
    if all(record.job.differences(work.job) for record in known):
        raise DestinationError(
            f"the worker on {platform.node()} does not see {work.place} as the packing process does: every worker "
            f"must reach it, so choose a folder on a shared file system, or a URL"
        )
    if work.local_source and not Path(work.job.location).exists():
        raise SourceError(
            f"the worker on {platform.node()} does not see the source {work.job.location}: every worker must reach it, "
            f"so put it on a shared file system"
        )
    return work.call()
