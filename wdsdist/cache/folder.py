"""The folder of a cache: the paths of its copies, its errors, and the check that this user alone can write it.

Each copy has two files, ``<root>/<24 hex digits of its store's folder>/<name>-<8 hex digits>.tar`` and its index beside
it. The shorter digest stands for the version of the shard: a shard that was uploaded again gets a copy of its own.

Another user who could write there could plant copies and indexes that agree. Parent folders may belong to a group or to
another user: these can move the folder away, but cannot replace it by a folder of this user.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from wdsdist._util.files import open_files_remedy
from wdsdist._util.host import make_dirs, open_parent, why_not_own
from wdsdist.errors import CacheError, DestinationError, WdsdistError

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
    if not root.exists():
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
        remedy = f"run `chmod go-w {root}`" if is_mine else "choose a cache_dir that belongs to you"
    elif parent := open_parent(root):
        mode = stat.S_IMODE(parent.stat().st_mode)
        why = f"anybody can put another folder in its place, as {parent} has mode {mode:04o}"
        remedy = f"have `chmod +t {parent}` run, or choose another cache_dir"
    else:
        return
    raise CacheError(f"{root} is not safe as a cache: {why}, and could plant shards there. Please {remedy}")


def folders_in_use() -> set[Path]:
    """Return the cache folders of this user that live processes have open."""
    folders = set()
    for link in glob.iglob("/proc/[0-9]*/fd/*"):  # noqa: PTH207 - unlike Path.glob, it ignores processes that end
        with contextlib.suppress(OSError):
            path = Path(link).readlink()
            if path.name == CATALOG and path.stat().st_uid == os.geteuid():
                folders.add(path.parent)
    return folders


@contextlib.contextmanager
def clear_errors(root: Path, content: str) -> Iterator[None]:
    """Turn ``OSError`` of a cache folder into `CacheError` with a remedy; ``content`` names what it has to take."""
    try:
        yield
    except OSError as error:
        cause: BaseException | None = error
        if isinstance(error, DestinationError):
            cause = error.__cause__
        elif isinstance(error, WdsdistError):
            raise
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise CacheError(
                f"{root} has no room for {content} ({cause.strerror}; {shutil.disk_usage(root).free:,} bytes are free "
                f"on its disk): free some, set cache_limit to what the disk holds, or choose another cache_dir"
            ) from error
        remedy = open_files_remedy(error) or ": choose another cache_dir"
        raise CacheError(f"{root} cannot be used as a cache ({error}){remedy}") from error
