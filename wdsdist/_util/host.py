"""This host: the user's cache, config and private directories, and the CPU cores of this process."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from wdsdist.errors import ArgumentError, DestinationError


def user_cache_dir() -> Path:
    """Return the path of this user's cache directory, without creating it.

    ``$WDSDIST_CACHE_DIR`` if set, else ``$XDG_CACHE_HOME/wdsdist``, else ``~/.cache/wdsdist``. A relative
    ``XDG_CACHE_HOME`` is ignored, as the XDG base directory specification asks.

    Raises:
        ArgumentError: there is no home directory to fall back on.

    Example:
        >>> user_cache_dir().is_absolute()
        True
    """
    return _user_dir(os.environ.get("WDSDIST_CACHE_DIR"), "XDG_CACHE_HOME", ".cache", "WDSDIST_CACHE_DIR")


def shard_cache_dir(folder: Path | None) -> Path:
    """Return the folder of a cache of shards, by default ``shards`` in the user's cache directory."""
    return folder or user_cache_dir() / "shards"


def user_config_dir() -> Path:
    """Return the path of this user's config directory, without creating it.

    It holds the user's decisions, which no run can restore. ``$XDG_CONFIG_HOME/wdsdist``, else ``~/.config/wdsdist``,
    on clusters the same on all nodes.

    Raises:
        ArgumentError: there is no home directory to fall back on.
    """
    return _user_dir(None, "XDG_CONFIG_HOME", ".config", "XDG_CONFIG_HOME")


def _user_dir(own: str | None, shared_in: str, hidden: str, remedy: str) -> Path:
    try:
        if own:
            return Path(own).expanduser().absolute()
        if (shared := os.environ.get(shared_in)) and Path(shared).is_absolute():
            return Path(shared) / "wdsdist"
        return Path.home() / hidden / "wdsdist"
    except RuntimeError as error:
        raise ArgumentError(
            f"there is no home directory for user {os.geteuid()} ({error}): set {remedy} to a directory"
        ) from None


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

    Example:
        >>> from unittest import mock
        >>> with tempfile.TemporaryDirectory() as folder, mock.patch("tempfile.tempdir", folder):
        ...     oct(private_dir().stat().st_mode & 0o777)
        '0o700'
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


def private_config_dir(name: str) -> Path:
    """Create a directory in `user_config_dir`, both closed to all other users, or check them.

    Raises what `private_under` raises.
    """
    folder, remedy = user_config_dir(), "set XDG_CONFIG_HOME to a directory that can be written"
    try:
        make_dirs(folder.parent)
    except OSError as error:
        raise DestinationError(f"cannot make the directory {folder.parent} ({error.strerror}): {remedy}") from error
    return private_under(private_under(folder.parent, folder.name, remedy=remedy), name, remedy=remedy)


def cpu_count() -> int:
    """Return the number of CPU cores that this process may use, at least 1.

    Example:
        >>> 1 <= cpu_count() <= os.cpu_count()
        True
    """
    try:
        return len(os.sched_getaffinity(0))  # os.cpu_count() would count cores that Slurm gave to other jobs
    except (AttributeError, OSError):
        return os.cpu_count() or 1
