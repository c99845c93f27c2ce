"""Local files: SHA-256 digests, atomic writes, and whether a path lies in a folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a local file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def mapped(path: Path) -> memoryview:
    """Return the content of a local file, mapped for reading until nothing refers to it."""
    with path.open("rb") as stream:
        try:
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:  # an empty file cannot be mapped
            return memoryview(b"")


def open_files_remedy(error: OSError) -> str:
    """Return the remedy for "too many open files" (EMFILE, ``ulimit -n``); empty for any other error.

    >>> open_files_remedy(FileNotFoundError())
    ''
    """
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return ""
    return (
        ": raise the limit, as by `ulimit -n 65536` before the program starts, or take smaller batches, which need "
        "fewer shards at once"
    )


TEMPORARY = ".tmp-"
"""What the names of files begin with that are not whole yet; they end in ``-`` and the name that is to come."""


@contextlib.contextmanager
def atomic_write(path: Path, mode: int = 0o666, *, prefix: str = TEMPORARY) -> Iterator[IO[bytes]]:
    """Write a file atomically: it appears under its name only when it is complete and on disk.

    On an error nothing is left behind; a process that is killed leaves ``<prefix>...-<name>`` in the same folder.

    Args:
        path: of the file, whose folder must exist.
        mode: its permissions, less the umask.
        prefix: of the temporary file's name, by which whoever owns the folder can find what was left.
    """
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=f"-{path.name}", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(mode & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def lies_in(path: Path, folder: Path) -> bool:
    """Return whether a file written to a path lies in a folder or below it once symbolic links are resolved.

    The path's last component is not resolved: a write replaces a link there.
    """
    parent, root = (Path(os.path.realpath(one)) for one in (path.parent, folder))
    return parent.is_relative_to(root)


def _umask() -> int:
    # os.umask tells it only by changing it, for all threads of the process.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("\nUmask:")[2].split(maxsplit=1)[0], 8)
