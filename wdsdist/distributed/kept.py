"""Results that the processes of a node compute once, and keep in files for each other: numbers and arrays."""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import filelock
import numpy as np
import numpy.typing as npt

from wdsdist._util.files import atomic_write
from wdsdist._util.host import make_dirs, private_dir, user_cache_dir
from wdsdist.errors import ArgumentError

T = TypeVar("T")

Arrays = dict[str, npt.NDArray[Any]]

_KEPT_COUNTS, _KEPT_ARRAYS = 4096, 16
"""Results that are kept on a node, the latest ones; what is needed again is computed again."""


def kept_count(about: str, count: Callable[[], int]) -> int:
    """Return a number from the user's cache folder, or compute it in one process while others of this node wait.

    Args:
        about: everything that the number depends on.
        count: computes it.
    """
    return _kept(
        lambda: user_cache_dir() / "counts",
        about,
        count,
        load=lambda path: int(path.read_text()),
        save=lambda stream, found: stream.write(str(found).encode()),
        suffix=".count",
        most=_KEPT_COUNTS,
    )


def kept_arrays(about: str, compute: Callable[[], Arrays]) -> Arrays:
    """Return arrays that another process of this node has computed, or compute them while the others wait.

    They lie in the temporary directory. Where nothing can be kept there, each process computes for itself.

    Args:
        about: everything that the arrays depend on.
        compute: computes them.
    """
    return _kept(
        lambda: private_dir() / "arrays", about, compute,
        suffix=".npz", most=_KEPT_ARRAYS, load=_load_arrays,
        save=lambda stream, found: np.savez(stream, **cast("dict[str, Any]", found)),  # older numpy saves allow_pickle
    )  # fmt: skip


def _load_arrays(path: Path) -> Arrays:
    with np.load(path) as arrays:
        return dict(arrays)


def _kept(
    folder: Callable[[], Path],
    about: str,
    compute: Callable[[], T],
    *,
    load: Callable[[Path], T],
    save: Callable[[IO[bytes], T], object],
    suffix: str,
    most: int,
) -> T:
    """Return a result from its file in a folder; compute it where there is none, or where none can be kept.

    The folder keeps the ``most`` latest files.
    """
    name = hashlib.sha256(about.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    try:
        path = folder() / f"{name}{suffix}"
        make_dirs(path.parent)
        # Without flock, filelock would fall back to a file that outlives a killed process: others would wait for ever.
        locked = filelock.FileLock(path.with_suffix(".lock"), fallback_to_soft=False).acquire()
    except (OSError, NotImplementedError, ArgumentError):  # it cannot be kept, as of a user without a home
        return compute()
    with locked:
        with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile):
            return load(path)
        found = compute()
        with contextlib.suppress(OSError):
            with atomic_write(path) as stream:
                save(stream, found)
            results = [one for one in path.parent.iterdir() if one.suffix != ".lock"]  # also those of older versions
            for old in sorted(results, key=lambda path: path.stat().st_mtime)[:-most]:
                old.unlink(missing_ok=True)
                old.with_suffix(".lock").unlink(missing_ok=True)
        return found
