"""The folders and files of a cache: their paths, and that only this user may be able to write them.

Each shard may have six files, ``<root>/<24 hex digits of its store's folder>/<name><suffix>``: the copy, its
index, its stamp (the verified digest, or the reserved space), the part that is being fetched to become the copy; and,
where only some of it is needed, the sparse copy with the map of its extents.

Another user who could write there could plant a copy together with a stamp that marks it as verified. Parents that a
group or another user owns are accepted: whoever moves the folder away cannot replace it by one that this user owns.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from wdsdist import storage
from wdsdist._util.host import make_dirs
from wdsdist._util.ownership import TRUST_ALL, open_parent, why_not_own
from wdsdist.errors import CacheError
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
    return CopyPaths(root / hashlib.sha256(folder.encode("utf-8", "surrogateescape")).hexdigest()[:24], name)


def copy_key(manifest: Manifest, number: int) -> str:
    """Return the key of a shard's copy, the same in every process.

    >>> from wdsdist.shards.manifest import Shard
    >>> copy_key(Manifest.of("s3://bucket/train", [Shard("00.tar", 1, -1, "")]), 0)
    '80f17be367da61036f4a54be/00.tar'
    """
    return copy_paths(Path(), manifest, number).key


def is_store(name: str) -> bool:
    """Return whether a folder name is that of a directory of cached shards."""
    return bool(_STORE.fullmatch(name))


def make_root(root: Path) -> None:
    """Create a cache folder that this user alone can write, or check it. Raises what `check_root` raises."""
    with contextlib.suppress(FileExistsError):
        try:
            root.mkdir(mode=0o700)
        except FileNotFoundError:
            make_dirs(root.parent)
            root.mkdir(mode=0o700, exist_ok=True)
    check_root(root)


def check_root(root: Path) -> None:
    """Raise `CacheError` where other users own, can write or can replace a cache folder.

    A link to it is followed, and its target is checked before each use.
    """
    found = root.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root))
    if why := why_not_own(found):
        is_mine = found.st_uid == os.geteuid()
        raise _unsafe(root, why, f"run `chmod go-w {root}`" if is_mine else "choose a cache_dir that belongs to you")
    _check_parents(root)


@functools.cache  # only successes are cached: an error is checked again
def _check_parents(root: Path) -> None:
    if parent := open_parent(root):
        mode = stat.S_IMODE(parent.stat().st_mode)
        why = f"anybody can put another folder in its place, as {parent} has mode {mode:04o}"
        raise _unsafe(root, why, f"have `chmod +t {parent}` run, or choose another cache_dir")


def _unsafe(root: Path, why: str, remedy: str) -> CacheError:
    return CacheError(
        f"{root} is not safe as a cache: {why}, and what others put there would pass for verified shards. Either "
        f"{remedy}, or, where nobody else reaches this machine, as in a container, set {TRUST_ALL}=1"
    )


def make_folder(folder: Path) -> None:
    """Create a private folder in a cache, or check it. Raises `CacheError` where it is not this user's."""
    folder.mkdir(mode=0o700, exist_ok=True)
    check_folder(folder)


def check_folder(folder: Path) -> None:
    """Raise `CacheError` where a folder in a cache is a link or another user's; remove others' write permission."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise CacheError(f"{folder} must be a folder of the cache but is a link or a file: remove it")
    if why := why_not_own(found):
        if found.st_uid != os.geteuid():
            raise CacheError(f"{folder} is not safe as a folder of the cache: {why}: remove it")
        folder.chmod(0o700)  # made by an earlier version; each file in it is checked as well


def note_source(folder: Path, source: str) -> None:
    """Note of which folder or URL the copies in a folder are, without its credentials, for `contents.usage`."""
    note = folder / SOURCE
    with contextlib.suppress(OSError):  # nothing is read by it
        if not note.exists():
            write(note, storage.shown(source).encode("utf-8", "surrogateescape"))


def write(path: Path, content: bytes) -> None:
    """Write a file that this user alone can read, never through a link, whose target may be somebody's data."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # of a link, and of a pipe or a socket
            raise
        path.unlink()
        descriptor = os.open(path, flags | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, 0o600)  # of an earlier version's file too
        stream.write(content)
