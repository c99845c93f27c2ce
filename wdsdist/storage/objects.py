"""Read, write, list and remove the files and objects at a location: the small ones, each in one request."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from wdsdist._util.files import read_file
from wdsdist.errors import StorageError
from wdsdist.storage.clients import StorageOptions, asked, filesystem, persist, speaks
from wdsdist.storage.direct import reader
from wdsdist.storage.pieces import in_one_request
from wdsdist.storage.retry import Deadline, FinalError, MisfitError, NoRangesError
from wdsdist.storage.urls import is_remote, shown, split

T = TypeVar("T")
_TOGETHER = 16  # requests at once
_STAMPS = ("ETag", "etag", "md5Hash", "content_md5", "sha256", "mtime", "LastModified", "Last-Modified",
           "last_modified", "updated", "modified", "created")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A remote file or object."""

    name: str
    """Its path below what was listed, as the store spells it."""
    size: int
    """Bytes; -1 where the store does not say."""
    stamp: str
    """What the store gives to tell one content from another: an ETag, a digest, a time; empty where nothing."""
    is_folder: bool = False


def read(location: str, options: StorageOptions | None = None, *, deadline: Deadline | None = None) -> bytes:
    """Return everything that a location holds, trying again after passing faults until the deadline.

    Raises ``FileNotFoundError`` where there is nothing, `StorageError` where it cannot be read.
    """
    if not is_remote(location):
        try:
            return read_file(Path(location))
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise StorageError(f"{location} cannot be read: {error.strerror}") from error

    def cat() -> bytes:
        client, path = reader(location, options, retries=deadline is None)
        content: bytes = asked(client, "cat_file", path, deadline, **in_one_request(client))
        return content

    return persist(location, cat, deadline=deadline)


def read_until(
    location: str,
    accept: Callable[[bytes, str], T],
    options: StorageOptions | None = None,
    *,
    deadline: Deadline | None = None,
) -> T:
    """Return what a function makes of all that a URL holds, and of its stamp, asking again until it accepts that.

    ``accept`` raises `UnfitError` for what the store should not have answered. Raises what `read` raises.
    """

    def cat() -> T:
        client, path = reader(location, options, retries=deadline is None)
        if speaks(client, "direct"):
            return accept(*asked(client, "whole", path, deadline))
        stamp = _stamp_of(asked(client, "info", path, deadline))  # of the older content, where it is replaced meanwhile
        return accept(asked(client, "cat_file", path, deadline, **in_one_request(client)), stamp)

    return persist(location, cat, deadline=deadline)


def read_range(location: str, start: int, stop: int, options: StorageOptions | None = None) -> bytes:
    """Return the bytes from ``start`` up to ``stop``, trying again after passing faults.

    Raises ``FileNotFoundError`` where there is nothing, `StorageError` where it cannot be read or has fewer bytes.
    """

    def cat() -> bytes:
        client, path = reader(location, options)
        try:
            content: bytes = client.cat_file(path, start=start, end=stop)
            if len(content) > stop - start and speaks(client, "http"):
                raise NoRangesError("the server has no ranges")
        except NoRangesError as error:
            raise FinalError(f"{shown(location)} cannot be read in parts: {error}") from None
        if len(content) != stop - start:
            raise MisfitError(f"{len(content):,} of {stop - start:,} bytes came from {start:,} on: was it replaced?")
        return content

    return persist(location, cat)


def write(location: str, content: bytes, options: StorageOptions | None = None) -> None:
    """Put an object at a remote location, whole or not at all. Raises `StorageError` where it cannot be written."""

    def put() -> None:
        client, path = filesystem(location, options)
        client.pipe_file(path, content)

    persist(location, put, "written")


def listing(location: str, options: StorageOptions | None = None) -> list[Entry]:
    """Return all files below a remote folder, however deep; none where there is no such folder."""

    def find() -> list[Entry]:
        client, path = filesystem(location, options)
        root = path.rstrip("/") + "/"
        found = client.find(path, detail=True).items()
        entries = [_entry(name[len(root) :], info) for name, info in found if name.startswith(root)]
        unsized = [entry for entry in entries if entry.size < 0]
        with concurrent.futures.ThreadPoolExecutor(_TOGETHER) as pool:  # listings of web servers tell no sizes
            infos = pool.map(lambda entry: client.info(root + entry.name), unsized)
            known = {entry.name: _entry(entry.name, info) for entry, info in zip(unsized, infos, strict=True)}
        return sorted((known.get(entry.name, entry) for entry in entries), key=lambda entry: entry.name)

    try:
        return persist(location, find)
    except FileNotFoundError:
        return []


def entry(location: str, options: StorageOptions | None = None, *, deadline: Deadline | None = None) -> Entry:
    """Return the entry of one remote file. Raises ``FileNotFoundError`` where there is none."""

    def info() -> Entry:
        client, path = reader(location, options, retries=deadline is None)
        return _entry(split(location)[1], asked(client, "info", path, deadline))

    return persist(location, info, deadline=deadline)


def _entry(name: str, info: Mapping[str, Any]) -> Entry:
    size = -1 if info.get("size") is None else int(info["size"])
    return Entry(name, size, _stamp_of(info), info.get("type") == "directory")


def exists(location: str, options: StorageOptions | None = None) -> bool:
    """Say whether there is a file or object at a location. Raises `StorageError` where that cannot be found out."""
    if not is_remote(location):
        return Path(location).exists()
    try:
        entry(location, options)
    except FileNotFoundError:
        return False
    return True


def names(location: str, suffix: str, options: StorageOptions | None = None) -> list[str]:
    """Return the sorted names in a folder that end with ``suffix``; empty where there is no such folder."""
    if not is_remote(location):
        folder = Path(location)
        found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    else:

        def listed() -> list[str]:
            client, path = filesystem(location, options)
            folder = f"{path}/" if speaks(client, "http") else path  # else a web server answers by a redirect
            return [entry.rstrip("/").rpartition("/")[2] for entry in client.ls(folder, detail=False)]

        try:
            found = persist(location, listed)
        except FileNotFoundError:
            found = []
    return sorted(name for name in found if name.endswith(suffix))


def glob(location: str, options: StorageOptions | None = None) -> list[str]:
    """Return the sorted URLs that match a URL with ``*`` or ``[...]`` in its path; none where nothing does."""
    fixed = re.split(r"(?<=[^:/])/[^/]*[*\[]", location, maxsplit=1)[0]

    def listed() -> list[str]:
        client, path = filesystem(fixed, options)
        root = path.rstrip("/")
        return [fixed + name[len(root) :] for name in client.glob(root + location[len(fixed) :])]

    try:
        return sorted(persist(location, listed))
    except FileNotFoundError:
        return []


def sizes(location: str, options: StorageOptions | None = None) -> dict[str, int]:
    """Return the size of each file directly in a folder, by name; none where there is no such folder."""
    if not is_remote(location):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(location) as entries:
            return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        return {}

    def listed() -> dict[str, int]:
        client, path = filesystem(location, options)
        client.invalidate_cache()  # what other processes have written since must be in the list
        try:
            entries = client.ls(path, detail=True)
        except FileNotFoundError:
            return {}
        return {entry["name"].rpartition("/")[2]: int(entry["size"]) for entry in entries if entry["type"] == "file"}

    return persist(location, listed)


def remove(location: str, options: StorageOptions | None = None) -> None:
    """Remove a file or object; one that is not there is no error."""
    if not is_remote(location):
        Path(location).unlink(missing_ok=True)
        return

    def delete() -> None:
        client, path = filesystem(location, options)
        client.rm_file(path)

    with contextlib.suppress(FileNotFoundError):
        persist(location, delete)


@contextlib.contextmanager
def upload(location: str, options: StorageOptions | None = None) -> Iterator[IO[bytes]]:
    """Open a temporary file that becomes an object, in one piece, when the block ends; on an error it does not.

    Object stores show an upload only when it is complete. Raises `StorageError` where it cannot be completed.
    """
    # Without a name, so that a process that is killed leaves nothing; back ends that want a path get the system's
    # name of the open file.
    with tempfile.TemporaryFile() as stream:
        try:
            yield stream
            stream.flush()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                where = f"{tempfile.gettempdir()} is full, where it is made before it is uploaded"
                raise StorageError(f"{shown(location)} cannot be written: {where}; set TMPDIR") from error
            raise

        def put() -> None:
            client, path = filesystem(location, options)
            client.put_file(f"/proc/self/fd/{stream.fileno()}", path)

        persist(location, put, "written")


def _stamp_of(info: Mapping[str, Any]) -> str:
    """Return what a store says of a file that tells one content from another; empty where nothing does."""
    return str(next(filter(None, (info.get(key) for key in _STAMPS)), ""))
