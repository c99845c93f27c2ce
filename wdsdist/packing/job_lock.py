"""The place that shards are written to: what it holds already, what of that is ours, and one packer at a time."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout

from wdsdist.errors import DestinationError, DestinationExistsError, WdsdistError
from wdsdist.packing import append, report
from wdsdist.packing import job as jobs
from wdsdist.packing.destination import Place
from wdsdist.packing.job import Job, Record
from wdsdist.packing.sources.source import SCRATCH_SUFFIX, OnError
from wdsdist.shards import index as shardindex
from wdsdist.shards import manifest as manifests
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.tar import is_tar

_LOCK = ".wdsdist-pack.lock"

# The names that `_util.files.atomic_write` gives to what packing writes.
_TEMPORARY = re.compile(
    rf"\.tmp-\w+-(?:shard-\d+\.tar(?:\.zst)?(?:{re.escape(shardindex.SUFFIX)})?"
    rf"|{'|'.join(map(re.escape, (manifests.FILE_NAME, jobs.FILE_NAME, append.FILE_NAME, report.FILE_NAME)))})"
)
# Of sources that are unpacked or fetched before they are packed.
_TEMPORARY_FOLDER = re.compile(rf"\.tmp-\w+{re.escape(SCRATCH_SUFFIX)}")

_log = logging.getLogger("wdsdist")


@contextlib.contextmanager
def locked(place: Place) -> Iterator[None]:
    """Make the folder and hold it for one packer; a second one waits until the first has finished.

    The system frees the lock of a process that dies, however it dies. Raises `DestinationError` for a folder that
    cannot be made or written, and for any failure to write there under the lock.
    """
    folder = place.folder
    if folder is None:
        yield  # stores have no locks: whoever starts two packers for one URL is asked not to
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            _log.warning("another process is packing into %s: waiting for it", folder)
            lock.acquire()
        try:
            for path in list(folder.iterdir()):
                if _TEMPORARY_FOLDER.fullmatch(path.name):
                    shutil.rmtree(path)
            yield
        finally:
            lock.release()
    except WdsdistError:
        raise
    except OSError as error:
        raise DestinationError(f"{folder} cannot be written: {_reason(error, folder)}") from error


def finished(place: Place, job: Job, on_error: OnError) -> Manifest | None:
    """Return the manifest where the folder holds all shards of this very job, by name and size.

    A data set that samples were left out of is finished where they may be.
    """
    if all(record.job.differences(job) for record in jobs.load(place)):
        return None
    manifest = append.readable(place)
    if manifest is None or not _made_by_packing(manifest):
        return None  # `wdsdist index` has replaced our index.json, and does not know our notes
    if manifest.extra.get("left_out") and on_error == "raise":
        return None
    sizes = place.sizes()
    whole = all(
        sizes.get(shard.name) == shard.size and shard.name + shardindex.SUFFIX in sizes for shard in manifest.shards
    )
    return manifest if whole else None


def claim(place: Place, record: Record, *, overwrite: bool) -> None:
    """Make the folder ready for a job, under its lock: refuse or remove what else it holds, and write the record.

    What an earlier run of the same job left stays; only its temporary files go. Raises `DestinationExistsError` where
    the folder holds another data set and ``overwrite`` is false, or where shards would replace files that wdsdist did
    not write.
    """
    tidy(place)
    known = next(iter(jobs.load(place)), None)
    is_same = known is not None and not known.job.differences(record.job)
    if is_same and append.was_appended_to(place):
        if not overwrite:
            raise DestinationExistsError(
                f"{place} was appended to, and is not whole, or samples were left out of it: packing its first source "
                f"again would drop the rest; see what `wdsdist verify {place}` finds, or replace all with "
                f"overwrite=True (--overwrite)"
            )
    elif is_same:
        place.remove(manifests.FILE_NAME)  # the data set is not whole, so it must not look it
        return
    present = place.sizes()
    tars = sum(map(is_tar, present))
    if tars or manifests.FILE_NAME in present:
        if not overwrite:
            raise DestinationExistsError(
                _other(place, known, record.job, tars, finished=manifests.FILE_NAME in present)
            )
        _remove_own(place, known, present, record)
    jobs.save(place, jobs.FILE_NAME, {"shards": record.shards or None, "job": asdict(record.job)})


def finish(place: Place, manifest: Manifest) -> None:
    """Write ``index.json``, which makes the shards a data set.

    Raises `DestinationError` where a shard that was written by another process is not there: some URLs, such as
    ``memory://``, name another thing in each process.
    """
    if place.folder is None:
        present = place.sizes()
        lost = [shard.name for shard in manifest.shards if present.get(shard.name) != shard.size]
        if lost:
            raise DestinationError(
                f"{place} does not hold {lost[0]}, which a worker has written: workers and this process must see the "
                f"same there; where they cannot, pack with workers=1"
            )
    with place.create(manifests.FILE_NAME) as stream:
        stream.write(manifests.dumps(manifest))


def tidy(place: Place) -> None:
    """Remove the temporary files of packing, such as those of a worker that was killed; under the folder's lock."""
    for name in place.sizes() if place.folder else ():
        if _TEMPORARY.fullmatch(name):
            place.remove(name)


def _remove_own(place: Place, known: Record | None, present: Collection[str], record: Record) -> None:
    """Remove the data set that wdsdist packed here before, index.json first: without it there is no data set.

    ``present`` are the names of all files in the place.
    """
    listed = append.readable(place)
    tars = set(filter(is_tar, present))
    indexed = {name.removesuffix(shardindex.SUFFIX) for name in present if name.endswith(shardindex.SUFFIX)}
    own = set(filter(known.writes, tars | indexed)) if known else set()
    own |= append.unlisted(place, listed, tars | indexed)
    if listed is not None and _made_by_packing(listed):
        own |= {shard.name for shard in listed.shards if "/" not in shard.name}
    in_the_way = sorted(filter(record.writes, tars - own))
    if manifests.FILE_NAME in present and not own and not (listed and "source" in listed.extra):
        in_the_way.append(manifests.FILE_NAME)
    if in_the_way:
        raise DestinationExistsError(
            f"{place} holds {in_the_way[0]}, which packing would replace but did not write: choose another folder"
        )
    place.remove(manifests.FILE_NAME)
    if own:
        place.remove(report.FILE_NAME)
        place.remove(append.FILE_NAME)
    for name in sorted(own):
        place.remove(name + shardindex.SUFFIX)
        place.remove(name)


def _made_by_packing(manifest: Manifest) -> bool:
    return "shuffle_seed" in manifest.extra


def _other(place: Place, known: Record | None, job: Job, tars: int, *, finished: bool) -> str:
    """Say what a folder holds that is not this job's."""
    advice = "choose another folder, or replace what wdsdist packed there with overwrite=True (--overwrite)"
    if known is None:
        what = f"{tars:,} tar files" if tars else manifests.FILE_NAME
        return f"{place} holds {what} and no record of what they were packed from: {advice}"
    state = "another data set" if finished else "another data set, not finished"
    return f"{place} holds {state} ({'; '.join(known.job.differences(job))}): {advice}"


def _reason(error: OSError, folder: Path) -> str:
    file = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if not file.is_dir():
        return f"{file} is a file, not a folder; choose another place"
    return f"{error.strerror or error}; mend that or choose another folder"
