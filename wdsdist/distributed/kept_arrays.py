"""Arrays that the processes of a node compute once, and keep for each other while they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from wdsdist._util.host import private_dir
from wdsdist.distributed.kept import kept

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
    return kept(lambda: private_dir() / "arrays", about, compute, load=_load, save=_save, suffix=".npz")


def _load(path: Path) -> Arrays:
    with np.load(path) as arrays:
        return dict(arrays)


def _save(stream: IO[bytes], found: Arrays) -> None:
    np.savez(stream, **cast("dict[str, Any]", found))  # older numpy would save allow_pickle as one more
    _remove_oldest(private_dir() / "arrays")


def _remove_oldest(folder: Path) -> None:
    # The one that is being written has a temporary name that ends like the others.
    for path in sorted(folder.glob("*.npz"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        path.unlink(missing_ok=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
