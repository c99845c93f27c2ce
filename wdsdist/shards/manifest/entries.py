"""Parse and validate the entries of an ``index.json``. Pure."""

from __future__ import annotations

import re
from typing import Any

from wdsdist import storage
from wdsdist.shards.manifest.allowed_locations import ElsewhereError, check_base, check_location
from wdsdist.shards.manifest.manifest import Shard

MOST = (1 << 62) - 1
"""Most samples or bytes, of one shard or all."""

_SHOWN = 100  # letters of a name in a message
_DIGEST = re.compile(r"(?:[0-9a-fA-F]{64})?")


class EntryError(ValueError):
    """An entry is invalid; the message has its number and name."""


class EntryElsewhereError(EntryError):
    """An entry lies outside the data set's folder, which only the user may allow."""


def parse(data: dict[str, Any], folder: str, *, elsewhere: bool = False) -> tuple[str, list[Shard]]:
    """Parse the content of an ``index.json``: the folder or URL that shards are relative to, and the shards.

    Args:
        data: the content of an ``index.json``.
        folder: the folder that it lies in.
        elsewhere: whether shards may lie outside the folder.

    Raises `EntryError` for the first invalid entry.
    """
    listed = data["shardlist"]
    if not isinstance(listed, list):
        raise ValueError(f"shardlist is {_shown(listed)}, not a list")
    try:
        base = check_base(folder, data.get("base"), elsewhere=elsewhere)
    except ValueError as error:
        raise _refused(f"its base, {_name(data['base'])},", error) from None
    shards: list[Shard] = []
    numbers: dict[str, int] = {}
    for number, entry in enumerate(listed):
        try:
            shard = _shard(entry, base, elsewhere)
            first = numbers.setdefault(shard.name, number)
            if first != number and shards[first] != shard:
                raise ValueError(f"says other than entry {first}, which has the same name")
        except (ValueError, KeyError) as error:
            name = _name(entry.get("url") if isinstance(entry, dict) else entry)
            raise _refused(f"entry {number}, {name},", error) from None
        shards.append(shard)
    return base, shards


def _refused(what: str, error: ValueError | KeyError) -> EntryError:
    reason = f"has no {error}" if isinstance(error, KeyError) else error
    return (EntryElsewhereError if isinstance(error, ElsewhereError) else EntryError)(f"{what} {reason}")


def _shard(entry: Any, base: str, elsewhere: bool) -> Shard:
    if not isinstance(entry, dict):
        raise ValueError("is not an object with url and nsamples")
    check_location(base, entry["url"], elsewhere=elsewhere)
    sha256 = entry.get("sha256", "")
    if not isinstance(sha256, str) or not _DIGEST.fullmatch(sha256):
        raise ValueError(f"has the sha256 {_shown(sha256)}, which is not 64 hexadecimal digits")
    return Shard(
        entry["url"],
        _count(entry, "nsamples"),
        _count(entry, "filesize", -1),
        sha256,
        _count(entry, "tarsize", -1),
    )


def _count(entry: dict[str, Any], key: str, least: int = 0) -> int:
    value = entry[key] if least == 0 else entry.get(key, least)
    if type(value) is int and least <= value <= MOST:  # first, for the sake of hundreds of thousands
        return value
    if type(value) is int and value > MOST:
        raise ValueError(f"has the {key} {_shown(value)}, more than 64-bit numbers can count")
    raise ValueError(f"has the {key} {_shown(value)}, which is not a count")


def _name(value: Any) -> str:
    """Return a shard's name for a message: without credentials, short, and with control characters escaped once."""
    return _short(f"'{storage.shown(value)}'") if isinstance(value, str) else _shown(value)


def _shown(value: Any) -> str:
    """Return a value for a message: short, and without control characters."""
    return _short(ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
