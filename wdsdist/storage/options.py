"""Storage options, and the stores that they are for.

A data set lists where its shards are, and an ``index.json`` may name any store. Options such as credentials therefore
go to the stores that the user has named, and to no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from wdsdist._util import warn_once
from wdsdist.errors import ArgumentError

_ALIASES = {"s3a": "s3", "gcs": "gs"}
_PORTS = {"http": "80", "https": "443"}


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
        host = urlsplit(location).netloc
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


def options_for(location: str, options: StorageOptions | None, *, warns: bool = False) -> dict[str, Any]:
    """Return the client options for a location, empty unless the user named its store.

    With ``warns``, warn once in each process of a store that gets none of the options.

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
    if warns:
        stores = ", ".join(options.stores)
        owners = f"they are for {stores}, which you named" if stores else "you named no store"
        warn_once.warn(
            f"{store} is read without storage_options: {owners}; to give it some, write "
            f"storage_options={{{store!r}: {{...}}}}"
        )
    return {}
