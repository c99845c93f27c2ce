"""A result that the processes of a node compute once, and keep in a file for each other."""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

import filelock

from wdsdist._util.files import atomic_write
from wdsdist.errors import DestinationError

T = TypeVar("T")


def kept(
    folder: Callable[[], Path],
    about: str,
    compute: Callable[[], T],
    *,
    load: Callable[[Path], T],
    save: Callable[[IO[bytes], T], object],
    suffix: str = "",
) -> T:
    """Return a result that another process has computed, or compute it while the other processes of this node wait.

    Where nothing can be kept in the folder, each process computes for itself.

    Args:
        folder: returns the folder of the file.
        about: everything that the result depends on.
        compute: computes it.
        load: reads a result from its file.
        save: writes one to an open file.
        suffix: of the file.
    """
    name = hashlib.sha256(about.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    try:
        path = folder() / f"{name}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        locked = filelock.FileLock(path.with_suffix(".lock")).acquire()
    except (OSError, DestinationError):  # it cannot be kept
        return compute()
    with locked:
        with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile):
            return load(path)
        found = compute()
        with contextlib.suppress(OSError), atomic_write(path) as stream:
            save(stream, found)
        return found
