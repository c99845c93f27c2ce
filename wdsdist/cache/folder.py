"""The folder of a cache: the paths of its copies, and the check that this user alone can write it.

Each copy has two files, ``<root>/<24 hex digits of its store's folder>/<name>-<8 hex digits>.tar`` and its index beside
it. The shorter digest stands for the version of the shard: a shard that was uploaded again gets a copy of its own.

Another user who could write there could plant copies and indexes that agree. Parent folders may belong to a group or to
another user: these can move the folder away, but cannot replace it by a folder of this user.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import stat
from pathlib import Path

from wdsdist._util.host import make_dirs
from wdsdist._util.ownership import open_parent, why_not_own
from wdsdist.errors import CacheError

CATALOG = "catalog.sqlite"
LOCKS = ".locks"
"""Name of the file whose bytes are locked: by readers, and by whoever creates a copy."""


def store_key(location: str) -> str:
    """Return the name of the folder of the copies from one folder or URL.

    >>> store_key("s3://bucket/train")
    '80f17be367da61036f4a54be'
    """
    return digest(location)[:24]


def digest(content: str) -> str:
    """Return the SHA-256 of a string, as hex digits."""
    return hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()


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
    """Raise `CacheError` if other users own, can write or can replace a cache folder.

    A link to it is followed, and its target is checked.
    """
    status = root.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root))
    if why := why_not_own(status):
        is_mine = status.st_uid == os.geteuid()
        raise _unsafe(root, why, f"run `chmod go-w {root}`" if is_mine else "choose a cache_dir that belongs to you")
    _check_parents(root)


@functools.cache  # only successes are cached: an error is checked again
def _check_parents(root: Path) -> None:
    if parent := open_parent(root):
        mode = stat.S_IMODE(parent.stat().st_mode)
        why = f"anybody can put another folder in its place, as {parent} has mode {mode:04o}"
        raise _unsafe(root, why, f"have `chmod +t {parent}` run, or choose another cache_dir")


def _unsafe(root: Path, why: str, remedy: str) -> CacheError:
    return CacheError(f"{root} is not safe as a cache: {why}, and could plant shards there. Please {remedy}")


def make_folder(folder: Path) -> None:
    """Create a private folder in a cache. Raises `CacheError` if a link, a file or another user's folder is there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise CacheError(f"{folder} must be a folder of the cache but is a link or a file: remove it")
    if why := why_not_own(status):
        raise CacheError(f"{folder} is not safe as a folder of the cache: {why}: remove it")


def write(path: Path, content: bytes) -> None:
    """Write a file that this user alone can read; a link in its place is replaced, not followed.

    A process that is killed leaves a part of it, so readers check what they read.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
