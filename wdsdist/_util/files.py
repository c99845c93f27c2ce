"""Local files: SHA-256 digests, atomic writes, locks, and whether a path lies in a folder."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import logging
import mmap
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from wdsdist.errors import DestinationError, NotFoundError, StorageError, WdsdistError

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP)
"""Error numbers of mounts without ``flock``, as Lustre and FUSE may be."""

_log = logging.getLogger("wdsdist")


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a local file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_readable(path: Path) -> None:
    """Raise ``OSError`` for a pipe, a socket or a device: opening one could block without end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a folder is an error of its own
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))


def mapped(path: Path) -> memoryview:
    """Return the content of a local file, mapped for reading until nothing refers to it.

    Raises ``OSError``, also for a pipe or a device.
    """
    check_readable(path)
    with path.open("rb") as stream:
        try:
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:  # an empty file cannot be mapped
            return memoryview(b"")


def open_files_remedy(error: OSError, other: str = "take smaller batches, which need fewer shards at once") -> str:
    """Return the remedy for "too many open files" (EMFILE, ``ulimit -n``); empty for any other error."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return ""
    return f": raise the limit, as with `ulimit -n 65536` before the program starts, or {other}"


@contextlib.contextmanager
def reading(what: object, verb: str = "read") -> Iterator[None]:
    """Turn an ``OSError`` in the block into `NotFoundError` or `StorageError`, which name what cannot be read."""
    try:
        yield
    except WdsdistError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"{what} does not exist") from error
    except OSError as error:
        raise StorageError(f"{what} cannot be {verb}: {error.strerror or error}{open_files_remedy(error)}") from error


@contextlib.contextmanager
def writing(what: object, remedy: str = "") -> Iterator[None]:
    """Turn an ``OSError`` in the block into `DestinationError`, which names what cannot be written, and the remedy."""
    try:
        yield
    except WdsdistError:
        raise
    except OSError as error:
        raise DestinationError(f"{what} cannot be written: {error.strerror or error}{remedy}") from error


TEMPORARY = ".tmp-{}-"
"""What names of temporary files begin with: 16 hexadecimal digits come between the dashes, and the final name last."""
ANY_TEMPORARY = TEMPORARY.format("[0-9a-f]" * 16) + "*"
"""The pattern of these names."""
_LEFT_AFTER = 24 * 3600
"""Seconds after which a temporary file counts as left by a process that was killed."""


@contextlib.contextmanager
def atomic_write(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Write a file atomically: it appears under its name only when it is complete and on disk.

    An error leaves nothing behind. A process that is killed leaves ``.tmp-...-<name>`` in the same folder, which must
    exist; a later write there removes it after a day. ``mode`` is the permissions, less the umask.
    """
    _remove_left(path.parent)
    temporary = path.with_name(TEMPORARY.format(secrets.token_hex(8)) + path.name)
    # The system takes the umask off the mode of a new file: to ask for the umask needs /proc, or changes it.
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@functools.cache  # once for each folder: there may be many files
def _remove_left(folder: Path) -> None:
    """Remove the temporary files in a folder that are older than a day."""
    for path in folder.glob(ANY_TEMPORARY):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > _LEFT_AFTER:
                path.unlink()


@contextlib.contextmanager
def locked(
    path: Path,
    *,
    on_wait: Callable[[], object] = lambda: None,
    timeout: float | None = None,
    poll_seconds: float = 0.05,
    optional: bool = False,
) -> Iterator[None]:
    """Hold the lock of a file. The system frees it when this process ends, however it ends.

    Args:
        path: the file, which stays when the lock is free.
        on_wait: called if another process holds the lock, before this one waits for it.
        timeout: longest wait in seconds; ``None`` for no limit.
        poll_seconds: pause between two attempts.
        optional: on a file system without locks, log a warning and hold nothing.

    Raises ``TimeoutError`` after the longest wait, and any other ``OSError`` if the file cannot be locked.
    """
    from filelock import FileLock, Timeout  # not at the top: reading takes no lock

    # A file in place of a lock would outlive a process that is killed, and the others would wait without end.
    lock = FileLock(path, fallback_to_soft=False)
    try:
        try:
            lock.acquire(0)
        except Timeout:
            on_wait()
            lock.acquire(-1 if timeout is None else timeout, poll_seconds)
    except OSError as error:
        if not optional or error.errno not in _NO_LOCKS:
            raise
        _log.warning("%s is on a file system without locks (flock): let one process at a time write there", path.parent)
    try:
        yield
    finally:
        lock.release()


def lies_in(path: Path, folder: Path) -> bool:
    """Return whether a file written to a path lies in a folder or below it once symbolic links are resolved.

    The path's last component is not resolved: a write replaces a link there.
    """
    parent, root = (Path(os.path.realpath(each)) for each in (path.parent, folder))
    return parent.is_relative_to(root)
