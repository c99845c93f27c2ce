"""Sources that must be unpacked or fetched before their samples are known: done when, and only if, it is needed."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wdsdist._util.array_types import Int64s
from wdsdist.packing.sources.source import Blocks, LeftOut, Samples, Source, blocks_of

SUFFIX = "-source"
"""What the names of temporary folders end with; they start with ``.tmp-``."""


@dataclass(frozen=True, eq=False)
class DeferredSource:
    """A source behind one large temporary file.

    Its fingerprint is known without that file, so a finished destination costs nothing. The file is made when the
    samples are first asked for, in a folder of its own that goes with this object, or with the process. Only a
    process that is killed leaves it, for the next run to remove.
    """

    kind: str
    location: str
    state: str
    """What tells this content of the source from another."""
    scratch: Path | None
    """Where the temporary file may lie."""
    make: Callable[[Path], Source]
    """Makes the file in the folder given, and lists it."""

    @functools.cached_property
    def made(self) -> Source:
        """The source itself."""
        folder, remove = temporary_folder(self, self.scratch)
        try:
            return self.make(folder)
        except BaseException:
            remove()
            raise

    @property
    def has_exact_sizes(self) -> bool:
        return self.made.has_exact_sizes

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        return self.made.left_out

    @property
    def blocks(self) -> Blocks | None:
        return blocks_of(self.made)

    def __len__(self) -> int:
        return len(self.made)

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.kind}\0{self.state}".encode()).hexdigest()

    def extra(self) -> dict[str, Any]:
        return self.made.extra()

    def stored_sizes(self) -> Int64s:
        return self.made.stored_sizes()

    def take(self, indices: Int64s) -> Samples:
        return self.made.take(indices)


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
