"""Arrays that the processes of a node compute once, and keep for each other while they run."""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import filelock
import numpy as np
import numpy.typing as npt

from wdsdist._util.files import atomic_write
from wdsdist._util.host import private_dir
from wdsdist.errors import DestinationError

Arrays = dict[str, npt.NDArray[Any]]

_KEPT = 16
"""Results that are kept on a node; what is needed again is computed again."""


def kept_arrays(about: str, compute: Callable[[], Arrays]) -> Arrays:
    """Return arrays that another process of this node has computed, or compute them while the others wait.

    Where nothing can be kept in the temporary directory, each process computes for itself.

    Args:
        about: everything that the arrays depend on.
        compute: computes them.
    """
    name = hashlib.sha256(about.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    try:
        folder = private_dir() / "arrays"
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.npz"
        locked = filelock.FileLock(path.with_suffix(".lock")).acquire()
    except (OSError, DestinationError):  # they cannot be kept
        return compute()
    with locked:
        with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile), np.load(path) as arrays:
            return dict(arrays)
        found = compute()
        with contextlib.suppress(OSError):
            with atomic_write(path) as stream:
                np.savez(stream, **cast("dict[str, Any]", found))  # older numpy would save allow_pickle as one more
            _remove_oldest(folder)
        return found


def _remove_oldest(folder: Path) -> None:
    for path in sorted(folder.glob("*.npz"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        path.unlink(missing_ok=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
