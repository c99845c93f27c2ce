"""Cache folders, which only this user may be able to write, and writes of files in them.

Another user who could write there could plant a copy together with a stamp that marks it as verified. Parents that a
group or another user owns are accepted: whoever moves the folder away cannot replace it by one that this user owns.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from pathlib import Path

from wdsdist import storage
from wdsdist._util.ownership import TRUST_ALL, open_parent, why_not_own
from wdsdist.cache.paths import SOURCE
from wdsdist.errors import CacheError


def make_root(root: Path) -> None:
    """Create a cache folder that this user alone can write, or check it. Raises what `check_root` raises."""
    with contextlib.suppress(FileExistsError):
        try:
            root.mkdir(mode=0o700)
        except FileNotFoundError:
            for parent in reversed(root.parents):
                parent.mkdir(mode=0o755, exist_ok=True)  # whatever the umask is
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
            write(note, storage.shown(source).encode())


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
