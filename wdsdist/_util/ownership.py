"""Ownership of files and folders: only those that this user alone can write are trusted."""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from pathlib import Path


def is_owner(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user."""
    return status.st_uid == os.geteuid()


def why_not_own(status: os.stat_result) -> str:
    """Return why other users can change a file or folder; an empty string if only this user can.

    A group whose only member is this user counts as this user: many systems give each user such a group, and folders
    that it can write.
    """
    if not is_owner(status):
        return f"it belongs to user {status.st_uid}, not to user {os.geteuid()}"
    by_group = status.st_mode & stat.S_IWGRP and not _has_only(status.st_gid, os.geteuid())
    if by_group or status.st_mode & stat.S_IWOTH:
        return f"others can write it (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def is_own_file(path: Path) -> bool:
    """Return whether a path is a regular file, not a link, that this user alone can write."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and not why_not_own(status)


def open_parent(path: Path) -> Path | None:
    """Return a parent folder in which any user can replace this path by another, or ``None``."""
    for parent in dict.fromkeys((*path.absolute().parents, *path.resolve().parents)):
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return parent
    return None


@functools.cache
def _has_only(group: int, user: int) -> bool:
    """Return whether a group is a user's own primary group, without other members."""
    try:
        owner, named = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return (named.gr_gid, named.gr_name) == (owner.pw_gid, owner.pw_name) and {*named.gr_mem} <= {owner.pw_name}
