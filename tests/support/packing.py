"""Pack as `wdsdist.pack` does and look on, and read what was packed."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wdsdist.packing.options import Options
from wdsdist.packing.parallel import PackProgress
from wdsdist.packing.run import run
from wdsdist.shards.manifest import Manifest


def pack_shown(source: Any, dest: Any, *, progress: Callable[[PackProgress], object], **options: Any) -> Manifest:
    """Pack a source, and call ``progress`` before the first shard is written and after each."""
    return run(source, dest, Options(**options), progress=progress)


def packed_members(folder: Path) -> dict[str, bytes]:
    """Return all members of the shards in a folder, as Python's tarfile reads them; no name is there twice."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            for entry in tar:
                assert entry.name not in found
                assert (entry.mtime, entry.uid, entry.gid, entry.uname) == (0, 0, 0, "")
                found[entry.name] = tar.extractfile(entry).read()  # type: ignore[union-attr]
    return found
