"""Which store the options of a client, such as credentials, are for: pure, nothing is opened.

What a data set lists is data: an ``index.json`` may name shards anywhere. Options therefore go to the stores that the
user has named, and to no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from wdsdist.errors import ArgumentError

_ALIASES = {"s3a": "s3", "gcs": "gs"}
_PORTS = {"http": "80", "https": "443"}


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Options of fsspec clients, and the stores that they are for."""

    given: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """As the user gave them: the options of one client, or a mapping from stores to the options of each."""
    stores: tuple[str, ...] = ()
    """Stores that the user named, as `store` writes them; those of ``given`` count where it maps stores."""

    @property
    def is_by_store(self) -> bool:
        """Whether ``given`` says of each of its options which store they are for."""
        return any("://" in name for name in self.given)


def store(location: str) -> str:
    """Return the store that a URL names: scheme and bucket, or on the web scheme, host and port.

    >>> store("s3a://bucket/train/00.tar"), store("https://user:secret@Host:443/00.tar?signature=x")
    ('s3://bucket', 'https://host')
    """
    scheme, _, _ = location.partition("://")
    scheme = _ALIASES.get(scheme.lower(), scheme.lower())
    try:
        place = urlsplit(location).netloc
    except ValueError:  # a port or an address that is none: no store has it
        return ""
    if scheme in _PORTS:
        place = place.rpartition("@")[2].lower().removesuffix(f":{_PORTS[scheme]}")
        if not place.isascii():
            try:
                place = place.encode("idna").decode()
            except UnicodeError:
                return ""
    return f"{scheme}://{place}"


def named(options: Mapping[str, Any] | StorageOptions | None, locations: Iterable[str]) -> StorageOptions:
    """Return options for the stores of the locations that the user has named; options that are bound stay as they are.

    Raises `ArgumentError` for options of which only some say which store they are for.

    >>> named({"anon": True}, ["s3://one/train", "/data/train"]).stores
    ('s3://one',)
    """
    if isinstance(options, StorageOptions):
        return options
    given = dict(options or {})
    bound = StorageOptions(given, tuple(sorted({store(location) for location in locations if "://" in location})))
    if bound.is_by_store and not all("://" in name and isinstance(one, Mapping) for name, one in given.items()):
        raise ArgumentError(
            "storage_options has some keys that are URLs and some that are not: give the options of one client, or "
            'a mapping from stores to the options of each, as in {"s3://bucket": {"anon": True}}'
        )
    return bound


def options_for(location: str, options: StorageOptions | None) -> dict[str, Any]:
    """Return the options that a client for a location is to have: none where the user did not name its store.

    >>> options = named({"key": "secret"}, ["https://host/train"])
    >>> options_for("https://host/train/00.tar", options), options_for("https://other/00.tar", options)
    ({'key': 'secret'}, {})
    >>> options_for("http://host/00.tar", options)
    {}
    >>> options_for("s3://two/a.tar", named({"s3://one": {"anon": True}, "s3://two": {"key": "x"}}, []))
    {'key': 'x'}
    """
    if options is None:
        return {}
    wanted = store(location)
    if options.is_by_store:
        return next((dict(one) for name, one in options.given.items() if store(name) == wanted), {})
    return dict(options.given) if wanted and wanted in options.stores else {}


def reach(location: str, options: StorageOptions | None) -> tuple[str, ...]:
    """Return the stores that may see the options of a client for a location, as where one redirects to another."""
    return (store(location),) if options is None or options.is_by_store else options.stores
