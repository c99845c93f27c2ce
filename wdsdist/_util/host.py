"""This host: the user's directories, whether other users can change a path, and the CPU cores of this process."""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
import tempfile
from pathlib import Path
from typing import Literal

from wdsdist.errors import ArgumentError, DestinationError


def user_dir(kind: Literal["cache", "config"]) -> Path:
    """Return the path of this user's directory of a kind, without creating it.

    ``$XDG_CACHE_HOME/wdsdist``, else ``~/.cache/wdsdist``, unless ``$WDSDIST_CACHE_DIR`` names the cache; in the same
    way for ``config``, which holds the user's decisions, and is on clusters the same on all nodes. A relative variable
    of XDG is ignored, as its specification asks.

    Raises:
        ArgumentError: there is no home directory to fall back on.
    """
    variable, own = f"XDG_{kind.upper()}_HOME", os.environ.get("WDSDIST_CACHE_DIR") if kind == "cache" else None
    try:
        if own:
            return Path(own).expanduser().absolute()
        shared = Path(os.environ.get(variable, ""))
        return (shared if shared.is_absolute() else Path.home() / f".{kind}") / "wdsdist"
    except RuntimeError as error:
        remedy = "WDSDIST_CACHE_DIR" if kind == "cache" else variable
        raise ArgumentError(
            f"there is no home directory for user {os.geteuid()} ({error}): set {remedy} to a directory"
        ) from None


def shard_cache_dir(folder: Path | None) -> Path:
    """Return the folder of a cache of shards, by default ``shards`` in the user's cache directory."""
    return folder or user_dir("cache") / "shards"


def make_dirs(folder: Path) -> None:
    """Create a folder with its parents, none of which other users can write, whatever the umask is."""
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o755, exist_ok=True)


def temporary_dir() -> Path:
    """Return the directory for temporary files. Raises `DestinationError` if none can be written."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:  # which would pass for a shard that is missing
        raise DestinationError(f"{error.strerror}: set TMPDIR to a directory that can be written") from error


def private_dir() -> Path:
    """Create a directory on this node that only this user can enter, ``<temporary>/wdsdist-<uid>``, or check it.

    The temporary directory is Python's (``tempfile.gettempdir()``), so ``$TMPDIR`` moves it; processes that
    should see each other's records must share it.

    Raises:
        DestinationError: it cannot be made, or something of that name exists that others may have put
            there or can enter.
    """
    return private_under(temporary_dir(), f"wdsdist-{os.geteuid()}", remedy="set TMPDIR to another directory")


def private_under(parent: Path, name: str, *, remedy: str = "choose another directory") -> Path:
    """Create the directory ``parent / name``, owned by this user and closed to all others, or check it.

    ``remedy`` says what to do if it cannot be made.

    Raises:
        DestinationError: it cannot be made, or is a link, another user's, or open to others.
    """
    path = parent / name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        # lstat: a link planted in a shared temporary directory would send our pickles to another user's folder.
        status = path.lstat()
    except OSError as error:
        raise DestinationError(f"cannot make the private directory {path} ({error.strerror}): {remedy}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise DestinationError(
            f"{path} must be a directory of user {os.geteuid()} that is closed to others, and is "
            f"{stat.filemode(status.st_mode)} of user {status.st_uid}: check what is in it, then remove it, or {remedy}"
        )
    return path


def why_not_own(status: os.stat_result) -> str:
    """Return why other users can change a file or folder; an empty string if only this user can.

    A group whose only member is this user counts as this user: many systems give each user such a group, and folders
    that it can write.
    """
    if status.st_uid != os.geteuid():
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


def cpu_count() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))  # os.cpu_count() would count cores that Slurm gave to other jobs
