"""Load, validate and serialize ``index.json``, the manifest on disk: a wids v1 index with own keys under ``"wdsdist"``.

It is written last and atomically: where there is no ``index.json`` there is no data set.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from wdsdist import storage
from wdsdist.errors import ArgumentError, IndexFormatError, NotFoundError
from wdsdist.shards.manifest import remote_index_json
from wdsdist.shards.manifest.allowed_locations import ElsewhereError, check_base, check_location
from wdsdist.shards.manifest.manifest import Manifest
from wdsdist.shards.manifest.remote_index_json import BLANK, DIGEST, with_digest
from wdsdist.shards.manifest.source import Shard

FILE_NAME = "index.json"
PACK_RECORD = ".wdsdist-pack.json"
"""Written beside the shards when packing begins: without ``FILE_NAME``, packing has not finished."""
APPEND_RECORD = ".wdsdist-append.json"
"""Written beside the shards when appending begins: the shards that the data set had before, under ``"shards"``."""

_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)

_MOST = (1 << 62) - 1
"""Most samples or bytes, of one shard or all."""

_SHOWN = 100  # letters of a name in a message
_DIGEST = re.compile(r"(?:[0-9a-fA-F]{64})?")

_KIND = "wids-shard-index-v1"
_VERSION = 1
"""Of the notes."""

_WIDEST, _WIDER = 64 << 20, 16
"""Bytes that the names may take in memory, and the most as a multiple of the file's size beyond that."""


def file_name(name: str | None) -> str:
    """Return the name of the file of a data set that shares its folder with others; that of the only one for ``None``.

    Raises `ArgumentError` for a name that would not do as a file's.

    >>> file_name("train"), file_name(None)
    ('index-train.json', 'index.json')
    """
    if name is None:
        return FILE_NAME
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ArgumentError(f"name is {name!r}: it must be 1 to 64 letters, digits, dots, dashes or underscores")
    return f"index-{name}.json"


def dumps(manifest: Manifest) -> bytes:
    """Serialize a manifest to the bytes of ``index.json``; the same manifest always gives the same bytes."""
    listed = []
    for shard in manifest.shards:
        known = {"filesize": shard.size, "sha256": shard.sha256, "tarsize": shard.tar_size}
        known = {name: value for name, value in known.items() if value not in (-1, "")}
        listed.append({"url": shard.name, "nsamples": shard.num_samples, **known})
    own = {"version": _VERSION, "num_samples": manifest.num_samples, DIGEST: BLANK, **manifest.extra}
    data = {"__kind__": _KIND, "wids_version": 1, "name": manifest.name, "shardlist": listed, "wdsdist": own}
    return with_digest(f"{json.dumps(data, indent=1)}\n".encode())


def load(
    location: str,
    storage_options: Mapping[str, Any] | storage.StorageOptions | None = None,
    deadline: storage.Deadline | None = None,
    *,
    named: Iterable[str] = (),
    allow_elsewhere: bool = False,
) -> Manifest:
    """Load a manifest from a JSON file, with retries after transient faults until the deadline.

    The locations that a data set names are validated here, and nowhere else.

    Args:
        location: path or URL of the file.
        storage_options: for its store and for those of ``named``.
        deadline: by default 30 seconds after the first failure.
        named: other locations that the user named, whose stores get the options too.
        allow_elsewhere: let it name shards outside its own folder.

    Raises `NotFoundError` if the file does not exist, and `IndexFormatError` if it is not a wids v1 index, contradicts
    itself, or has an entry that cannot be right.
    """
    options = storage.named(storage_options, [location, *named])

    def parse(content: bytes) -> Manifest:
        return _parsed(content, location, options, allow_elsewhere=allow_elsewhere)

    try:
        if storage.is_remote(location):
            return remote_index_json.load(location, options, deadline, parse)
        return parse(storage.read(location))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"{storage.shown(location)} does not exist") from error


def _parsed(content: bytes, location: str, options: storage.StorageOptions, *, allow_elsewhere: bool) -> Manifest:
    try:
        data = json.loads(content)
        if not isinstance(data, dict):
            raise ValueError(f"it is {_shown(data)}, not an object")
        if data["wids_version"] != 1:
            raise ValueError(f"wids_version is {_shown(data['wids_version'])}")
        folder, is_named = storage.split(location)[0], False
        try:
            base, shards = _entries(data, folder)
        except EntryElsewhereError:
            if not allow_elsewhere:
                raise
            is_named = True
            base, shards = _entries(data, folder, elsewhere=True)
        extra = _notes(data.get("wdsdist", {}))
        stated = extra.pop("num_samples", None)
        _check_generations(extra.get("generations"), len(shards))
        found = sum(shard.num_samples for shard in shards)
        if stated is not None and stated != found:
            raise ValueError(f"it promises {stated:,} samples and lists {found:,}")
        if found > _MOST or sum(max(shard.size, 0) + max(shard.tar_size, 0) for shard in shards) > _MOST:
            raise OverflowError("it lists more than 64-bit numbers can count")
        _check_widths(shards, len(content))
        return Manifest.of(
            base,
            shards,
            name=str(data.get("name", "")),
            extra=extra,
            storage_options=dict(options.given),
            stores=options.stores,
            is_named=is_named,
            origin=location,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        # Alone: what json raises keeps the whole document, in which there may be signed URLs.
        storage.raise_alone(_refused(location, error))


def _refused(location: str, error: Exception) -> IndexFormatError:
    """Return the error for an invalid index, with what to do about it."""
    where = storage.shown(location)
    if isinstance(error, EntryElsewhereError):
        return IndexFormatError(
            f"{where}: {error}, and a data set may name only relative paths in its own folder: if you know where it "
            f"leads and want that, open it with allow_elsewhere=True",
        )
    if isinstance(error, VersionError):
        return IndexFormatError(f"{where} {error}")
    reason = f"no {error}" if isinstance(error, KeyError) else error
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError, RecursionError)):
        reason = f"no JSON: {error}"
    return IndexFormatError(f"{where} is not a wids v1 index ({reason}): make it anew with `wdsdist index`")


def _notes(found: Any) -> dict[str, Any]:
    """Return the packer's notes but for the version and the digest.

    Raises `VersionError` where they are of another version, and `ValueError` where one has a type that none writes.
    """
    if not isinstance(found, dict):
        raise ValueError(f"its notes are {reprlib.repr(found)}, not an object")
    if found.get("version", _VERSION) != _VERSION:
        raise VersionError(
            f"has notes of version {reprlib.repr(found['version'])}, and this wdsdist knows version {_VERSION}: update "
            f"wdsdist, or make it anew with `wdsdist index`"
        )
    for names, is_sound, wanted in _NOTED:
        for name in names & found.keys():
            if not is_sound(found[name]):
                raise ValueError(f"its note {name!r} is {reprlib.repr(found[name])}, not {wanted}")
    return {name: note for name, note in found.items() if name not in ("version", DIGEST)}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _check_generations(lengths: list[int] | None, shards: int) -> None:
    """Raise ``ValueError`` where the numbers of shards of the generations do not lead to that of the list."""
    if lengths is not None and (sorted(set(lengths)) != lengths or lengths[-1:] != [shards]):
        raise ValueError(f"its generations end with {reprlib.repr(lengths)} shards, and it lists {shards:,}")


_NOTED: tuple[tuple[set[str], Callable[[Any], bool], str], ...] = (
    ({"classes", "fields", "appended"}, _are_names, "a list of names"),
    (
        {"num_samples", "payload_bytes", "with_checksums", "left_out", "excluded", "renamed_keys", "scattered"},
        _is_count,
        "a count",
    ),
    ({"mirrors", "on_error"}, lambda value: isinstance(value, str), "a text"),
    ({"generations"}, lambda value: isinstance(value, list) and all(map(_is_count, value)), "a list of counts"),
    ({"skipped"}, lambda value: isinstance(value, dict) and all(map(_is_count, value.values())), "an object of counts"),
    ({"columns"}, lambda value: isinstance(value, dict) and _are_names(list(value.values())), "an object of names"),
    # A regular expression of somebody else could take for ever: only the user gives one, to `index`.
    ({"key_rule", "source_key_rule"}, lambda value: isinstance(value, str), "a key rule"),
)
"""Notes that wdsdist reads, with their checks; others are free."""


def _check_widths(shards: list[Shard], length: int) -> None:
    """Raise ``ValueError`` for a name so long that the array of names, as wide as it, would fill the memory."""
    longest = max((len(shard.name) for shard in shards), default=0)
    if longest * len(shards) > _WIDEST and longest * len(shards) > _WIDER * length:
        raise ValueError(f"one of its {len(shards):,} names has {longest:,} letters")


class VersionError(ValueError):
    """The notes are of a version that is not known here, such as that of a newer wdsdist."""


class EntryError(ValueError):
    """An entry is invalid; the message has its number and name."""


class EntryElsewhereError(EntryError):
    """An entry lies outside the data set's folder, which only the user may allow."""


def _entries(data: dict[str, Any], folder: str, *, elsewhere: bool = False) -> tuple[str, list[Shard]]:
    """Parse the content of an ``index.json``: the folder or URL that shards are relative to, and the shards.

    They may lie outside the ``folder`` of the ``index.json`` where ``elsewhere`` says so. Raises `EntryError` for the
    first invalid entry.
    """
    listed = data["shardlist"]
    if not isinstance(listed, list):
        raise ValueError(f"shardlist is {_shown(listed)}, not a list")
    try:
        base = check_base(folder, data.get("base"), elsewhere=elsewhere)
    except ValueError as error:
        raise _entry_error(f"its base, {_name(data['base'])},", error) from None
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
            raise _entry_error(f"entry {number}, {name},", error) from None
        shards.append(shard)
    return base, shards


def _entry_error(what: str, error: ValueError | KeyError) -> EntryError:
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
        entry["url"], _count(entry, "nsamples"), _count(entry, "filesize", -1), sha256, _count(entry, "tarsize", -1)
    )


def _count(entry: dict[str, Any], key: str, least: int = 0) -> int:
    value = entry[key] if least == 0 else entry.get(key, least)
    if type(value) is int and least <= value <= _MOST:  # first, for the sake of hundreds of thousands
        return value
    if type(value) is int and value > _MOST:
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
