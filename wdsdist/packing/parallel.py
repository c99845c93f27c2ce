"""Write shards: of a plan, by processes here or elsewhere, without those that are whole; of an iterable, one by one."""

from __future__ import annotations

import contextlib
import itertools
import operator
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, wait
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from wdsdist._util.host import cpu_count
from wdsdist._util.pools import DIED, pool
from wdsdist._util.validation import check_bytes
from wdsdist.errors import DestinationError, SourceError, WdsdistError
from wdsdist.packing.destination import Destination, Job, records
from wdsdist.packing.members import Sample, sample_size
from wdsdist.packing.options import Options
from wdsdist.packing.plan import PackPlan, shard_name
from wdsdist.packing.reencoding import prepared
from wdsdist.packing.sources.source import Source
from wdsdist.packing.writer import WrittenShard, whole_index, write_shard
from wdsdist.shards.progress import ShardsProgress
from wdsdist.shards.tar.reader import END

_AHEAD = 2  # shards handed out for each process: one that it writes, and one so that it need not wait
_ABREAST = 2
"""Shards of files that a core writes at once: one is read while the other waits for the disk; and the few shards of a
small data set keep all cores busy to the end: three on two cores take the time of one and a half, not of two."""


def later(done: ShardsProgress, shard: WrittenShard, size: int) -> ShardsProgress:
    """Return the progress with one shard more, which counts for ``size`` bytes."""
    left_out = len(shard.left_out)
    return replace(
        done,
        samples_done=done.samples_done + shard.listed.num_samples + left_out,
        shards_done=done.shards_done + 1,
        bytes_done=done.bytes_done + size,
        left_out=done.left_out + left_out,
    )


def write_planned(
    source: Source,
    plan: PackPlan,
    target: Destination,
    job: Job,
    options: Options,
    show: Callable[[ShardsProgress], None],
) -> list[WrittenShard]:
    """Write the shards of a plan that are not there yet, and return all, in order.

    ``job`` is on record at the destination: workers elsewhere recognise the destination by it. ``show`` is called for
    the finished shards of an interrupted run together, then after each shard.

    Raises what `write_shard` does, and `WdsdistError` if a process that writes dies.
    """
    contents, counts, sizes = source.contents, np.diff(plan.cuts).tolist(), plan.sizes.tolist()
    done: dict[int, WrittenShard] = {}
    progress = ShardsProgress(0, len(plan), 0, sum(sizes), 0, len(source), left_out=len(contents.left_out))
    names, present = [shard_name(job.first + number, options.compress) for number in range(len(plan))], target.sizes()
    for number, (name, count) in enumerate(zip(names, counts, strict=True)):
        index = whole_index(target, name, present.get(name), options.on_error)
        if index is not None and index.num_samples + len(index.left_out) == count:
            done[number] = WrittenShard.of(name, index)
            progress = later(progress, done[number], sizes[number])
    show(progress)
    missing = [number for number in range(len(plan)) if number not in done]
    lent = options.executor
    # The executors of the standard library know how many tasks they run at once, and others may.
    stated = getattr(lent, "_max_workers", None)
    # Only files can be read by any thread, at any time; other sources make samples, or decode them in order.
    is_read = source.kind == "folder" and not options.images.changes and not options.check_decode
    abreast = _ABREAST if is_read and not lent else 1
    has_local_source = job.kind != "dataset" and Path(job.location).exists()
    by_default = cpu_count() * (abreast if has_local_source else 1)
    workers = options.workers or (stated if isinstance(stated, int) and stated > 0 else by_default)
    ahead = _AHEAD * max(min(workers, len(missing)), abreast)
    write: Callable[..., WrittenShard] = _write_elsewhere if lent else write_shard
    # A few shards at a time are handed out: the list of a shard's samples is large if samples are small.
    todo, running, ended = iter(missing), dict[Future[WrittenShard], int](), SimpleQueue[Future[WrittenShard]]()
    try:
        with contextlib.nullcontext(lent) if lent else pool(workers, len(missing), threads=abreast) as executor:
            while len(done) < len(plan):
                for number in itertools.islice(todo, ahead - len(running)):
                    samples = prepared(source.take(plan.samples(number)), options)
                    shard = names[number], samples, source.location, options.on_error, options.compress
                    future = executor.submit(write, *((job, has_local_source) if lent else ()), target, *shard)
                    running[future] = number
                    future.add_done_callback(ended.put)  # as in `pools.completed`
                future = ended.get()
                number = running.pop(future)
                done[number] = future.result()
                # The bytes that it was to have, so that all add up to the whole.
                progress = later(progress, done[number], sizes[number])
                show(progress)
    except BrokenExecutor as error:  # a borrowed one
        raise WdsdistError(DIED) from error
    finally:
        # A borrowed executor stays open, and must write nothing more; ours has ended.
        wait([future for future in running if not future.cancel()])
    return [done[number] for number in range(len(plan))]


def write_in_order(
    target: Destination, source: Source, options: Options, show: Callable[[ShardsProgress], None], first: int
) -> list[WrittenShard]:
    """Write the shards of an iterable one after another, the first with the number ``first``, and return them.

    The shards of an interrupted run are written again: all samples have to be made once more in either case.

    Raises:
        SourceError: the iterable fails, or gives a key twice in a shard.
        DestinationError: the destination cannot be written.
    """
    most, limit, compressed = options.shard_samples, check_bytes("shard_bytes", options.shard_bytes), options.compress

    def numbered() -> Iterator[tuple[int, Sample]]:
        """Yield each sample with the number of its shard."""
        shard = size = count = 0
        for sample in prepared(source.contents.stream or (), options):
            own = sample_size(sample)
            if count and (len(END) + size + own > limit or count == most):
                shard, size, count = shard + 1, 0, 0
            size, count = size + own, count + 1
            yield shard, sample

    shards: list[WrittenShard] = []
    done = ShardsProgress(shards_done=0, shards=None, bytes_done=0, bytes=None, samples_done=0)
    show(done)
    for number, samples in itertools.groupby(numbered(), operator.itemgetter(0)):
        name, own = shard_name(first + number, compressed), (sample for _, sample in samples)
        shards.append(write_shard(target, name, own, on_error=options.on_error, compress=compressed))
        done = later(done, shards[-1], max(shards[-1].listed.size, shards[-1].listed.tar_size))
        show(done)
    return shards


def _write_elsewhere(job: Job, has_local_source: bool, target: Destination, *shard: Any) -> WrittenShard:
    """Write a shard, as `write_shard`, if the job's record and its source are seen, or else raise."""
    advice = "every worker must reach it, so put it on a shared file system"
    if all(known.differences(job) for known in records(target)[-1:]):
        raise DestinationError(
            f"the worker on {platform.node()} does not see {target} as the packing process does: {advice}"
        )
    if has_local_source and not Path(job.location).exists():
        raise SourceError(f"the worker on {platform.node()} does not see the source {job.location}: {advice}")
    return write_shard(target, *shard)
