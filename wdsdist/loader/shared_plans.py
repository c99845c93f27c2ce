"""Blocks of planned batches that one process of a node plans, and the others read."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import filelock
import numpy as np

from wdsdist._util.files import atomic_write
from wdsdist._util.host import private_dir
from wdsdist.errors import DestinationError
from wdsdist.sampling.planned_epoch import NodeBatches

_KEPT = 16
"""Blocks that are kept on a node, of some megabytes each; what is needed again is planned again."""


def shared_plan(about: str, number: int, ranks: range, plan: Callable[[], NodeBatches]) -> NodeBatches:
    """Return a block that another process of this node has planned, or plan it while the others wait for it.

    Where nothing can be kept in the temporary directory, each process plans for itself.

    Args:
        about: everything that the plan depends on, but for the next two.
        number: of the block.
        ranks: of this node.
        plan: plans the block.
    """
    name = hashlib.sha256(f"{about} {number} {ranks}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    try:
        folder = private_dir() / "plans"
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.npz"
        with filelock.FileLock(path.with_suffix(".lock")):
            try:
                with np.load(path) as columns:
                    return NodeBatches(**columns)
            except (FileNotFoundError, ValueError, TypeError, zipfile.BadZipFile):
                found = plan()
            with atomic_write(path) as stream:
                np.savez(stream, **found._asdict())
            _remove_oldest(folder)
            return found
    except (OSError, DestinationError):  # it cannot be kept
        return plan()


def _remove_oldest(folder: Path) -> None:
    for path in sorted(folder.glob("*.npz"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        path.unlink(missing_ok=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
