"""Locations that the files of a data set may name, such as ``index.json``: it must not choose what is opened.

A name is a path relative to the folder of the data set, without a scheme and without ``..``; the name of the folder may
stand before it. Any other name needs the user's ``allow_elsewhere=True``.
"""

from __future__ import annotations

import re
import urllib.parse

from wdsdist import storage

SCHEMES = frozenset(
    ["", "file", "local", "memory", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "hf", "http",
     "https", "hdfs", "webhdfs", "sftp", "ssh", "ftp"]
)  # fmt: skip
"""Schemes of stores in which a URL is one file. Others of fsspec, such as ``reference``, open further files."""

LONGEST, LONGEST_NAME = 4096, 255
"""Most bytes of a location, and of each name in its path, as on Linux."""

_PLAIN = re.compile(r"(?:[\w=,+-][\w.=,+-]{0,200}/){0,9}[\w=,+-][\w.=,+-]{0,200}", re.ASCII)
"""Plain names, which need no further check: almost all."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BETWEEN_NAMES = re.compile(r"[/\\;?#]")  # servers also end a name at a semicolon, or read \ as /
_ENCODED = re.compile(r"%(?:2e|2f|5c|25|c[01]|e0%80|f0%80)", re.IGNORECASE)
"""Percent-encoded dots, slashes and percent signs, also in overlong UTF-8, which a server may decode."""


class ElsewhereError(ValueError):
    """A location is well formed, but outside the data set's own folder: only the user may allow it."""


def check_location(base: str, name: object, *, elsewhere: bool = False) -> None:
    """Raise ``ValueError`` with the reason if a data set may not name a location; ``base`` is as the user named it.

    Raises `ElsewhereError`, unless the user allows locations ``elsewhere``, if the name is well formed, but absolute,
    of another scheme, or leads up.

    >>> check_location("https://host/train", "00.tar?signature=x")
    >>> check_location("https://host/train", "%2e%2e/private/00.tar")
    Traceback (most recent call last):
    wdsdist.shards.manifest.allowed_locations.ElsewhereError: may lie outside https://host/train
    """
    if not isinstance(name, str) or not name:
        raise ValueError("is not a path or URL")
    if _PLAIN.fullmatch(name):
        return
    location = storage.join(base, name)
    is_remote = storage.is_remote(location)
    path = location.partition("?")[0] if is_remote else location
    try:
        length, longest = len(location.encode()), max(len(part.encode()) for part in path.split("/"))
    except UnicodeEncodeError:
        raise ValueError("is not UTF-8") from None
    if length > LONGEST or longest > LONGEST_NAME:
        raise ValueError(f"is longer than {LONGEST:,} bytes, or has a name longer than {LONGEST_NAME:,}")
    if _CONTROL.search(urllib.parse.unquote(name) if is_remote else location):
        raise ValueError("holds a control character")
    if "::" in name or (is_remote and "::" in location):
        raise ValueError("holds '::', which chains file systems")
    if storage.scheme(location) not in {*SCHEMES, storage.scheme(base)}:
        raise ValueError(f"has the scheme {storage.scheme(location)}, which is not a known store")
    if name.startswith("file://") and not location.startswith("/"):
        raise ValueError("is a file URL without an absolute path")
    if storage.split(location)[1] in ("", ".", ".."):
        raise ValueError("is the name of a folder")
    below = name.removeprefix(base.rstrip("/") + "/")
    leads_up = ".." in _BETWEEN_NAMES.split(below) or (storage.is_remote(base) and _ENCODED.search(below))
    if not elsewhere and (leads_up or below.startswith(("/", "\\")) or "://" in below):
        raise ElsewhereError(f"may lie outside {storage.shown(base)}")
