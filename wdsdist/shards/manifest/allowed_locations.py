"""Locations that an ``index.json`` may name: a data set is data, and must not choose which files are opened."""

from __future__ import annotations

import hashlib
import logging
import re
import urllib.parse

from wdsdist import storage
from wdsdist._util.host import private_config_dir, user_config_dir
from wdsdist.errors import ArgumentError, DestinationError

SCHEMES = frozenset(
    ["", "file", "local", "memory", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "hf", "http",
     "https", "hdfs", "webhdfs", "sftp", "ssh", "ftp"]
)  # fmt: skip
"""Schemes of stores in which a URL is one file. Others of fsspec, such as ``reference``, open further files."""

LONGEST, LONGEST_NAME = 4096, 255
"""Most bytes of a location, and of each name in its path, as on Linux."""

_MOST_DECODED = 8
"""Times that a name may be percent-encoded; each server or proxy may decode it once."""

_PLAIN = re.compile(r"(?:[\w=,+-][\w.=,+-]{0,200}/){0,9}[\w=,+-][\w.=,+-]{0,200}", re.ASCII)
"""Plain names, which need no further check, as almost all."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BETWEEN_NAMES = re.compile(r"[/\\;?#]")  # servers end a name of a path at a semicolon too, or take \ for /


_log = logging.getLogger("wdsdist")


class ElsewhereError(ValueError):
    """A location is well formed, but outside the data set's own folder, which only the user may allow."""


def check_location(base: str, name: object, *, elsewhere: bool = False) -> None:
    """Raise ``ValueError`` with the reason where an ``index.json`` may not name a location.

    Args:
        base: the folder or URL of the data set, as the user named it.
        name: the location in the ``index.json``.
        elsewhere: whether the location may lie outside the base, because the user says so.

    Raises `ElsewhereError` where only that is wrong: for another host or bucket, an absolute path, ``..`` in any
    spelling that a server might understand.

    >>> check_location("https://host/train", "00.tar?signature=x")
    >>> check_location("https://host/train", "%2e%2e/private/00.tar")
    Traceback (most recent call last):
    wdsdist.shards.manifest.allowed_locations.ElsewhereError: lies outside https://host/train
    """
    if not isinstance(name, str) or not name:
        raise ValueError("is not a path or URL")
    if not _PLAIN.fullmatch(name):
        location = storage.join(base, name)
        _check_form(base, name, location)
        if not elsewhere:
            _check_below(base, location)


def check_base(folder: str, stated: object, *, elsewhere: bool = False) -> str:
    """Return the folder that shards are relative to: that of the ``index.json``, or its ``base`` below that.

    Raises what `check_location` raises.
    """
    if stated is None or stated == "":
        return folder
    if not isinstance(stated, str):
        raise ValueError("is not a path or URL")
    base = stated.rstrip("/") or stated
    if base in (folder, "."):
        return folder
    check_location(folder, base, elsewhere=elsewhere)
    return storage.join(folder, base)


def _check_form(base: str, name: str, location: str) -> None:
    """Raise ``ValueError`` for a malformed location, wherever it leads."""
    remote = storage.is_remote(location)
    path = location.partition("?")[0] if remote else location
    try:
        length, longest = len(location.encode()), max(len(part.encode()) for part in path.split("/"))
    except UnicodeEncodeError:
        raise ValueError("is not UTF-8") from None
    if length > LONGEST or longest > LONGEST_NAME:
        raise ValueError(
            f"is a path of {length:,} bytes with a name of {longest:,}, where {LONGEST:,} and {LONGEST_NAME:,} are the "
            f"most"
        )
    if _CONTROL.search(_decoded(name) if remote else location):
        raise ValueError("holds a control character")
    if "::" in name or (remote and "::" in location):
        raise ValueError("holds '::', which chains file systems")
    if storage.scheme(location) not in {*SCHEMES, storage.scheme(base)}:
        raise ValueError(f"has the scheme {storage.scheme(location)}, which is none of a store that is known here")
    if name.startswith("file://") and not location.startswith("/"):
        raise ValueError("is a file URL without an absolute path")
    if storage.split(location)[1] in ("", ".", ".."):
        raise ValueError("is the name of a folder")


def _check_below(base: str, location: str) -> None:
    folder = base.rstrip("/") + "/"
    below = location.removeprefix(folder)
    if not location.startswith(folder) or ".." in _BETWEEN_NAMES.split(
        _decoded(below) if storage.is_remote(base) else below
    ):
        raise ElsewhereError(f"lies outside {storage.shown(base)}")


def _decoded(text: str) -> str:
    """Decode percent-encoding until nothing changes."""
    for _ in range(_MOST_DECODED):
        try:
            plain = urllib.parse.unquote(text, errors="strict")
        except UnicodeDecodeError:
            raise ElsewhereError("is percent-encoded, but not from UTF-8") from None
        if plain == text:
            return text
        text = plain
    raise ElsewhereError("is percent-encoded more than once")


def trust(content: bytes, what: object) -> None:
    """Record the digest of an ``index.json`` or view as made from locations that this user named.

    It is recorded in the user's config folder: a mark in the file itself could be forged by a downloaded one. Where
    that folder cannot be written, or others can write there too, a warning says how to open ``what`` it is.
    """
    try:
        private_config_dir("named").joinpath(hashlib.sha256(content).hexdigest()).touch()
    except (ArgumentError, DestinationError, OSError) as error:
        _log.warning(
            "%s cannot be noted as one of yours (%s): where it names data outside its own folder, open it with "
            "allow_elsewhere=True (--allow-elsewhere)",
            what,
            error,
        )


def is_trusted(content: bytes) -> bool:
    """Return whether `trust` has recorded the digest, in a folder that this user alone can write."""
    try:
        name = hashlib.sha256(content).hexdigest()
        return (user_config_dir() / "named" / name).exists() and private_config_dir("named").is_dir()
    except (ArgumentError, DestinationError, OSError):
        return False
