"""Stores: what reads, lists, writes and deletes files and objects, and the verbs for the small ones.

A *location* is a local path or a URL. `connect` returns the store of a location: `LocalStore`, `HttpStore` for web
servers and S3, or `FsspecStore` for every other scheme. A request to a store is made once; `storage.engine` runs it in
a thread, with retries under one deadline.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import math
import os
import shutil
import stat as stat_bits
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

from wdsdist._util.files import atomic_write, check_readable, reading
from wdsdist.errors import IndexFormatError, NotFoundError, StorageError
from wdsdist.storage.urls import StorageOptions, is_read_only, is_remote, local_path, scheme, shown

if TYPE_CHECKING:
    from wdsdist.storage.waiting import Deadline

T = TypeVar("T")
_PIECE = 1 << 20
_SAME = 3
"""Times that the same wrong bytes come from a store before they are what it holds."""
Sink = Callable[[int, memoryview], None]
"""Takes the bytes of an object at an offset; the memory is valid during the call only.

It raises to end the request; a store may ask for that by no bytes.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or object, as its store describes it."""

    name: str
    """Its path below the listed folder."""
    size: int
    """Bytes; -1 if the store does not say."""
    stamp: str
    """A value that another content would not have, such as an ETag, a digest or a time; empty if unknown."""
    is_folder: bool = False


class Store(Protocol):
    """One store. Each method makes one attempt, and raises whatever the back end raises.

    Over HTTP, a store is only read: it has `read` and `stat` alone.
    """

    def read(self, path: str, start: int, stop: int | None, sink: Sink, *, size: int | None, timeout: float) -> None:
        """Give the bytes from ``start`` up to ``stop``, or to the end, to ``sink``.

        Args:
            path: of the object.
            start: the first byte.
            stop: behind the last byte; ``None`` for the end.
            sink: takes the bytes as they arrive, one after another.
            size: of the object, if it is known: another one is a `Failure`.
            timeout: seconds without a byte that end the attempt.
        """

    def stat(self, path: str, *, timeout: float) -> Entry:
        """Return what the store says of an object."""

    def list(self, path: str, *, recursive: bool, timeout: float) -> builtins.list[Entry]:
        """Return what a folder holds, or all files below it; nothing if there is no such folder."""

    def put(self, path: str, content: IO[bytes], *, timeout: float) -> None:
        """Write an object, whole or not at all."""

    def delete(self, path: str, *, timeout: float) -> None:
        """Delete an object; one that is not there is no error."""


connecting = threading.RLock()
"""Held while a thread makes a client, which takes locks of other libraries: no child is forked then, or it would
wait for these locks without end."""
os.register_at_fork(before=connecting.acquire, after_in_parent=connecting.release, after_in_child=connecting.release)


def connect(location: str, options: StorageOptions | None, verb: str = "read") -> tuple[Any, str]:
    """Return the `Store` that can read or write a location, as ``verb`` says, and the path within it.

    Raises `StorageError` for the web, which is read only.
    """
    if not is_remote(location):
        return LocalStore(), str(local_path(location))
    if is_read_only(location) and verb != "read":
        raise StorageError(f"{shown(location)} is on the web, which is read only and lists no folders")
    with connecting:
        if is_read_only(location):
            from wdsdist.storage.http import http_store

            return http_store(location, options), location
        if scheme(location) in ("s3", "s3a") and verb == "read":
            from wdsdist.storage.s3 import s3_store

            if (store := s3_store(location, options)) is not None:
                return store, location
        from wdsdist.storage.fsspec_store import fsspec_store

        return fsspec_store(location, options)


def call(
    location: str, options: StorageOptions | None, action: Callable[[Store, str, float], T], verb: str = "read",
    deadline: Deadline | None = None,
) -> T:  # fmt: skip
    """Run an action on a store in a thread of this process, with retries, and wait; one on a local file at once.

    The action takes the store, the path there, and the seconds to wait for an answer.
    """

    def attempt(timeout: float) -> T:
        return action(*connect(location, options, verb), timeout)

    if is_remote(location):
        from wdsdist.storage.engine import Download
        from wdsdist.storage.waiting import policy

        results: builtins.list[T] = []
        tasks = [lambda _received, _sink, timeout: results.append(attempt(timeout))]
        Download(location, tasks, lambda *_: None, deadline, policy.patience, verb=verb).result()
        return results[0]
    with reading(location, verb):
        return attempt(math.inf)


def read(
    location: str, options: StorageOptions | None = None, *, start: int = 0, stop: int | None = None,
    deadline: Deadline | None = None,
) -> bytes:  # fmt: skip
    """Return what a location holds, or the bytes from ``start`` up to ``stop``.

    Raises `NotFoundError` if there is nothing, `StorageError` if it cannot be read or ends before ``stop``.
    """
    return read_until(location, lambda content, _: content, options, start=start, stop=stop, deadline=deadline)


def read_until(
    location: str, parse: Callable[[bytes, bool], T], options: StorageOptions | None = None, *, start: int = 0,
    stop: int | None = None, deadline: Deadline | None = None,
) -> T:  # fmt: skip
    """Read a location until ``parse`` accepts its content; return the value of ``parse``.

    A store may give a wrong answer, such as a login page: it is asked again while ``parse`` raises `IndexFormatError`.
    The same bytes three times are what the store holds: ``parse`` gets true with them, and its refusal is final.
    Raises what `read` raises.
    """
    answers: Counter[int] = Counter()

    def attempt(store: Store, path: str, timeout: float) -> T:
        pieces: builtins.list[bytes] = []
        store.read(path, start, stop, lambda _, piece: pieces.append(bytes(piece)), size=None, timeout=timeout)
        content = b"".join(pieces)
        answers[hash(content)] += 1
        is_final = answers[hash(content)] == _SAME or not is_remote(location)
        try:
            return parse(content, is_final)
        except IndexFormatError as error:
            if is_final:
                if deadline is None or not is_remote(location):
                    raise
                raise IndexFormatError(f"{error} {deadline.spent(answers.total())}") from None
            from wdsdist.storage.failures import Failure

            raise Failure("broken", str(error)) from None

    try:
        return call(location, options, attempt, deadline=deadline)
    except StorageError as error:
        if error.kind != "broken" or not answers:
            raise
        refusal = IndexFormatError(str(error))
    raise refusal  # outside the handler, so that it refers to nothing that holds a URL


def stat(location: str, options: StorageOptions | None = None, *, deadline: Deadline | None = None) -> Entry:
    """Return what a store says of one file or object. Raises `NotFoundError` if it does not exist."""
    return call(location, options, lambda store, path, timeout: store.stat(path, timeout=timeout), deadline=deadline)


def list(  # noqa: A001 - the verb of every store
    location: str, options: StorageOptions | None = None, *, recursive: bool = False
) -> builtins.list[Entry]:
    """Return the entries of a folder, or all files below it, sorted by name; nothing if there is no such folder.

    Raises `StorageError` for the web, which lists nothing.
    """

    def attempt(store: Store, path: str, timeout: float) -> builtins.list[Entry]:
        return sorted(store.list(path, recursive=recursive, timeout=timeout), key=lambda entry: entry.name)

    return call(location, options, attempt, "listed")


def put(location: str, content: bytes, options: StorageOptions | None = None) -> None:
    """Write an object, whole or not at all. Raises `StorageError` if it cannot be written."""
    with upload(location, options) as stream:
        stream.write(content)


@contextlib.contextmanager
def upload(location: str, options: StorageOptions | None = None) -> Iterator[IO[bytes]]:
    """Open a temporary file that becomes an object, in one piece, when the block ends; on an error it does not.

    Object stores show an upload only when it is complete. Raises `StorageError` if it cannot be completed.
    """
    # Without a name, so that a process that is killed leaves nothing.
    with tempfile.TemporaryFile() as stream:
        try:
            yield stream
            stream.flush()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                problem = f"{tempfile.gettempdir()} is full, in which it is made before it is uploaded"
                raise StorageError(f"{shown(location)} cannot be written: {problem}; set TMPDIR") from error
            raise

        def attempt(store: Store, path: str, timeout: float) -> None:
            stream.seek(0)
            store.put(path, stream, timeout=timeout)

        call(location, options, attempt, "written")


def delete(location: str, options: StorageOptions | None = None) -> None:
    """Delete a file or object; one that is not there is no error."""
    with contextlib.suppress(NotFoundError):
        call(location, options, lambda store, path, timeout: store.delete(path, timeout=timeout), "deleted")


class LocalStore:
    """Store of local files, and of mounted file systems."""

    def read(self, path: str, start: int, stop: int | None, sink: Sink, *, size: int | None, timeout: float) -> None:
        """Give the bytes of a range to ``sink``, as `Store.read` says."""
        check_readable(Path(path))
        with Path(path).open("rb") as stream:
            actual = os.fstat(stream.fileno()).st_size
            end = actual if stop is None else stop
            stream.seek(start)
            content = stream.read(max(0, min(end, actual) - start))
        if size not in (None, actual) or len(content) < end - start:
            problem = f"{actual:,} bytes where there should be {end if size is None else size:,}"
            raise StorageError(f"{path} cannot be read: {problem}", kind="length")
        sink(start, memoryview(content))

    def stat(self, path: str, *, timeout: float) -> Entry:
        """Return the size and the time of a file."""
        return _local_entry(Path(path).name, Path(path).stat())

    def list(self, path: str, *, recursive: bool, timeout: float) -> builtins.list[Entry]:
        """Return what a folder holds, or all files below it."""
        root = Path(path)
        entries = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for each in root.rglob("*") if recursive else root.iterdir():
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    if not (recursive and each.is_dir()):
                        entries.append(_local_entry(str(each.relative_to(root)), each.stat()))
        return entries

    def put(self, path: str, content: IO[bytes], *, timeout: float) -> None:
        """Write a file, whole or not at all."""
        with atomic_write(Path(path)) as stream:
            shutil.copyfileobj(content, stream, _PIECE)

    def delete(self, path: str, *, timeout: float) -> None:
        """Delete a file."""
        Path(path).unlink(missing_ok=True)


def _local_entry(name: str, status: os.stat_result) -> Entry:
    stamp = f"{status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
    return Entry(name, status.st_size, stamp, stat_bits.S_ISDIR(status.st_mode))
