"""Pack as `wdsdist.pack` does and look on, and read what a source gives and what was packed."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist.packing.members import FilePayload
from wdsdist.packing.options import Options
from wdsdist.packing.run import run
from wdsdist.packing.sources.source import Source
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.progress import ShardsProgress

DataBytes = Callable[[Path], dict[str, bytes]]
"""Reads what a data set consists of: all files but the packer's own notes."""


def files_in(root: Path) -> dict[str, bytes]:
    """Return all files below a folder, by their paths."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def pack_shown(source: Any, dest: Any, *, progress: Callable[[ShardsProgress], object], **options: Any) -> Manifest:
    """Pack a source, and call ``progress`` before the first shard is written and after each."""
    return run(source, dest, Options(**options), progress=progress)


def members(source: Source, indices: Sequence[int] | None = None) -> dict[str, dict[str, bytes]]:
    """Return all members of some samples, by key, after the trip to a worker that packing sends them on."""
    numbers = np.arange(len(source)) if indices is None else np.array(indices, np.int64)
    taken = list(pickle.loads(pickle.dumps(source.take(numbers))))
    found = {key: {extension: _content(payload) for extension, payload in listed} for key, listed in taken}
    assert len(found) == len(numbers)
    assert [len(listed) for _, listed in taken] == list(map(len, found.values()))
    return found


def contents(source: Source) -> dict[str, bytes]:
    """Return all members that a source gives, by their names."""
    return {f"{key}.{extension}": data for key, found in members(source).items() for extension, data in found.items()}


def _content(payload: Any) -> bytes:
    if isinstance(payload, FilePayload):
        data = Path(payload.path).read_bytes()[payload.offset or 0 :]
        assert payload.offset is not None or len(data) == payload.size
        payload = data[: payload.size]
    assert isinstance(payload, bytes), payload
    return payload


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
