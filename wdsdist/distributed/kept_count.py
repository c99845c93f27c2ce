"""A number that the processes of a node compute once, and keep for later runs."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable

import filelock

from wdsdist._util.files import atomic_write
from wdsdist._util.host import user_cache_dir


def kept_count(about: str, count: Callable[[], int]) -> int:
    """Return a number from the user's cache folder, or compute it in one process while others of this node wait.

    Args:
        about: everything that the number depends on.
        count: computes it.
    """
    path = user_cache_dir() / "counts" / hashlib.sha256(about.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        locked = filelock.FileLock(path.with_suffix(".lock")).acquire()
    except OSError:  # it cannot be kept
        return count()
    with locked:
        with contextlib.suppress(OSError, ValueError):
            return int(path.read_text())
        found = count()
        with contextlib.suppress(OSError), atomic_write(path) as stream:
            stream.write(str(found).encode())
        return found
