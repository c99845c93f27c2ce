"""Arrays that one process of a node computes, and keeps in files for the others."""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from wdsdist._util.files import atomic_write
from wdsdist._util.host import private_dir, private_under
from wdsdist._util.lock import locked

Arrays = dict[str, npt.NDArray[Any]]

_MOST = 64
"""Results that a node keeps, the latest ones; older ones are computed again when needed."""


def kept_arrays(about: str, compute: Callable[[], Arrays]) -> Arrays:
    """Return arrays that another process of this node has computed, or compute them while the others wait.

    They lie in the private directory of the node. If nothing can be kept there, each process computes for itself.

    Args:
        about: everything that the arrays depend on.
        compute: computes them.
    """
    name = hashlib.sha256(about.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    with contextlib.ExitStack() as stack:
        try:
            path = private_under(private_dir(), "arrays") / f"{name}.npz"
            stack.enter_context(locked(path.with_suffix(".lock")))
        except OSError:
            return compute()
        with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile), np.load(path) as arrays:
            return dict(arrays)
        computed = compute()
        with contextlib.suppress(OSError):
            with atomic_write(path) as stream:
                np.savez(stream, **cast("dict[str, Any]", computed))
            for old in sorted(path.parent.glob("*.npz"), key=lambda path: path.stat().st_mtime)[:-_MOST]:
                old.unlink(missing_ok=True)
                old.with_suffix(".lock").unlink(missing_ok=True)
        return computed
