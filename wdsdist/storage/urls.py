"""The names of files and objects: pure, nothing is opened."""

from __future__ import annotations

import os
import re
import urllib.parse
from pathlib import Path

from wdsdist.errors import ArgumentError, printable

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_QUERY = re.compile(r"(?<=\S)\?[^\s'\"?]*=[^\s'\"]*")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}://[^\s'\"]+")  # bounded: a long word must not take quadratic time
_BUCKETS = {"s3", "s3a", "gs", "gcs"}
_BUCKET = re.compile(r"arn:.*|[^:]*")
_HOST = re.compile(r"(?:\[[^\]]*\]|[^:]*)(?::\d*)?")
"""The part before the first slash if it holds no credentials; a bucket has no port."""


def is_remote(location: str) -> bool:
    """Return whether a location is a URL rather than a local path.

    >>> is_remote("s3://bucket/train"), is_remote("/data/train"), is_remote("file:///data/train")
    (True, False, False)
    """
    return bool(_SCHEME.match(location)) and not location.startswith("file://")


def scheme(location: str) -> str:
    """Return the scheme of a URL, before ``://``; empty for a local path.

    >>> scheme("s3://bucket/train"), scheme("/data/train")
    ('s3', '')
    """
    return location.partition("://")[0].lower() if is_remote(location) else ""


def is_read_only(location: str) -> bool:
    """Return whether a location is on the web, which is read only."""
    return location.startswith(("http://", "https://"))


def normalise(location: str | os.PathLike[str]) -> str:
    """Return a location as a string: absolute if it is local, without a trailing slash.

    Raises `ArgumentError` for an empty location, which would be the working directory, and for anything that is neither
    a string nor a path.

    >>> normalise("file:///data/my%20train/")
    '/data/my train'
    """
    string = os.fspath(location) if isinstance(location, (str, os.PathLike)) else None
    if not isinstance(string, str):
        raise ArgumentError(f"{location!r} is no path or URL: it must be a string or a Path")
    if "\0" in string:
        raise ArgumentError(f"{string!r} is no path or URL: it holds a null character")
    if is_remote(string):
        return string.rstrip("/")
    path = _of_file_url(string)
    if not path:
        raise ArgumentError("a path or URL is empty: name a place, such as . for the working directory")
    return os.path.abspath(path)  # noqa: PTH100 - Path.resolve would follow links


def _of_file_url(string: str) -> str:
    """Return the path of a ``file://`` URL, which is percent-encoded; any other string unchanged."""
    if not string.startswith("file://"):
        return string
    return urllib.parse.unquote(string.removeprefix("file://").removeprefix("localhost"), errors="surrogateescape")


def join(base: str, name: str) -> str:
    """Return the location of a name in a folder or below a URL; a name that is a location itself stays as it is.

    >>> join("s3://bucket/train", "00.tar"), join("/data", "s3://bucket/00.tar")
    ('s3://bucket/train/00.tar', 's3://bucket/00.tar')
    """
    if _SCHEME.match(name) or name.startswith("/"):
        return _of_file_url(name)
    return f"{base.rstrip('/')}/{name}"


def split(location: str) -> tuple[str, str]:
    """Split a location into its folder and its name; a URL's query, which may be a signature, is in neither.

    >>> split("https://host/train/00.tar?signature=x")
    ('https://host/train', '00.tar')
    """
    folder, _, name = (location.partition("?")[0] if is_remote(location) else location).rpartition("/")
    return folder or "/", name


def beside(location: str, suffix: str) -> str:
    """Return the location of the file beside another one that has its name with a suffix.

    >>> beside("https://host/00.tar?signature=x", ".index")
    'https://host/00.tar.index?signature=x'
    """
    path, mark, query = location.partition("?") if is_remote(location) else (location, "", "")
    return f"{path}{suffix}{mark}{query}"


def local_path(location: str) -> Path:
    """Return the path of a location that is not remote."""
    return Path(_of_file_url(location))


def login_of(location: str) -> str:
    """Return the credentials before the host or bucket of a URL, with their ``@``; empty if it has none.

    A secret key of AWS may hold a slash: it is taken for credentials too, up to the last ``@``, or else to the end.

    >>> login_of("https://me:secret@host/a@b"), login_of("s3://key:se/cret@bucket/a"), login_of("s3://bucket/a@b:c")
    ('me:secret@', 'key:se/cret@', '')
    """
    rest = location.partition("://")[2]
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in host:
        return host[: host.rindex("@") + 1]
    plain = _BUCKET if scheme(location) in _BUCKETS else _HOST
    if plain.fullmatch(host.rstrip(":;,.)")):  # which may end a URL in a message
        return ""
    return rest[: rest.rindex("@") + 1] if "@" in rest else rest


def shown(location: str) -> str:
    """Return a location fit for a message: without credentials and query, its control characters escaped.

    >>> shown("https://user:secret@host/a.tar?signature=x"), shown("s3://key:se/cret@bucket/a.tar")
    ('https://host/a.tar', 's3://bucket/a.tar')
    """
    if is_remote(location):
        before, mark, after = location.partition("://")
        location = f"{before}{mark}{after[len(login_of(location)) :].partition('?')[0]}"
    return printable(location)


def scrubbed(message: str, location: str) -> str:
    """Return the message of a back end about a location without credentials and queries, however it quotes them.

    >>> scrubbed("GET https://host/a.tar?signature=x failed", "https://host/a.tar?signature=x")
    'GET https://host/a.tar failed'
    >>> scrubbed("no such path: /a.tar?signature=%2F", "https://me:secret@host/a.tar?signature=/")
    'no such path: /a.tar'
    """
    if not is_remote(location):
        return message
    message = _QUERY.sub("", _URL.sub(lambda match: shown(match[0]), message))
    secrets = [location.partition("?")[2], login_of(location).removesuffix("@").partition(":")[2]]
    for secret in filter(None, secrets):
        message = message.replace(secret, "...")
    return message
