"""The names of files and objects, and the stores that options are for: pure, nothing is opened.

A data set lists where its shards are, and an ``index.json`` may name any store. Options such as credentials therefore
go to the stores that the user has named, and to no other.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wdsdist._util import warn_once
from wdsdist.errors import ArgumentError, printable

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_QUERY = re.compile(r"(?<=\S)\?[^\s'\"?]*=[^\s'\"]*")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}://[^\s'\"]+")  # bounded: a long word must not take quadratic time
_BUCKETS = {"s3", "s3a", "gs", "gcs"}
_BUCKET = re.compile(r"arn:.*|[^:]*")
_HOST = re.compile(r"(?:\[[^\]]*\]|[^:]*)(?::\d*)?")
"""The part before the first slash if it holds no credentials; a bucket has no port."""
_ALIASES = {"s3a": "s3", "gcs": "gs"}
_PORTS = {"http": "80", "https": "443"}


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
    return scheme(location) in ("http", "https")


def normalise(location: str | os.PathLike[str]) -> str:
    """Return a location as a string: absolute if it is local, without a trailing slash.

    Raises `ArgumentError` for an empty location, which would be the working directory, and for anything that is neither
    a string nor a path.

    >>> normalise("file:///data/my%20train/")
    '/data/my train'
    """
    string = os.fspath(location) if isinstance(location, (str, os.PathLike)) else None
    if not isinstance(string, str):
        raise ArgumentError(f"{location!r} is not a path or URL: it must be a string or a Path")
    if "\0" in string:
        raise ArgumentError(f"{string!r} is not a path or URL: it holds a null character")
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


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Options of clients, and the stores that they are for."""

    given: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """As the user gave them: the options of one client, or a mapping from stores to the options of each."""
    stores: tuple[str, ...] = ()
    """Stores that the user named, as `store_of` writes them; unused if ``given`` maps stores."""

    @property
    def is_by_store(self) -> bool:
        """Whether ``given`` maps stores to their options."""
        return any("://" in name for name in self.given)


def store_of(location: str) -> str:
    """Return the store that a URL names: scheme and bucket, or on the web scheme, host and port.

    >>> store_of("s3a://bucket/train/00.tar"), store_of("https://user:secret@Host:443/00.tar?signature=x")
    ('s3://bucket', 'https://host')
    """
    scheme = location.partition("://")[0].lower()
    scheme = _ALIASES.get(scheme, scheme)
    try:
        host = urllib.parse.urlsplit(location).netloc
        if scheme in _PORTS:
            host = host.rpartition("@")[2].lower().removesuffix(f":{_PORTS[scheme]}")
            host = host if host.isascii() else host.encode("idna").decode()
    except ValueError:  # no store has a malformed port or address
        return ""
    return f"{scheme}://{host}"


def named(options: Mapping[str, Any] | StorageOptions | None, locations: Iterable[str]) -> StorageOptions:
    """Bind options to the stores of the locations that the user has named; bound options stay as they are.

    Raises `ArgumentError` if only some keys of the options are stores.

    >>> named({"anon": True}, ["s3://one/train", "/data/train"]).stores
    ('s3://one',)
    """
    if isinstance(options, StorageOptions):
        return options
    # The messages do not show values, which may hold a secret.
    if options is not None and not (isinstance(options, Mapping) and all(isinstance(name, str) for name in options)):
        raise ArgumentError(
            f"storage_options is a {type(options).__name__}: it must map names of options to values",
            argument="storage_options",
        )
    given = dict(options or {})
    bound = StorageOptions(given, tuple(sorted({store_of(location) for location in locations if "://" in location})))
    if bound.is_by_store and not all("://" in name and isinstance(value, Mapping) for name, value in given.items()):
        raise ArgumentError(
            "storage_options has some keys that are URLs and some that are not: give the options of one client, or "
            'a mapping from stores to the options of each, as in {"s3://bucket": {"anon": True}}',
            argument="storage_options",
        )
    return bound


def options_for(location: str, options: StorageOptions | None) -> dict[str, Any]:
    """Return the client options for a location, empty with a warning unless the user named its store.

    >>> options = named({"key": "secret"}, ["https://host/train"])
    >>> options_for("https://host/train/00.tar", options), options_for("https://other/00.tar", options)
    ({'key': 'secret'}, {})
    >>> options_for("http://host/00.tar", options)
    {}
    >>> options_for("s3://two/a.tar", named({"s3://one": {"anon": True}, "s3://two": {"key": "x"}}, []))
    {'key': 'x'}
    """
    if options is None or not options.given:
        return {}
    store = store_of(location)
    if options.is_by_store:
        return next((dict(value) for name, value in options.given.items() if store_of(name) == store), {})
    if store and store in options.stores:
        return dict(options.given)
    stores = ", ".join(options.stores)
    owners = f"they are for {stores}, which you named" if stores else "you named no store"
    warn_once.warn(
        f"{store} is read without storage_options: {owners}; to give it some, write "
        f"storage_options={{{store!r}: {{...}}}}"
    )
    return {}
