"""Packing itself: list the source, plan the shards, write those that are missing in parallel, then index.json."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wdsdist import manifest as manifests
from wdsdist import sources, storage
from wdsdist.checks import check_integer
from wdsdist.errors import ArgumentError, WdsdistError
from wdsdist.manifest import Manifest, Shard
from wdsdist.node import cpu_count
from wdsdist.packing import destination
from wdsdist.packing.elsewhere import borrowed, parallelism
from wdsdist.packing.job import Job, PackOptions, Record
from wdsdist.packing.place import Place
from wdsdist.packing.plan import PackPlan, make_plan
from wdsdist.packing.reencoding import DEFAULT_QUALITY, ReencodedSource, Reencoding, check_options
from wdsdist.packing.writer import WrittenShard, payload_bytes, whole_shard, write_shard
from wdsdist.processes import pool
from wdsdist.sources import Source

_AHEAD = 2  # shards handed out for each process: one that it writes, and one so that it need not wait


@dataclass(frozen=True, slots=True)
class PackProgress:
    """How far packing has come."""

    samples_done: int
    samples: int
    shards_done: int
    shards: int
    bytes_done: int
    bytes: int
    """Of all tars, headers and padding included."""


def pack(
    source: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    shard_bytes: int = 64 * 2**20,
    shard_samples: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    shuffle_seed: int | None = 0,
    class_folders: bool | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[PackProgress], None] | None = None,
) -> Manifest:
    """Turn a downloaded data set into WebDataset shards, once.

    The same source and options give the same bytes, whatever the number of workers and wherever they lie. Called
    again, it returns at once. After an interruption, the same call keeps every whole shard and writes the rest. A
    second call for the same folder, at the same time, waits for the first and finds its result.

    Args:
        source: a folder of files, where those that agree up to the first dot of the base name are one sample; or an
            IDX set, by its images file, a prefix such as ``mnist/train``, or the folder that holds it alone.
        dest: the folder for the shards, which is made where it does not exist; or a URL that fsspec can write, where
            nothing keeps two packers apart.
        shard_bytes: the most bytes of a shard; a sample that needs more gets a shard of its own.
        shard_samples: the most samples of a shard; by default, only bytes count.
        workers: processes that write; by default one for each core. With an ``executor``: how many shards it writes
            at once, for one that does not say.
        executor: writes the shards instead, perhaps on other machines: any `concurrent.futures.Executor`, which stays
            open. Its workers must have wdsdist, and must see ``source`` and ``dest`` under the same names.
        shuffle_seed: decides the order of the samples; ``None`` keeps that of the source.
        class_folders: whether each sample gets a ``cls`` member, the number of its folder directly under ``source``;
            by default, when ``source`` looks like a folder of class folders with images.
        max_side: the most pixels that the longer side of an image may have; larger ones are scaled down and encoded
            again (JPEG, PNG, WebP, BMP, TIFF), all others stay byte for byte. Shards are planned with the sizes
            before, so they come out smaller than ``shard_bytes``. See `Reencoding.apply`. Off by default.
        quality: of the images that are encoded again as JPEG or lossy WebP, 1 to 95; by default 90.
        overwrite: whether to replace another data set that wdsdist packed into ``dest``; nothing else is removed.
        storage_options: passed to fsspec where ``dest`` is a URL.
        progress: called with a `PackProgress` after each shard.

    Returns the manifest, as `wdsdist.open` would.

    Raises:
        SourceNotFoundError: there is no source.
        SourceError: the source is empty, ambiguous or damaged, or changes while it is packed.
        DestinationExistsError: ``dest`` holds another data set, or the same packed with other options.
        DestinationError: ``dest`` cannot be written.
        ArgumentError: an option has a value that cannot work.

    >>> import tempfile, pathlib
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> for number in range(4):
    ...     folder = root / "photos" / f"class{number % 2}"
    ...     folder.mkdir(parents=True, exist_ok=True)
    ...     _ = (folder / f"{number:04}.jpg").write_bytes(bytes(1000))
    >>> manifest = pack(root / "photos", root / "shards", shard_samples=3)
    >>> [(shard.name, shard.num_samples) for shard in manifest.shards]
    [('shard-000000.tar', 3), ('shard-000001.tar', 1)]
    >>> manifest.extra["classes"], manifest.extra["fields"]
    (['class0', 'class1'], ['cls', 'jpg'])
    """
    check_options(max_side, quality)
    if max_side is not None and quality is None:
        quality = DEFAULT_QUALITY
    options = PackOptions(
        shard_bytes=shard_bytes,
        shard_samples=shard_samples,
        shuffle_seed=shuffle_seed,
        max_side=max_side,
        quality=quality,
    )
    if workers is not None:
        check_integer("workers", workers, 1)
    location = storage.normalise(dest)
    place = Place(location, dict(storage_options or {}))
    found = sources.find(source, class_folders=class_folders)
    if max_side is not None and quality is not None:
        found = ReencodedSource(found, Reencoding(max_side=max_side, quality=quality), payload_bytes)
    _refuse_inside(place, found)
    job = Job(kind=found.kind, location=found.location, fingerprint=found.fingerprint(), options=options)
    # Looked for before the lock is taken: a finished data set may lie where nothing can be written any more.
    done = destination.finished(place, job)
    if done is not None:
        return done
    with destination.locked(place):
        done = destination.finished(place, job)  # by the process that held the lock before us
        if done is not None:
            return done
        plan = make_plan(
            found.stored_sizes(), shuffle_seed=shuffle_seed, shard_bytes=shard_bytes, shard_samples=shard_samples
        )
        destination.claim(place, Record(job, len(plan)), overwrite=overwrite)
        shards = _Shards(found, plan, place, progress).write_all(workers, executor, job)
        destination.tidy(place)  # a cluster goes on without a worker that was killed in the middle of a shard
        destination.finish(place, _manifest(place, found, options, shards))
    return manifests.load(place.at(manifests.FILE_NAME), place.options)


class _Shards:
    """The shards of one plan, and those of them that are there."""

    def __init__(
        self, source: Source, plan: PackPlan, place: Place, progress: Callable[[PackProgress], None] | None
    ) -> None:
        self.source = source
        self.plan = plan
        self.place = place
        self.progress = progress
        self.done: dict[int, WrittenShard] = {}
        self.samples_done = self.bytes_done = 0

    def write_all(self, workers: int | None, lent: Executor | None, job: Job) -> list[WrittenShard]:
        """Keep what is whole, write the rest, and return all shards in order."""
        counts, sizes = self.plan.counts.tolist(), self.plan.sizes.tolist()
        present = self.place.sizes()
        for number in range(len(self.plan)):
            name, size = self.plan.name(number), sizes[number] if self.source.has_exact_sizes else None
            kept = whole_shard(self.place, name, found=present.get(name), size=size, num_samples=counts[number])
            if kept is not None:
                self._add(number, kept)
        missing = [number for number in range(len(self.plan)) if number not in self.done]
        if self.done:
            self._report()
        if missing:
            workers = workers or (parallelism(lent) if lent else None)
            try:
                with borrowed(lent, self.place, job) if lent else pool(workers, len(missing)) as executor:
                    self._write(executor, missing, _AHEAD * min(workers or cpu_count(), len(missing)))
            except BrokenExecutor as error:
                raise WdsdistError(
                    "a process that was writing shards died, perhaps killed for want of memory: run the same command "
                    "again, with fewer workers; the shards that are whole are kept"
                ) from error
        return [self.done[number] for number in range(len(self.plan))]

    def _write(self, executor: Executor, missing: list[int], ahead: int) -> None:
        """Hand out shards a few at a time: the list of a shard's samples is large where samples are small."""
        todo = iter(missing)
        running: dict[Future[WrittenShard], int] = {}
        while True:
            for number in itertools.islice(todo, ahead - len(running)):
                samples = self.source.take(self.plan.samples(number))
                running[executor.submit(write_shard, self.place, self.plan.name(number), samples)] = number
            if not running:
                return
            for future in concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED).done:
                self._add(running.pop(future), future.result())
                self._report()

    def _add(self, number: int, shard: WrittenShard) -> None:
        self.done[number] = shard
        self.samples_done += shard.num_samples
        self.bytes_done += int(self.plan.sizes[number])  # what it was to have, so that all add up to the whole

    def _report(self) -> None:
        if self.progress is None:
            return
        self.progress(
            PackProgress(
                samples_done=self.samples_done,
                samples=len(self.source),
                shards_done=len(self.done),
                shards=len(self.plan),
                bytes_done=self.bytes_done,
                bytes=int(self.plan.sizes.sum()),
            )
        )


def _manifest(place: Place, source: Source, options: PackOptions, shards: list[WrittenShard]) -> Manifest:
    return Manifest.of(
        place.location,
        [Shard(shard.name, shard.num_samples, shard.size, shard.sha256) for shard in shards],
        extra={
            "source": {"kind": source.kind},
            "shuffle_seed": options.shuffle_seed,
            # As readers match them: in lower case.
            "fields": sorted({extension.lower() for shard in shards for extension in shard.extensions}),
            "payload_bytes": sum(shard.payload_bytes for shard in shards),
            **source.extra(),
        },
    )


def _refuse_inside(place: Place, source: Source) -> None:
    """The next run would find the shards among the files to pack, and take that for another source."""
    if place.folder is None:
        return
    folder, root = place.folder.resolve(), Path(source.location).resolve()
    if source.kind == "folder" and (folder == root or root in folder.parents):
        raise ArgumentError(f"dest {place} lies inside the source {source.location}: choose a folder outside it")
