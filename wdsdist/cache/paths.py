"""Paths in a cache folder. Pure: no file is opened.

Each shard may have six files, ``<root>/<24 hex digits of its store's folder>/<name><suffix>``: the copy, its
index, its stamp (the verified digest, or the reserved space), the part that is being fetched to become the copy; and,
where only some of it is needed, the sparse copy with the map of its extents.
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
WAITING = ".waiting"
STAMP = ".wdsstamp"
PART = ".wdspart"
SPARSE = ".wdssparse"
EXTENTS = ".wdsextents"
SOURCE = ".wdssource"
"""Name of the file, beside the copies from one folder or URL, that says which that is."""

_STORE = re.compile(r"[0-9a-f]{24}")


@dataclass(frozen=True, slots=True)
class CopyPaths:
    """The paths of the files of one shard in a cache, whether they exist or not."""

    folder: Path
    name: str

    @property
    def key(self) -> str:
        """Key of the copy in the lists of readers."""
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

    @property
    def sparse(self) -> Path:
        return self.folder / f"{self.name}{SPARSE}"

    @property
    def extents(self) -> Path:
        return self.folder / f"{self.name}{EXTENTS}"


def copy_paths(root: Path, manifest: Manifest, number: int) -> CopyPaths:
    """Return the paths of a shard's files in a cache folder.

    The copy of a compressed shard has a name that no other shard can have, unlike ``x.tar``.
    """
    manifest, number = manifest.part(number)
    folder, name = storage.split(manifest.location(number))
    if manifest.shard(number).is_compressed:
        name = f"{name}.tar"
    # Two stores may hold different shards under one name.
    return CopyPaths(root / hashlib.sha256(folder.encode()).hexdigest()[:24], name)


def copy_key(manifest: Manifest, number: int) -> str:
    """Return the key of a shard's copy, the same in every process.

    >>> from wdsdist.shards.manifest import Shard
    >>> copy_key(Manifest.of("s3://bucket/train", [Shard("00.tar", 1, -1, "")]), 0)
    '80f17be367da61036f4a54be/00.tar'
    """
    return copy_paths(Path(), manifest, number).key


def is_store(name: str) -> bool:
    """Return whether a folder in a cache holds copies, by its name."""
    return bool(_STORE.fullmatch(name))
