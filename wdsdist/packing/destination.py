"""The destination of shards: a folder or a prefix in a store, for one packer at a time, and its ledger.

The ledger lists the jobs that have written shards there, so that each can go on where it stopped. A job is recorded
before its first shard, and stays beside the finished data set. The last job is finished once ``index.json`` lists its
shards. Files that have the names of a recorded job's shards are wdsdist's own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from wdsdist import storage
from wdsdist._util import files
from wdsdist._util.files import atomic_write
from wdsdist._util.validation import check_integer, check_path
from wdsdist.errors import (
    ArgumentError,
    DestinationError,
    DestinationExistsError,
    IndexFormatError,
    NotFoundError,
    StorageError,
    given,
)
from wdsdist.packing.members import LeftOut
from wdsdist.packing.options import Options
from wdsdist.packing.plan import shard_name, shard_number
from wdsdist.packing.sources.source import SCRATCH_NAME, Contents
from wdsdist.shards import index as shardindex
from wdsdist.shards import manifest as manifests
from wdsdist.shards.manifest import PACK_RECORD, Manifest, Shard
from wdsdist.shards.tar import is_tar

VERSION = 4  # of the ledger, and of the bytes that packing writes

_FROM_PYTHON = ("dataset", "iterable")
"""Kinds of sources whose location does not identify what they hold."""

REPORT = "pack-report.jsonl"
"""The samples that were left out: a line of JSON for each, beside the shards."""

_HOW = " (key, class_folders, columns, root)"
_LOCK = ".wdsdist-pack.lock"
_REMEDY = "; repair that or choose another folder"

_log = logging.getLogger("wdsdist")


@dataclass(frozen=True, slots=True)
class Destination:
    """A folder or URL, small and picklable: it travels to the processes that write there."""

    location: str
    options: storage.StorageOptions = field(default_factory=storage.StorageOptions, repr=False)
    """For its store; kept out of every message, for they may hold credentials."""

    @classmethod
    def of(cls, dest: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> Destination:
        """Return the destination that a caller names. Raises `ArgumentError` for the name of a tar."""
        check_path("dest", dest)
        location = storage.normalise(os.path.expanduser(dest))  # noqa: PTH111 - a Path of a URL is another one
        target = cls(location, storage.named(storage_options, [os.fspath(dest)]))
        if target.location.lower().endswith(".tar"):
            raise ArgumentError(f"dest is {target}: it must be a folder, without the name of a tar", argument="dest")
        return target

    def __str__(self) -> str:
        return storage.shown(self.location)

    @property
    def folder(self) -> Path | None:
        """The local folder, or ``None`` for a URL."""
        return None if storage.is_remote(self.location) else Path(self.location)

    def at(self, name: str) -> str:
        """Return the location of one file."""
        return storage.join(self.location, name)

    def sizes(self) -> dict[str, int]:
        """Return the size of each file, by name; none if there is no such folder."""
        entries = storage.list(self.location, self.options)
        return {entry.name: entry.size for entry in entries if not entry.is_folder}

    def read(self, name: str) -> bytes:
        """Return a file. Raises ``FileNotFoundError``."""
        return storage.read(self.at(name), self.options)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file that appears under its name only when it is whole.

        Raises `DestinationError` if it cannot be written.
        """
        is_made = False
        upload = storage.upload(self.at(name), self.options)
        with files.writing(storage.shown(self.at(name)), _REMEDY):
            try:
                with upload if self.folder is None else atomic_write(self.folder / name) as stream:
                    yield stream
                    is_made = True
            except StorageError as error:
                if not is_made:  # of a source that is read meanwhile
                    raise
                raise DestinationError(str(error)) from error

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        storage.delete(self.at(name), self.options)

    def data_set(self) -> Manifest | None:
        """Return the data set that lies there, or ``None``. Raises `IndexFormatError` for a damaged ``index.json``."""
        try:
            return manifests.load(self.at(manifests.FILE_NAME), self.options)
        except NotFoundError:
            return None


@contextlib.contextmanager
def locked(target: Destination) -> Iterator[None]:
    """Make the folder and hold it for one packer; a second one waits until the first has finished.

    On a file system without locks nothing holds it, and a warning says so. Raises `DestinationError` for a folder that
    cannot be made or locked.
    """
    folder = target.folder
    if folder is None:
        yield  # stores have no locks: whoever starts two packers for one URL is asked not to
        return
    with contextlib.ExitStack() as stack:
        with files.writing(folder, _REMEDY):
            folder.mkdir(parents=True, exist_ok=True)
            message = "another process is packing into %s: waiting for it"
            lock = files.locked(folder / _LOCK, on_wait=lambda: _log.warning(message, folder), optional=True)
            stack.enter_context(lock)
        _tidy(folder)
        yield
        _tidy(folder)  # a cluster goes on without a worker that was killed in the middle of a shard


def _tidy(folder: Path) -> None:
    """Remove the temporary files of packing, such as a killed worker leaves; under the folder's lock."""
    for path in list(folder.glob(files.ANY_TEMPORARY)):
        name = path.name.split("-", 2)[2]
        if name == SCRATCH_NAME:
            # A link is left alone. NFS keeps what our source has open under another name, until the source removes it.
            shutil.rmtree(path, ignore_errors=True)
        elif shard_number(name) >= 0 or name in (manifests.FILE_NAME, PACK_RECORD, REPORT):
            with contextlib.suppress(OSError):
                path.unlink()


def save_report(target: Destination, left_out: Iterable[tuple[str | None, LeftOut]], known: Manifest | None) -> None:
    """Write the report beside the shards, or remove the report of an earlier run if nothing was left out.

    Samples come with the shard that they were meant for; ``None`` if they were left out before. What
    is appended to a ``known`` data set is reported behind what was left out of that.
    """
    lines = [
        json.dumps({"key": sample.key, "shard": shard, "reason": sample.reason}).encode() + b"\n"
        for shard, sample in left_out
    ]
    if known is not None:
        with contextlib.suppress(FileNotFoundError):
            before = target.read(REPORT).splitlines(keepends=True)
            # The lines after these are of a run that was killed. `wdsdist index` does not note their number.
            lines[:0] = before[: known.extra.get("left_out", 0)] if "shuffle_seed" in known.extra else before
    if lines:
        with target.create(REPORT) as stream:
            stream.writelines(lines)
    else:
        target.remove(REPORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One source packed with one set of options."""

    kind: str
    location: str
    """Path or URL of the source, for messages only: a source that is moved unchanged stays the same source."""
    fingerprint: str
    options: Mapping[str, Any]
    """The options that decide the content of the shards, as `Options.fingerprint` returns them."""
    first: int = 0
    """The number of its first shard."""
    shards: int = 0
    """How many it writes, or 0 if that shows only at the end."""
    listed: int = 0
    """How many shards ``index.json`` lists before it; 0 for the first job."""

    def differences(self, other: Job) -> list[str]:
        """Return in which ways this job, from a record, differs from the other one, which is asked for."""
        lines = []
        if self.fingerprint != other.fingerprint:
            if (self.kind, self.location) != (other.kind, other.location):
                lines.append(f"it was packed from {self.location}, not {other.location}")
            else:
                lines.append(f"{self.location}, or how it is read{_HOW}, has changed since it was packed")
        names = {**self.options, **other.options}
        mine, asked = ({name: job.options.get(name) for name in names} for job in (self, other))
        return lines + [f"it has {name}={mine[name]}, not {asked[name]}" for name in names if mine[name] != asked[name]]

    def writes(self, name: str) -> bool:
        """Return whether a file name is one of this packing job: of a shard, or of a shard index."""
        number = shard_number(name)
        is_planned = number < self.first + self.shards or not self.shards
        own = shard_name(number, self.options.get("compress"))
        return self.first <= number and is_planned and name.removesuffix(shardindex.SUFFIX) == own


def records(target: Destination) -> list[Job]:
    """Return the jobs on record at a destination; none if the ledger is missing, damaged, or of another version."""
    try:
        content: Any = json.loads(target.read(PACK_RECORD))
        jobs = [Job(**job) for job in content["jobs"]] if content["version"] == VERSION else []
        for job in jobs:
            for name in ("first", "shards", "listed"):
                check_integer(name, getattr(job, name), 0)
            job.differences(job)
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError, AttributeError):
        return []
    return jobs


def finished(target: Destination, job: Job, options: Options) -> Manifest | None:
    """Return the manifest of a data set that needs nothing of a job any more, or ``None``.

    It holds all shards of this very job, by name and size; one that samples were left out of is finished if they may
    be. With ``append``, it holds what the job's source held, from its packing or from an earlier append.
    """
    jobs = records(target)
    try:
        manifest = target.data_set()
    except IndexFormatError:
        if options.append:
            raise
        return None  # it is written again
    if manifest is not None and options.append:
        packed = {earlier.fingerprint for earlier in jobs if earlier.listed < len(manifest.counts)}
        return manifest if job.fingerprint in packed else None
    # `wdsdist index` may have replaced our index.json, and does not know our notes.
    if manifest is None or "shuffle_seed" not in manifest.extra or all(first.differences(job) for first in jobs[:1]):
        return None
    if manifest.extra.get("left_out") and options.on_error == "raise":
        return None
    sizes = target.sizes()
    are_whole = (
        sizes.get(each.name) == each.size and each.name + shardindex.SUFFIX in sizes for each in manifest.shards
    )
    return manifest if all(are_whole) else None


def claim(target: Destination, job: Job, known: Manifest | None, contents: Contents, *, overwrite: bool) -> Job:
    """Resume, overwrite or refuse the destination for a packing job, under its lock; return the job as it is recorded.

    The job appends to the data set that is ``known``, if any: those shards stay. Shards that an earlier run of the same
    job wrote stay too, except the shards of an iterable, which is read from its start again; with ``overwrite``, the
    shards of other jobs are removed. ``contents`` are the source's.

    Raises:
        DestinationExistsError: other jobs have written there, or shards would replace files of somebody else.
        DestinationError: the known data set lists shards that lie elsewhere, or its keys end by another rule.
        ArgumentError: the source was added before and has changed since; or it lacks classes, or a class number or the
            type of an array is another one in it.
    """
    done, begun, present = list[Job](), records(target), target.sizes()
    if known is not None:
        if known.base != target.location or "key_rule" in known.extra:
            why = f"has keys that end by the rule {known.key_rule}" if "key_rule" in known.extra else "lies elsewhere"
            raise DestinationError(
                f"the data set of {target} {why}: pack into a folder of its own and use both with wdsdist.concat"
            )
        arrays, new_arrays = known.extra.get("arrays", {}), contents.notes.get("arrays", {})
        shared = [name for name in known.extra.get("fields", ()) if name in new_arrays]
        classes = zip(known.extra.get("classes", ()), contents.notes.get("classes", ()), strict=False)
        for what, old, new in [
            *((f"class {number}", *names) for number, names in enumerate(classes)),
            *((f"the type of arrays {name!r}", arrays.get(name), new_arrays[name]) for name in shared),
        ]:
            if old != new:
                problem = f"{what} is {old!r} in {target} and {new!r} in {job.location}"
                raise ArgumentError(f"{problem}: make them alike, or pack both together", argument="source")
        if known.extra.get("classes") and "cls" not in contents.members:
            problem = f"{job.location} has no cls, but the samples of {target} have classes: append it with"
            raise ArgumentError(f"{problem} {given('class_folders', True)}, or pack it elsewhere", argument="source")
        done = [each for each in begun if each.listed < len(known.counts)]
        begun = begun[len(done) :]
        if job.kind not in _FROM_PYTHON and any(each.location == job.location for each in done):
            problem = f"{job.location} was packed into {target} before, and has changed since, or how it is read{_HOW}"
            raise ArgumentError(f"{problem}: append what is new from a folder or file of its own", argument="source")
        first = max((shard_number(name.decode()) for name in known.names), default=-1) + 1
        job = replace(job, first=first, listed=len(known.counts))
    own = {name for name in present if shard_number(name) >= job.first and any(each.writes(name) for each in begun)}
    is_foreign = known is None and not own  # the ledger lists nothing that is present
    for name in present:
        if name not in own and (job.writes(name) or (is_foreign and (is_tar(name) or name == manifests.FILE_NAME))):
            raise DestinationExistsError(
                f"{target} holds {name}, which is not on record there: choose another folder, or move it away"
            )
    differences = next((lines for each in reversed(begun) if (lines := each.differences(job))), [])
    if differences and not overwrite and (own or known is not None or manifests.FILE_NAME in present):
        what, way = "another data set", "choose another folder, or replace what wdsdist packed there"
        if known is not None:
            what = f"an append of {begun[-1].location} that was not finished"
            way = "run that command again first, or drop what it has written"
        raise DestinationExistsError(
            f"{target} holds {what} ({'; '.join(differences)}): {way} with {given('overwrite', True)}"
        )
    # The index first: without it there is no data set.
    replaced = [manifests.FILE_NAME, REPORT] if known is None else []
    for name in [*replaced, *sorted(own if differences or not job.shards else ())]:
        target.remove(name)
    with target.create(PACK_RECORD) as stream:
        content = {"version": VERSION, "jobs": [asdict(each) for each in (*done, job)]}
        stream.write(json.dumps(content, indent=1).encode() + b"\n")
    # Stores have no locks.
    if known is not None and target.folder is None and any(each.differences(job) for each in records(target)[-1:]):
        raise DestinationExistsError(f"another process has begun to append to {target}: run this again once it is done")
    return job


def complete(target: Destination, job: Job, shards: list[Shard], notes: dict[str, Any], known: Manifest | None) -> None:
    """Write ``index.json``, which makes the shards of a job a data set, or the next generation of the ``known`` one.

    ``notes`` are what it says of these shards.

    Raises:
        DestinationError: a shard that was written by another process is not there: that process may be on a machine
            with another folder of this name, and some URLs, such as ``memory://``, differ in each process.
        DestinationExistsError: another process has appended meanwhile, which only stores allow.
    """
    present = target.sizes()
    if lost := [shard.name for shard in shards if present.get(shard.name) != shard.size]:
        raise DestinationError(
            f"{target} does not hold {lost[0]}, which a worker has written: choose a folder that all workers share"
        )
    if known is not None:
        now = target.data_set()
        if now is None or now.fingerprint != known.fingerprint:
            raise DestinationExistsError(f"{target} was changed while {job.location} was appended: run the same again")
        more, notes = notes, dict(known.extra)
        for total in ("payload_bytes", "with_checksums", "left_out", "renamed_keys"):
            if total in notes or total in more:
                notes[total] = notes.get(total, 0) + more.get(total, 0)
        has_labels = "cls" in notes.get("fields", ())
        notes["fields"] = sorted({*notes.get("fields", ()), *more["fields"]})
        if len(more.get("classes", ())) > len(notes.get("classes", ())) and ("classes" in notes or not has_labels):
            notes["classes"] = more["classes"]
        if arrays := {**notes.get("arrays", {}), **more.get("arrays", {})}:
            notes["arrays"] = arrays
        shards = [*known.shards, *shards]
        notes["generations"] = [*known.generations, len(shards)]
    name = "" if known is None else known.name
    manifest = Manifest.of(target.location, shards, name=name, extra=notes, origin=target.at(manifests.FILE_NAME))
    with target.create(manifests.FILE_NAME) as stream:
        stream.write(manifests.dumps(manifest))
