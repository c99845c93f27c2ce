"""The folders of a cache, which only this user may be able to write, and how files are written in them.

Whoever could write there could plant a copy together with the stamp that says it was verified. Parents that a group or
another user owns are not refused: whoever moves the folder away can put nothing in its place that this user owns.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from pathlib import Path

from wdsdist._util.ownership import TRUST_ALL, open_parent, why_not_own
from wdsdist.errors import CacheError


def make_root(root: Path) -> None:
    """Make sure of a cache folder that this user alone can write. Raises what `check_root` raises."""
    with contextlib.suppress(FileExistsError):
        try:
            root.mkdir(mode=0o700)
        except FileNotFoundError:
            for parent in reversed(root.parents):
                parent.mkdir(mode=0o755, exist_ok=True)  # whatever the umask is
            root.mkdir(mode=0o700, exist_ok=True)
    check_root(root)


def check_root(root: Path) -> None:
    """Raise `CacheError` where others own or can write a cache folder, or can put another one in its place.

    A link to it is followed: it is checked, each time before it is used, where that leads.
    """
    found = root.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root))
    if why := why_not_own(found):
        is_mine = found.st_uid == os.geteuid()
        raise _unsafe(root, why, f"run `chmod go-w {root}`" if is_mine else "choose a cache_dir that belongs to you")
    _check_parents(root)


@functools.cache  # of what is right: what is raised is looked at again
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
    """Make sure of a folder in a cache, which is closed to others. Raises `CacheError` where it is not this user's."""
    folder.mkdir(mode=0o700, exist_ok=True)
    check_folder(folder)


def check_folder(folder: Path) -> None:
    """Raise `CacheError` where a folder in a cache is a link or another user's; keep others from writing there."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise CacheError(f"{folder} must be a folder of the cache but is a link or a file: remove it")
    if why := why_not_own(found):
        if found.st_uid != os.geteuid():
            raise CacheError(f"{folder} is not safe as a folder of the cache: {why}: remove it")
        folder.chmod(0o700)  # made by an earlier version; each file in it is looked at as well


def write(path: Path, content: bytes) -> None:
    """Write a file that this user alone can read, and not through a link, which leads to somebody's data."""
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
