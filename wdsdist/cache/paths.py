"""The names in a cache folder: pure, nothing is opened.

Of each shard there may be four files, ``<root>/<24 hex digits of its store's folder>/<name><suffix>``: the copy, its
index, its stamp (what was verified, or how much room is reserved), and the part that is being fetched.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from wdsdist import storage
from wdsdist.shards.index import beside
from wdsdist.shards.manifest import Manifest

LOCK = ".lock"
READERS = "readers"
STAMP = ".wdsstamp"
PART = ".wdspart"

_STORE = re.compile(r"[0-9a-f]{24}")


@dataclass(frozen=True, slots=True)
class CopyPaths:
    """The paths of the copy of one shard, and of what belongs to it, whether they exist or not."""

    folder: Path
    name: str

    @property
    def key(self) -> str:
        """What the readers of a cache call it."""
        return f"{self.folder.name}/{self.name}"

    @property
    def copy(self) -> Path:
        return self.folder / self.name

    @property
    def index(self) -> Path:
        return beside(self.copy)

    @property
    def stamp(self) -> Path:
        return self.folder / f"{self.name}{STAMP}"

    @property
    def part(self) -> Path:
        return self.folder / f"{self.name}{PART}"


def copy_paths(root: Path, manifest: Manifest, number: int) -> CopyPaths:
    """Return the paths of a shard's copy in a cache folder.

    That of a compressed one has a name that no other shard has, as ``x.tar`` might be.
    """
    manifest, number = manifest.part(number)
    folder, name = storage.split(manifest.location(number))
    if manifest.shard(number).is_compressed:
        name = f"{name}.tar"
    # Two stores may hold different shards under one name.
    return CopyPaths(root / hashlib.sha256(folder.encode()).hexdigest()[:24], name)


def copy_key(manifest: Manifest, number: int) -> str:
    """Return what the readers of a cache call the copy of a shard, the same in every process.

    >>> from wdsdist.shards.manifest import Shard
    >>> copy_key(Manifest.of("s3://bucket/train", [Shard("00.tar", 1, -1, "")]), 0)
    '80f17be367da61036f4a54be/00.tar'
    """
    return copy_paths(Path(), manifest, number).key


def is_store(name: str) -> bool:
    """Say whether a folder in a cache is one that holds copies."""
    return bool(_STORE.fullmatch(name))
