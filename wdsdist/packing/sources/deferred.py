"""Sources that must be unpacked or fetched before their samples are known: done when, and only if, it is needed."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

from wdsdist.packing.sources.source import Contents, Source

SUFFIX = "-source"
"""What the names of temporary folders end with; they start with ``.tmp-``."""


def deferred(kind: str, location: str, state: str, scratch: Path | None, make: Callable[[Path], Source]) -> Source:
    """Return a source behind one large temporary file.

    Its fingerprint is known without that file, so a finished destination costs nothing. The file is made when the
    samples are first asked for, in a temporary folder that goes with the source.

    Args:
        kind: of the source.
        location: of the source.
        state: what tells this content of the source from another.
        scratch: where the temporary file may lie.
        make: makes the file in the folder given, and lists it.
    """

    def load(owner: Source) -> Contents:
        folder, remove = temporary_folder(owner, scratch)
        try:
            return make(folder).contents
        except BaseException:
            remove()
            raise

    return Source(kind, location, hashlib.sha256(f"{kind}\0{state}".encode()).hexdigest(), load)


def temporary_folder(owner: object, scratch: Path | None) -> tuple[Path, Callable[[], object]]:
    """Make a folder that goes with its owner, or with the process; return it, and what removes it before that.

    Only a process that is killed leaves it; the next run into the same place removes it.
    """
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".tmp-", suffix=SUFFIX, dir=scratch))
    return folder, weakref.finalize(owner, _remove, folder, os.getpid())


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a child that was forked with the object
        shutil.rmtree(folder, ignore_errors=True)
