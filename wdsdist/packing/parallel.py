"""Write the shards of a plan: keep what is whole, and hand the rest to processes, here or elsewhere."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
from collections.abc import Iterable
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass

from wdsdist._util.files import TEMPORARY
from wdsdist._util.host import cpu_count
from wdsdist._util.pools import pool
from wdsdist.errors import WdsdistError
from wdsdist.packing.destination import Place
from wdsdist.packing.job import Job
from wdsdist.packing.plan import PackPlan
from wdsdist.packing.progress import PackProgress, ShowProgress
from wdsdist.packing.remote_executor import borrowed, parallelism
from wdsdist.packing.sources.source import OnError, Source
from wdsdist.packing.writer import WrittenShard, whole_shard, write_shard

_AHEAD = 2  # shards handed out for each process: one that it writes, and one so that it need not wait
_LOOK = 1.0
"""Seconds without a finished shard after which the bytes of those that are being written are shown."""
_ABREAST = 2
"""Shards of files that one process writes at once: while one is digested, or waits for the disk, the other is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """How shards are written."""

    workers: int | None
    """Processes; by default one for each core."""
    executor: Executor | None
    """Writes instead of processes of ours; it stays open."""
    on_error: OnError
    progress: ShowProgress | None
    """Called before the first shard, after each, and every second or so while none is done."""


def write_planned(source: Source, plan: PackPlan, place: Place, job: Job, how: Writing) -> list[WrittenShard]:
    """Write the shards of a plan that are not there yet, and return all of them in order.

    ``job`` is the one on record at the place, for workers elsewhere to know it by.

    Raises what `write_shard` does, and `WdsdistError` where a process that writes dies.
    """
    shards = _Shards(source, plan, place, job, how)
    missing = shards.keep()
    if missing:
        lent = how.executor
        workers = how.workers or (parallelism(lent) if lent else None)
        # Only files can be read by any thread, at any time; what other sources give may be made, or decoded in order.
        of_files = source.contents.of_files and job.options.reencoding is None and not job.options.has_checks
        threads = _ABREAST if of_files and not lent else 1
        try:
            with borrowed(lent, place, job) if lent else pool(workers, len(missing), threads=threads) as executor:
                shards.write(executor, missing, _AHEAD * max(min(workers or cpu_count(), len(missing)), threads))
        except BrokenExecutor as error:
            raise WdsdistError(
                "a process that was writing shards died, perhaps killed for want of memory: run the same command "
                "again, with fewer workers; the shards that are whole are kept"
            ) from error
    return [shards.done[number] for number in range(len(plan))]


class _Shards:
    """The shards of one plan, and those of them that are there."""

    def __init__(self, source: Source, plan: PackPlan, place: Place, job: Job, how: Writing) -> None:
        self.source = source
        self.plan = plan
        self.place = place
        self.on_error = how.on_error
        self.progress = how.progress
        self.options = job.options
        self.bytes = int(plan.sizes.sum())
        self.done: dict[int, WrittenShard] = {}
        self.samples_done = self.bytes_done = self.shown = self.left_out = 0
        self.kept = 0, 0

    def keep(self) -> list[int]:
        """Note the shards that are whole; return the numbers of the others."""
        counts, sizes = self.plan.counts.tolist(), self.plan.sizes.tolist()
        present = self.place.sizes()
        # Of images that are encoded again, the sizes before are known.
        are_exact = self.source.contents.has_exact_sizes and self.options.reencoding is None
        for number in range(len(self.plan)):
            name = self.plan.name(number)
            kept = whole_shard(
                self.place,
                name,
                found=present.get(name),
                size=sizes[number] if are_exact else None,
                num_samples=counts[number],
                on_error=self.on_error,
            )
            if kept is not None:
                self._add(number, kept)
        self.kept = self.samples_done, self.bytes_done
        self._report()
        return [number for number in range(len(self.plan)) if number not in self.done]

    def write(self, executor: Executor, missing: list[int], ahead: int) -> None:
        """Hand out shards a few at a time: the list of a shard's samples is large where samples are small."""
        todo = iter(missing)
        running: dict[Future[WrittenShard], int] = {}
        while True:
            for number in itertools.islice(todo, ahead - len(running)):
                samples = self.options.prepared(self.source.take(self.plan.samples(number)))
                name, root, compress = self.plan.name(number), self.source.location, self.options.compress
                written = executor.submit(write_shard, self.place, name, samples, root, self.on_error, compress)
                running[written] = number
            if not running:
                return
            done = concurrent.futures.wait(running, _LOOK, return_when=concurrent.futures.FIRST_COMPLETED).done
            if not done:
                self._report(under_way=self._under_way(running.values()))
            for future in done:
                self._add(running.pop(future), future.result())
                self._report()

    def _under_way(self, numbers: Iterable[int]) -> int:
        """Return the bytes of the shards that are being written here: one large shard would show no progress."""
        folder, found = self.place.folder, 0
        if folder is None:
            return 0
        for number in numbers:
            written = 0
            for path in folder.glob(f"{TEMPORARY}*-{self.plan.name(number)}"):
                with contextlib.suppress(OSError):  # renamed, now that it is whole
                    written += path.stat().st_size
            found += min(written, int(self.plan.sizes[number]))
        return found

    def _add(self, number: int, shard: WrittenShard) -> None:
        self.done[number] = shard
        self.samples_done += shard.num_samples + len(shard.left_out)
        self.left_out += len(shard.left_out)
        self.bytes_done += int(self.plan.sizes[number])  # what it was to have, so that all add up to the whole

    def _report(self, *, under_way: int = 0) -> None:
        if self.progress is None:
            return
        self.shown = max(self.shown, self.bytes_done + under_way)  # a shard that is renamed just now is in neither
        self.progress(
            PackProgress(
                samples_done=self.samples_done,
                samples=len(self.source),
                shards_done=len(self.done),
                shards=len(self.plan),
                bytes_done=self.shown,
                bytes=self.bytes,
                left_out=self.left_out + len(self.source.left_out),
                samples_kept=self.kept[0],
                bytes_kept=self.kept[1],
            )
        )
