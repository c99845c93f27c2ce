"""The destination of shards: a folder or a prefix in a store, for one packer at a time."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from wdsdist import storage
from wdsdist._util import files
from wdsdist._util.files import atomic_write
from wdsdist._util.validation import check_path
from wdsdist.errors import (
    ArgumentError,
    DestinationError,
    NotFoundError,
    StorageError,
    WdsdistError,
)
from wdsdist.packing.sources.source import SCRATCH_SUFFIX, LeftOut
from wdsdist.shards import manifest as manifests
from wdsdist.shards.manifest import PACK_RECORD, Manifest

REPORT = "pack-report.jsonl"
"""The samples that were left out: a line of JSON for each, beside the shards."""

_LOCK = ".wdsdist-pack.lock"

# What `_util.files.atomic_write` writes for packing, and the folders of sources that are unpacked or fetched first.
_NAMES = "|".join(map(re.escape, (manifests.FILE_NAME, PACK_RECORD, REPORT)))
_TEMPORARY = re.compile(rf"\.tmp-\w+(?:-(?:shard-\d+\.tar[\w.]*|{_NAMES})|(?P<folder>{re.escape(SCRATCH_SUFFIX)}))")

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
        if place.location.lower().endswith(".tar"):
            raise ArgumentError(f"dest is {place}: it must be a folder, without the name of a tar", argument="dest")
        return place

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
        """Return the size of each file, by name; none if there is no such place."""
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
        if self.folder is not None:
            with atomic_write(self.folder / name) as stream:
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

    def data_set(self) -> Manifest | None:
        """Return the data set that lies there, or ``None``. Raises `IndexFormatError` for a damaged ``index.json``."""
        try:
            return manifests.load(self.at(manifests.FILE_NAME), self.options)
        except NotFoundError:
            return None


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
        message = "another process is packing into %s: waiting for it"
        with files.locked(folder / _LOCK, on_wait=lambda: _log.warning(message, folder), optional=True):
            _tidy(folder)
            yield
            _tidy(folder)  # a cluster goes on without a worker that was killed in the middle of a shard
    except WdsdistError:
        raise
    except OSError as error:
        raise DestinationError(
            f"{folder} cannot be written: {error.strerror or error}; repair that or choose another folder"
        ) from error


def finish(place: Place, manifest: Manifest) -> None:
    """Write ``index.json``, which makes the shards a data set.

    Raises `DestinationError` if a shard that was written by another process is not there: that process may be on a
    machine with another folder of this name, and some URLs, such as ``memory://``, differ in each process.
    """
    present = place.sizes()
    lost = [shard.name for shard in manifest.shards if present.get(shard.name) != shard.size]
    if lost:
        raise DestinationError(
            f"{place} does not hold {lost[0]}, which a worker has written: every worker must see the same folder, so "
            f"choose one on a shared file system, or a URL; or pack with workers=1"
        )
    with place.create(manifests.FILE_NAME) as stream:
        stream.write(manifests.dumps(manifest))


def _tidy(folder: Path) -> None:
    """Remove the temporary files of packing, such as a killed worker leaves; under the folder's lock."""
    for path in list(folder.iterdir()):
        if match := _TEMPORARY.fullmatch(path.name):
            if match["folder"] is None:
                path.unlink(missing_ok=True)
            elif path.is_symlink():  # which `rmtree` refuses too
                raise OSError(errno.ELOOP, f"{path.name} is a symbolic link")
            else:  # NFS keeps what our source has open under another name: the source removes it when it goes.
                shutil.rmtree(path, ignore_errors=True)


def save_report(place: Place, left_out: Iterable[tuple[str | None, LeftOut]], known: Manifest | None) -> None:
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
            before = place.read(REPORT).splitlines(keepends=True)
            # Those behind are of a run that was killed. An index.json of `wdsdist index` does not know their number.
            lines[:0] = before[: known.extra.get("left_out", 0)] if "shuffle_seed" in known.extra else before
    if lines:
        with place.create(REPORT) as stream:
            stream.writelines(lines)
    else:
        place.remove(REPORT)
