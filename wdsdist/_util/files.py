"""Local files: SHA-256 digests, atomic writes, and whether a path lies in a folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import mmap
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from wdsdist._util.host import boot


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a local file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_readable(path: Path) -> None:
    """Raise ``OSError`` for a pipe, a socket or a device: to open one of a data set could block without end.

    What is looked at may be another file than what is opened then, but who replaces it there can put any data there.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # to open a folder is an error of its own
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))


def read_file(path: Path) -> bytes:
    """Return the content of a local file. Raises ``OSError``, also for a pipe or a device."""
    check_readable(path)
    return path.read_bytes()


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
    """Return the remedy for "too many open files" (EMFILE, ``ulimit -n``); empty for any other error.

    >>> open_files_remedy(FileNotFoundError())
    ''
    """
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return ""
    return f": raise the limit, as by `ulimit -n 65536` before the program starts, or {other}"


TEMPORARY = ".tmp-"
"""What the names of files begin with that are not whole yet; they end in ``-`` and the name that is to come."""


@contextlib.contextmanager
def atomic_write(path: Path, mode: int = 0o666, *, prefix: str = TEMPORARY) -> Iterator[IO[bytes]]:
    """Write a file atomically: it appears under its name only when it is complete and on disk.

    On an error nothing is left behind. A process that is killed leaves ``<prefix>...-<name>`` in the same folder, which
    the next process of this machine that writes there removes.

    Args:
        path: of the file, whose folder must exist.
        mode: its permissions, less the umask.
        prefix: of the temporary file's name, by which whoever owns the folder can find what was left.
    """
    if prefix == TEMPORARY:
        _remove_left(path.parent)
    temporary, handle = _locked(path, prefix, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            temporary.replace(path)  # while it is locked: once it is not, it would pass for one that was left
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _locked(path: Path, prefix: str, mode: int) -> tuple[Path, int]:
    """Make a temporary file beside a path, and lock it, so that it does not pass for one that was left."""
    while True:
        temporary = path.with_name(f"{prefix}{_here(path.parent)}{secrets.token_hex(4)}-{path.name}")
        # The system takes the umask off the mode of what it makes: to ask for the umask needs /proc, or changes it.
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process takes it for one that was left
            is_kept = False
        except OSError:  # a file system without locks, where nothing is removed
            is_kept = True
        else:
            is_kept = temporary.exists()
        if is_kept:
            return temporary, handle
        os.close(handle)


@functools.cache  # once is enough, as there may be many files
def _remove_left(folder: Path) -> None:
    """Remove the temporary files in a folder of processes of this machine that were killed: their locks are free."""
    for path in folder.glob(f"{TEMPORARY}{_here(folder)}*") if boot() else ():
        with contextlib.suppress(OSError):
            # NFS locks only what may be written.
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def _here(folder: Path) -> str:
    """Name the running system and the mount of a folder: two mounts of one store, as of FUSE, share no locks."""
    return f"{boot()[:8]}_{folder.stat().st_dev:x}_"


def lies_in(path: Path, folder: Path) -> bool:
    """Return whether a file written to a path lies in a folder or below it once symbolic links are resolved.

    The path's last component is not resolved: a write replaces a link there.
    """
    parent, root = (Path(os.path.realpath(one)) for one in (path.parent, folder))
    return parent.is_relative_to(root)
