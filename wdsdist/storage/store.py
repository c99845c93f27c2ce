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
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol, TypeVar

from wdsdist._util.files import read_file
from wdsdist.errors import NotFoundError, StorageError, WdsdistError
from wdsdist.storage.options import StorageOptions
from wdsdist.storage.urls import is_read_only, is_remote, local_path, scheme, shown

if TYPE_CHECKING:
    from wdsdist.storage.policy import Deadline

T = TypeVar("T")
Sink = Callable[[int, memoryview], None]
"""Takes the bytes of an object at an offset; the memory is valid during the call only."""
Opened = Callable[[Callable[[], None]], None]
"""Takes a function that ends the running request from another thread."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or object, as its store describes it."""

    name: str
    """Its path below the listed folder."""
    size: int
    """Bytes; -1 if the store does not say."""
    stamp: str
    """A value that another content would not have, such as an ETag, a digest or a time; empty if there is none."""
    is_folder: bool = False


class Store(Protocol):
    """One store that is read. Each method makes one attempt, and raises whatever the back end raises."""

    def read(
        self, path: str, start: int, stop: int | None, sink: Sink, *, size: int | None, timeout: float, opened: Opened
    ) -> Entry:
        """Give the bytes from ``start`` up to ``stop``, or to the end, to ``sink``; return what is known of the object.

        Args:
            path: of the object.
            start: the first byte.
            stop: behind the last byte; ``None`` for the end.
            sink: takes the bytes as they arrive.
            size: of the object, if it is known: another one is a `Failure`.
            timeout: seconds without a byte that end the attempt.
            opened: called when bytes begin to come, with a function that ends the attempt.
        """

    def stat(self, path: str, *, timeout: float) -> Entry:
        """Return what the store says of an object."""


class WritableStore(Store, Protocol):
    """One store that is read, listed and written."""

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


def connect(location: str, options: StorageOptions | None) -> tuple[Store, str]:
    """Return the store that a location is read from, and the path of the location there."""
    with connecting:
        if is_read_only(location):
            from wdsdist.storage.http import http_store

            return http_store(location, options), location
        if scheme(location) in ("s3", "s3a"):
            from wdsdist.storage.s3 import s3_store

            if (store := s3_store(location, options)) is not None:
                return store, location
        return connect_writable(location, options)


def connect_writable(location: str, options: StorageOptions | None) -> tuple[WritableStore, str]:
    """Return the store that a location is listed and written in, and the path of the location there.

    Raises `StorageError` for the web, which is read only.
    """
    if is_read_only(location):
        raise StorageError(f"{shown(location)} is on the web, which is read only and lists no folders")
    if not is_remote(location):
        from wdsdist.storage.local import LocalStore

        return LocalStore(), str(local_path(location))
    with connecting:
        from wdsdist.storage.fsspec_store import fsspec_store

        return fsspec_store(location, options)


def call(location: str, action: Callable[[float], T], verb: str = "read", deadline: Deadline | None = None) -> T:
    """Run a request in a thread of this process, with retries, and wait for it; one to a local file at once."""
    if not is_remote(location):
        try:
            return action(math.inf)
        except WdsdistError:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"{location} does not exist") from error
        except OSError as error:
            raise StorageError(f"{location} cannot be {verb}: {error.strerror or error}") from error
    from wdsdist.storage.engine import run

    return run(location, action, verb, deadline)


def read(
    location: str, options: StorageOptions | None = None, *, start: int = 0, stop: int | None = None,
    deadline: Deadline | None = None,
) -> bytes:  # fmt: skip
    """Return what a location holds, or the bytes from ``start`` up to ``stop``.

    Raises `NotFoundError` if there is nothing, `StorageError` if it cannot be read or ends before ``stop``.
    """
    if not is_remote(location) and stop is None:
        return call(location, lambda _: read_file(local_path(location))[start:])
    return read_until(location, lambda content, _: content, options, start=start, stop=stop, deadline=deadline)


def read_until(
    location: str, accept: Callable[[bytes, str], T], options: StorageOptions | None = None, *, start: int = 0,
    stop: int | None = None, deadline: Deadline | None = None,
) -> T:  # fmt: skip
    """Return what a function makes of the content of a location and its stamp, and read again until it accepts them.

    ``accept`` raises a `Failure` of the kind ``"broken"`` for wrong content. Raises what `read` raises.
    """

    def attempt(timeout: float) -> T:
        store, path = connect(location, options)
        pieces: builtins.list[bytes] = []
        entry = store.read(
            path, start, stop, lambda _, piece: pieces.append(bytes(piece)), size=None, timeout=timeout,
            opened=lambda _: None,
        )  # fmt: skip
        return accept(b"".join(pieces), entry.stamp)

    return call(location, attempt, deadline=deadline)


def stat(location: str, options: StorageOptions | None = None, *, deadline: Deadline | None = None) -> Entry:
    """Return what a store says of one file or object. Raises `NotFoundError` if it does not exist."""

    def attempt(timeout: float) -> Entry:
        store, path = connect(location, options)
        return store.stat(path, timeout=timeout)

    return call(location, attempt, deadline=deadline)


def list(  # noqa: A001 - the verb of every store
    location: str, options: StorageOptions | None = None, *, recursive: bool = False
) -> builtins.list[Entry]:
    """Return the entries of a folder, or all files below it, sorted by name; nothing if there is no such folder.

    Raises `StorageError` for the web, which lists nothing.
    """

    def attempt(timeout: float) -> builtins.list[Entry]:
        store, path = connect_writable(location, options)
        return sorted(store.list(path, recursive=recursive, timeout=timeout), key=lambda entry: entry.name)

    return call(location, attempt, "listed")


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
                where = f"{tempfile.gettempdir()} is full, where it is made before it is uploaded"
                raise StorageError(f"{shown(location)} cannot be written: {where}; set TMPDIR") from error
            raise

        def attempt(timeout: float) -> None:
            store, path = connect_writable(location, options)
            stream.seek(0)
            store.put(path, stream, timeout=timeout)

        call(location, attempt, "written")


def delete(location: str, options: StorageOptions | None = None) -> None:
    """Delete a file or object; one that is not there is no error."""

    def attempt(timeout: float) -> None:
        store, path = connect_writable(location, options)
        with contextlib.suppress(FileNotFoundError):
            store.delete(path, timeout=timeout)

    with contextlib.suppress(NotFoundError):
        call(location, attempt, "deleted")
