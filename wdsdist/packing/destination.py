"""The destination of shards: a folder or a prefix in a store, what it holds already, and one packer at a time.

A job record is written before the first shard and stays beside the finished data set, so that the same command can go
on where it stopped. Where it is, files with the shards' names are wdsdist's own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from wdsdist import storage
from wdsdist._util import job_lock
from wdsdist._util.files import atomic_write
from wdsdist._util.validation import check_path
from wdsdist.errors import (
    DestinationError,
    DestinationExistsError,
    IndexFormatError,
    NotFoundError,
    StorageError,
    WdsdistError,
)
from wdsdist.packing.job import VERSION, Job, Record
from wdsdist.packing.plan import shard_number
from wdsdist.packing.sources.source import SCRATCH_SUFFIX, LeftOut, OnError
from wdsdist.shards import index as shardindex
from wdsdist.shards import index_target
from wdsdist.shards import manifest as manifests
from wdsdist.shards.manifest import APPEND_RECORD, PACK_RECORD, Manifest
from wdsdist.shards.tar.naming import is_tar

REPORT = "pack-report.jsonl"
"""The samples that were left out: a line of JSON for each, beside the shards."""

_LOCK = ".wdsdist-pack.lock"

# The names that `_util.files.atomic_write` gives to what packing writes.
_TEMPORARY = re.compile(
    rf"\.tmp-\w+-(?:shard-\d+\.tar(?:\.zst)?(?:{re.escape(shardindex.SUFFIX)})?"
    rf"|{'|'.join(map(re.escape, (manifests.FILE_NAME, PACK_RECORD, APPEND_RECORD, REPORT)))})"
)
# Of sources that are unpacked or fetched before they are packed.
_TEMPORARY_FOLDER = re.compile(rf"\.tmp-\w+{re.escape(SCRATCH_SUFFIX)}")

_log = logging.getLogger("wdsdist")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or URL, small and picklable: it travels to the processes that write there."""

    location: str
    options: storage.StorageOptions = field(default_factory=storage.StorageOptions, repr=False)
    """For its store; kept out of every message, for they may hold credentials."""

    @classmethod
    def of(cls, dest: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> Place:
        """Return the place that a caller names. Raises `ArgumentError` for the name of a tar."""
        check_path("dest", dest)
        place = cls(storage.normalise(dest), storage.named(storage_options, [os.fspath(dest)]))
        index_target.refuse_tar_name("dest", place.location)
        return place

    def __str__(self) -> str:
        return storage.shown(self.location)

    @property
    def folder(self) -> Path | None:
        """The local folder, or ``None`` where this is a URL."""
        return None if storage.is_remote(self.location) else Path(self.location)

    def at(self, name: str) -> str:
        """Return the location of one file."""
        return storage.join(self.location, name)

    def sizes(self) -> dict[str, int]:
        """Return the size of each file, by name; none where there is no such place."""
        found = storage.list(self.location, self.options)
        return {entry.name: entry.size for entry in found if not entry.is_folder}

    def read(self, name: str) -> bytes:
        """Return a file. Raises ``FileNotFoundError`` where there is none."""
        return storage.read(self.at(name), self.options)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file that appears under its name only when it is whole.

        Raises `DestinationError` where it cannot be written.
        """
        folder = self.folder
        if folder is not None:
            with atomic_write(folder / name) as stream:
                yield stream
            return
        try:
            with storage.upload(self.at(name), self.options) as stream:
                yield stream
        except StorageError as error:
            raise DestinationError(str(error)) from error

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        storage.delete(self.at(name), self.options)


def records(place: Place, name: str = PACK_RECORD) -> list[Record]:
    """Return the records in a file of a destination; none where it is missing, damaged, or of another version."""
    try:
        content: Any = json.loads(place.read(name))
        if content["version"] != VERSION:
            return []
        return [Record.parsed(one) for one in content.get("appended", [content])]
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError, AttributeError):
        return []


def save_records(place: Place, name: str, content: Mapping[str, Any]) -> None:
    """Write a file of records into a destination, whole or not at all."""
    with place.create(name) as stream:
        stream.write(json.dumps({"version": VERSION, **content}, indent=1).encode() + b"\n")


def data_set(place: Place) -> Manifest | None:
    """Return the data set that a place holds, or ``None`` where there is none yet."""
    try:
        return manifests.load(place.at(manifests.FILE_NAME), place.options)
    except NotFoundError:
        return None


def readable(place: Place) -> Manifest | None:
    """Return the data set that a place holds, or ``None`` where there is none whose ``index.json`` can be read."""
    with contextlib.suppress(IndexFormatError):
        return data_set(place)
    return None


def first_free(known: Manifest) -> int:
    """Return the number of the first shard that is appended: the next after all that the data set has."""
    return max((file_number(name.decode()) for name in known.names), default=-1) + 1


def file_number(name: str) -> int:
    """Return the number of a shard, or of the index beside one; -1 for other files."""
    number = shard_number(name.removesuffix(shardindex.SUFFIX))
    return -1 if number is None else number


@contextlib.contextmanager
def locked(place: Place) -> Iterator[None]:
    """Make the folder and hold it for one packer; a second one waits until the first has finished.

    On a file system without locks nothing holds it, and a warning says so. Raises `DestinationError` for a folder that
    cannot be made or written, and for any failure to write there under the lock.
    """
    folder = place.folder
    if folder is None:
        yield  # stores have no locks: whoever starts two packers for one URL is asked not to
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with job_lock.locked(
            folder / _LOCK, lambda: _log.warning("another process is packing into %s: waiting for it", folder)
        ):
            _tidy(folder)
            yield
            _tidy(folder)  # a cluster goes on without a worker that was killed in the middle of a shard
    except WdsdistError:
        raise
    except OSError as error:
        raise DestinationError(f"{folder} cannot be written: {_reason(error, folder)}") from error


def finished(place: Place, job: Job, on_error: OnError) -> Manifest | None:
    """Return the manifest where the folder holds all shards of this very job, by name and size.

    A data set that samples were left out of is finished where they may be.
    """
    if all(record.job.differences(job) for record in records(place)):
        return None
    manifest = readable(place)
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
    """Prepare the destination for a job, under its lock: resume, overwrite or refuse, and write the job record.

    What an earlier run of the same job left stays. Raises `DestinationExistsError` where the folder holds another data
    set and ``overwrite`` is false, or where shards would replace files that wdsdist did not write.
    """
    known, listed, appended = next(iter(records(place)), None), readable(place), records(place, APPEND_RECORD)
    if known is not None and not known.job.differences(record.job):
        if not (appended or (listed is not None and len(listed.generations) > 1)):
            place.remove(manifests.FILE_NAME)  # the data set is not whole, so it must not look it
            return
        if not overwrite:
            raise DestinationExistsError(
                f"{place} was appended to, and is not whole, or samples were left out of it: packing its first source "
                f"again would drop the rest; see what `wdsdist verify {place}` finds, or replace all with "
                f"overwrite=True"
            )
    present = place.sizes()
    tars = sum(map(is_tar, present))
    if tars or manifests.FILE_NAME in present:
        if not overwrite:
            raise DestinationExistsError(
                _other(place, known, record.job, tars, finished=manifests.FILE_NAME in present)
            )
        own = _own(known, listed, appended, present)
        _refuse_others(place, own, listed, present, record)
        _remove(place, own)
    save_records(place, PACK_RECORD, {"shards": record.shards or None, "job": asdict(record.job)})


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


def _tidy(folder: Path) -> None:
    """Remove the temporary files of packing, such as those of a worker that was killed; under the folder's lock."""
    for path in list(folder.iterdir()):
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)
        elif _TEMPORARY_FOLDER.fullmatch(path.name):
            if path.is_symlink():  # which `rmtree` refuses too
                raise OSError(errno.ELOOP, f"{path.name} is a symbolic link")
            # NFS keeps what our source has open under another name: the source removes it when it goes.
            shutil.rmtree(path, ignore_errors=True)


def save_report(place: Place, left_out: Iterable[tuple[str | None, LeftOut]], known: Manifest | None) -> None:
    """Write the report beside the shards, or remove that of an earlier run where nothing was left out.

    Samples come with the shard that they were meant for; ``None`` where they were left out before there were any. What
    is appended to a ``known`` data set is reported behind what was left out of that.
    """
    lines = [
        json.dumps({"key": one.key, "shard": shard, "reason": one.reason}).encode() + b"\n" for shard, one in left_out
    ]
    if known is not None:
        with contextlib.suppress(FileNotFoundError):
            before = place.read(REPORT).splitlines(keepends=True)
            # Those behind are of a run that was killed. An index.json of `wdsdist index` does not know their number.
            lines[:0] = before[: known.extra.get("left_out", 0)] if _made_by_packing(known) else before
    if lines:
        with place.create(REPORT) as stream:
            stream.writelines(lines)
    else:
        place.remove(REPORT)


def _own(known: Record | None, listed: Manifest | None, appended: list[Record], present: Collection[str]) -> set[str]:
    """Return which of the files that are ``present`` in a place are shards that wdsdist packed, or indexes of such."""
    shards = set(filter(is_tar, present))
    shards |= {name.removesuffix(shardindex.SUFFIX) for name in present if name.endswith(shardindex.SUFFIX)}
    own = set(filter(known.writes, shards)) if known else set()
    if appended and (listed is None or appended[-1].shards >= len(listed.counts)):  # which no index.json lists yet
        first = appended[0].shards if listed is None else first_free(listed)
        own |= {name for name in shards if file_number(name) >= first}
    if listed is not None and _made_by_packing(listed):
        own |= {shard.name for shard in listed.shards if "/" not in shard.name}
    return own


def _refuse_others(
    place: Place, own: set[str], listed: Manifest | None, present: Collection[str], record: Record
) -> None:
    """Raise `DestinationExistsError` where shards would replace files that wdsdist did not write."""
    in_the_way = sorted(name for name in present if is_tar(name) and name not in own and record.writes(name))
    if manifests.FILE_NAME in present and not own and not (listed and "source" in listed.extra):
        in_the_way.append(manifests.FILE_NAME)
    if in_the_way:
        raise DestinationExistsError(
            f"{place} holds {in_the_way[0]}, which packing would replace but did not write: choose another folder"
        )


def _remove(place: Place, shards: set[str]) -> None:
    """Remove the data set that wdsdist packed here before, index.json first: without it there is no data set."""
    place.remove(manifests.FILE_NAME)
    if shards:
        place.remove(REPORT)
        place.remove(APPEND_RECORD)
    for name in sorted(shards):
        place.remove(name + shardindex.SUFFIX)
        place.remove(name)


def _made_by_packing(manifest: Manifest) -> bool:
    return "shuffle_seed" in manifest.extra


def _other(place: Place, known: Record | None, job: Job, tars: int, *, finished: bool) -> str:
    """Say what a folder holds that is not this job's."""
    advice = "choose another folder, or replace what wdsdist packed there with overwrite=True"
    if known is None:
        what = f"{tars:,} tar files" if tars else manifests.FILE_NAME
        return f"{place} holds {what} and no record of what they were packed from that this wdsdist reads: {advice}"
    state = "another data set" if finished else "another data set, not finished"
    return f"{place} holds {state} ({'; '.join(known.job.differences(job))}): {advice}"


def _reason(error: OSError, folder: Path) -> str:
    file = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if not file.is_dir():
        return f"{file} is a file, not a folder; choose another folder"
    return f"{error.strerror or error}; repair that or choose another folder"
