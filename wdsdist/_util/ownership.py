"""Which files and folders this user alone can have written: what lies in others is not believed."""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from pathlib import Path

TRUST_ALL = "WDSDIST_TRUST_CACHE_DIR"
"""Set to anything, it says that nobody else reaches this machine's folders, whatever their owners and modes are."""


def is_owner(found: os.stat_result) -> bool:
    """Say whether a file belongs to this user."""
    return found.st_uid == os.geteuid() or bool(os.environ.get(TRUST_ALL))


def why_not_own(found: os.stat_result) -> str:
    """Say what lets other users change a file or a folder; return an empty text where only this user can.

    A group that has no member but this user counts as this user: many systems give each user one, and folders that it
    can write.
    """
    if os.environ.get(TRUST_ALL):
        return ""
    if not is_owner(found):
        return f"it belongs to user {found.st_uid}, not to user {os.geteuid()}"
    by_group = found.st_mode & stat.S_IWGRP and not _has_only(found.st_gid, os.geteuid())
    if by_group or found.st_mode & stat.S_IWOTH:
        return f"others can write it (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def is_own_file(path: Path) -> bool:
    """Say whether a path is a regular file, and no link, that this user alone can write."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and not why_not_own(found)


def read_own(path: Path) -> bytes | None:
    """Return the content of a file; nothing where `is_own_file` is false.

    Asked of the open file: the name may come to mean another one at any time.
    """
    try:
        # Without O_NONBLOCK, a named pipe would keep whoever opens it waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        return stream.read() if stat.S_ISREG(found.st_mode) and not why_not_own(found) else None


def open_parent(path: Path) -> Path | None:
    """Return a folder above a path in which anybody can give that path's part of it to another folder."""
    if os.environ.get(TRUST_ALL):
        return None
    for parent in dict.fromkeys((*path.absolute().parents, *path.resolve().parents)):
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return parent
    return None


@functools.cache
def _has_only(group: int, user: int) -> bool:
    """Say whether a group is the one that was made for a user, without other members."""
    try:
        owner, named = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return (named.gr_gid, named.gr_name) == (owner.pw_gid, owner.pw_name) and {*named.gr_mem} <= {owner.pw_name}
