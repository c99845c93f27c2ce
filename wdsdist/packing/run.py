"""Packing itself: list the source, plan the shards, write those that are missing in parallel, then index.json."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from wdsdist import manifest as manifests
from wdsdist import sources, storage
from wdsdist.checks import check_integer
from wdsdist.errors import ArgumentError, DestinationError, SourceError, WdsdistError
from wdsdist.manifest import Manifest, Shard
from wdsdist.node import cpu_count
from wdsdist.packing import destination, report
from wdsdist.packing.job import Job, PackOptions, Record
from wdsdist.packing.plan import PackPlan, make_plan
from wdsdist.packing.writer import WrittenShard, whole_shard, write_shard
from wdsdist.processes import pool
from wdsdist.sources import LeftOut, OnError, Source
from wdsdist.sources.webdataset import ShardsSource

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
    left_out: int = 0
    """Samples that could not be packed, of those done."""


def pack(
    source: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    shard_bytes: int = 64 * 2**20,
    shard_samples: int | None = None,
    workers: int | None = None,
    shuffle_seed: int | None = 0,
    kind: str | None = None,
    class_folders: bool | None = None,
    columns: Mapping[str, str] | None = None,
    overwrite: bool = False,
    on_error: OnError = "raise",
    progress: Callable[[PackProgress], None] | None = None,
) -> Manifest:
    """Turn a downloaded data set into WebDataset shards, once.

    The same source and options give the same bytes, whatever the number of workers and wherever they lie. Called
    again, it returns at once. After an interruption, the same call keeps every whole shard and writes the rest. A
    second call for the same folder, at the same time, waits for the first and finds its result.

    Args:
        source: a folder of files, where those that agree up to the first dot of the base name are one sample; a
            ``.zip`` or a ``.tar``, plain or compressed, of such files; WebDataset shards, by their folder, a pattern
            or a list; an IDX set, by its images file, a prefix such as ``mnist/train``, or the folder that holds it
            alone; or a URL of any of these.
        dest: the folder for the shards; it is made where it does not exist.
        shard_bytes: the most bytes of a shard; a sample that needs more gets a shard of its own.
        shard_samples: the most samples of a shard; by default, only bytes count.
        workers: processes that write; by default one for each core.
        shuffle_seed: decides the order of the samples; ``None`` keeps that of the source.
        kind: what ``source`` is taken for, such as ``"folder"`` or ``"csv"``; by default, what it looks like.
        class_folders: whether each sample gets a ``cls`` member, the number of its folder directly under ``source``;
            by default, when ``source`` looks like a folder of class folders with images.
        columns: of a table, the member that each column becomes, such as ``{"image": "jpg"}``; columns that are not
            named follow the rules of `wdsdist.sources.mapping`.
        overwrite: whether to replace another data set that wdsdist packed into ``dest``; nothing else is removed.
        on_error: ``"raise"`` stops at the first sample that cannot be packed, such as one of a file that cannot be
            read; ``"skip"`` leaves such samples out, each wholly, and lists them with the reasons in
            ``pack-report.jsonl`` beside the shards; ``manifest.extra["left_out"]`` is their number.
        progress: called with a `PackProgress` after each shard.

    Returns the manifest, as `wdsdist.open` would.

    Raises:
        SourceNotFoundError: there is no source.
        SourceError: the source is empty, ambiguous or damaged, or changes while it is packed; or all was left out.
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
    options = PackOptions(shard_bytes=shard_bytes, shard_samples=shard_samples, shuffle_seed=shuffle_seed)
    if workers is not None:
        check_integer("workers", workers, 1)
    if on_error not in ("raise", "skip"):
        raise ArgumentError(f'on_error is {on_error!r}: it must be "raise" or "skip"')
    location = storage.normalise(dest)
    if storage.is_remote(location):
        raise DestinationError(f"{storage.shown(location)} is a URL: pack into a local folder, then upload that")
    folder = Path(location)
    found = sources.find(
        source, kind=kind, class_folders=class_folders, columns=columns, on_error=on_error, scratch=folder
    )
    _refuse_inside(folder, found)
    job = Job(kind=found.kind, location=found.location, fingerprint=found.fingerprint(), options=options)
    # Looked for before the lock is taken: a finished data set may lie where nothing can be written any more.
    done = destination.finished(folder, job, on_error)
    if done is not None:
        return done
    with destination.locked(folder):
        done = destination.finished(folder, job, on_error)  # by the process that held the lock before us
        if done is not None:
            return done
        plan = make_plan(
            found.stored_sizes(), shuffle_seed=shuffle_seed, shard_bytes=shard_bytes, shard_samples=shard_samples
        )
        destination.claim(folder, Record(job, len(plan)), overwrite=overwrite)
        shards = _Shards(found, plan, folder, on_error, progress).write_all(workers)
        left_out: list[tuple[str | None, LeftOut]] = [(None, one) for one in found.left_out]
        left_out += [(shard.name, one) for shard in shards for one in shard.left_out]
        report.save(folder, left_out)
        if len(left_out) >= len(found) + len(found.left_out):
            raise SourceError(f"{found.location} holds no sample that can be packed: {left_out[0][1].reason}")
        manifests.save(_manifest(folder, found, options, shards, len(left_out)), folder)
    return manifests.load(str(folder / manifests.FILE_NAME))


class _Shards:
    """The shards of one plan, and those of them that are there."""

    def __init__(
        self,
        source: Source,
        plan: PackPlan,
        folder: Path,
        on_error: OnError,
        progress: Callable[[PackProgress], None] | None,
    ) -> None:
        self.source = source
        self.plan = plan
        self.folder = folder
        self.on_error = on_error
        self.progress = progress
        self.done: dict[int, WrittenShard] = {}
        self.samples_done = self.bytes_done = self.left_out = 0

    def write_all(self, workers: int | None) -> list[WrittenShard]:
        """Keep what is whole, write the rest, and return all shards in order."""
        counts, sizes = self.plan.counts.tolist(), self.plan.sizes.tolist()
        for number in range(len(self.plan)):
            size = sizes[number] if self.source.has_exact_sizes else None
            name = self.plan.name(number)
            kept = whole_shard(self.folder, name, size=size, num_samples=counts[number], on_error=self.on_error)
            if kept is not None:
                self._add(number, kept)
        missing = [number for number in range(len(self.plan)) if number not in self.done]
        if self.done:
            self._report()
        if missing:
            try:
                with pool(workers, len(missing)) as executor:
                    self._write(executor, missing, _AHEAD * min(workers or cpu_count(), len(missing)))
            except BrokenProcessPool as error:
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
                name, root = self.plan.name(number), self.source.location
                running[executor.submit(write_shard, self.folder, name, samples, root, self.on_error)] = number
            if not running:
                return
            for future in concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED).done:
                self._add(running.pop(future), future.result())
                self._report()

    def _add(self, number: int, shard: WrittenShard) -> None:
        self.done[number] = shard
        self.samples_done += shard.num_samples + len(shard.left_out)
        self.left_out += len(shard.left_out)
        self.bytes_done += shard.size

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
                left_out=self.left_out + len(self.source.left_out),
            )
        )


def _manifest(
    folder: Path, source: Source, options: PackOptions, shards: list[WrittenShard], left_out: int
) -> Manifest:
    return Manifest.of(
        str(folder),
        [Shard(shard.name, shard.num_samples, shard.size, shard.sha256) for shard in shards],
        extra={
            "source": {"kind": source.kind},
            "shuffle_seed": options.shuffle_seed,
            # As readers match them: in lower case.
            "fields": sorted({extension.lower() for shard in shards for extension in shard.extensions}),
            "payload_bytes": sum(shard.payload_bytes for shard in shards),
            **({"left_out": left_out} if left_out else {}),
            **source.extra(),
        },
    )


def _refuse_inside(folder: Path, source: Source) -> None:
    """The next run would find the shards among the files to pack, and take that for another source."""
    place, root = folder.resolve(), Path(source.location).resolve()
    if isinstance(source, ShardsSource) and place in {Path(path).resolve().parent for path in source.paths}:
        raise ArgumentError(f"dest {folder} holds the shards to pack: choose another folder")
    if source.kind == "folder" and (place == root or root in place.parents):
        raise ArgumentError(f"dest {folder} lies inside the source {source.location}: choose a folder outside it")
