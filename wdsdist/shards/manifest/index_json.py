"""Load, validate and serialize ``index.json``, the manifest on disk: a wids v1 index with own keys under ``"wdsdist"``.

It is written last and atomically: without ``index.json`` there is no data set.
"""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from wdsdist import storage
from wdsdist._util.files import read_file
from wdsdist.errors import ArgumentError, IndexFormatError, NotFoundError, StorageError
from wdsdist.shards.manifest.allowed_locations import ElsewhereError, check_base, check_location
from wdsdist.shards.manifest.manifest import Manifest
from wdsdist.shards.manifest.source import Shard

FILE_NAME = "index.json"
PACK_RECORD = ".wdsdist-pack.json"
"""Written beside the shards when packing begins: the jobs that write there, each with the number of shards that
``FILE_NAME`` lists before it, as ``"listed"``. Without ``FILE_NAME``, packing has not finished."""

DIGEST = "index_sha256"
"""Key of the digest of an ``index.json`` in itself: of its bytes, with `BLANK` in the digest's place."""
BLANK = "0" * 64

_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)

_MOST = (1 << 62) - 1
"""Most samples or bytes, of one shard or all."""

_SHOWN = 100  # letters of a name in a message
_DIGEST = re.compile(r"(?:[0-9a-fA-F]{64})?")

_KIND = "wids-shard-index-v1"
_VERSION = 1
"""The version of the notes."""

_WIDEST, _WIDER = 64 << 20, 16
"""Bytes that the names may take in memory, and the most as a multiple of the file's size beyond that."""


def file_name(name: str | None) -> str:
    """Return the name of the ``index.json`` of a data set; of the only one in its folder for ``None``.

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
    content = f"{json.dumps(data, indent=1)}\n".encode()
    blank, stated = (f'"{DIGEST}": "{digest}"'.encode() for digest in (BLANK, hashlib.sha256(content).hexdigest()))
    return content.replace(blank, stated, 1)


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
        storage_options: for its store and the stores of ``named``.
        deadline: by default 30 seconds after the first failure.
        named: other locations that the user named, whose stores get the options too.
        allow_elsewhere: let it name shards outside its own folder.

    Raises `NotFoundError` if the file does not exist, and `IndexFormatError` if it is not a wids v1 index, contradicts
    itself, or has an entry that cannot be right.
    """
    options = storage.named(storage_options, [location, *named]) if storage_options else None

    def parse(content: bytes) -> Manifest:
        return _parsed(content, location, options, allow_elsewhere=allow_elsewhere)

    try:
        if storage.is_remote(location):
            from wdsdist.shards.manifest import remote_index_json

            return remote_index_json.load(location, options, deadline, parse)
        return parse(read_file(storage.local_path(location)))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"{storage.shown(location)} does not exist") from error
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{location} cannot be read: {error.strerror or error}") from error


def _parsed(
    content: bytes, location: str, options: storage.StorageOptions | None, *, allow_elsewhere: bool
) -> Manifest:
    try:
        data = json.loads(content)
        if not isinstance(data, dict):
            raise ValueError(f"it is {_shown(data)}, not an object")
        if data["wids_version"] != 1:
            raise ValueError(f"wids_version is {_shown(data['wids_version'])}")
        folder = storage.split(location)[0]
        try:
            base, shards = _entries(data, folder)
        except ElsewhereError:
            if not allow_elsewhere:
                raise
            base, shards = _entries(data, folder, elsewhere=True)
        extra = _notes(data.get("wdsdist", {}))
        _check_sums(extra, shards, len(content))
        extra.pop("num_samples", None)
        return Manifest.of(
            base,
            shards,
            name=str(data.get("name", "")),
            extra=extra,
            storage_options={} if options is None else dict(options.given),
            stores=None if options is None else options.stores,
            origin=location,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        # Alone: what json raises keeps the whole document, in which there may be signed URLs.
        storage.raise_alone(_refused(location, error))


def _refused(location: str, error: Exception) -> IndexFormatError:
    """Return the error for an invalid index, with what to do about it."""
    where = storage.shown(location)
    if isinstance(error, ElsewhereError):
        return IndexFormatError(
            f"{where}: {error}, and a data set may name only relative paths in its own folder: if you know where it "
            f"leads and want that, open it with allow_elsewhere=True",
        )
    reason = f"no {error}" if isinstance(error, KeyError) else error
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError, RecursionError)):
        reason = f"no JSON: {error}"
    return IndexFormatError(f"{where} is not a wids v1 index ({reason}): make it again with `wdsdist index`")


def _entries(data: dict[str, Any], folder: str, *, elsewhere: bool = False) -> tuple[str, list[Shard]]:
    """Return the folder or URL that shards are relative to, and the shards.

    They may lie outside the ``folder`` of the ``index.json`` if ``elsewhere`` says so. Raises ``ValueError`` for the
    first invalid entry, `ElsewhereError` if it lies elsewhere.
    """
    listed = data["shardlist"]
    if not isinstance(listed, list):
        raise ValueError(f"shardlist is {_shown(listed)}, not a list")
    try:
        base = check_base(folder, data.get("base"), elsewhere=elsewhere)
    except ValueError as error:
        raise type(error)(f"its base, {_name(data['base'])}, {error}") from None
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
            kind = ElsewhereError if isinstance(error, ElsewhereError) else ValueError
            reason = f"has no {error}" if isinstance(error, KeyError) else error
            raise kind(f"entry {number}, {name}, {reason}") from None
        shards.append(shard)
    return base, shards


def _shard(entry: Any, base: str, elsewhere: bool) -> Shard:
    if not isinstance(entry, dict):
        raise ValueError("is not an object with url and nsamples")
    check_location(base, entry["url"], elsewhere=elsewhere)
    sha256 = entry.get("sha256", "")
    if not isinstance(sha256, str) or not _DIGEST.fullmatch(sha256):
        raise ValueError(f"has the sha256 {_shown(sha256)}, which is not 64 hexadecimal digits")
    counts = (_count(key, entry.get(key, -1), least) for key, least in (("filesize", -1), ("tarsize", -1)))
    return Shard(entry["url"], _count("nsamples", entry["nsamples"], 0), next(counts), sha256, next(counts))


def _count(key: str, value: Any, least: int) -> int:
    if type(value) is int and least <= value <= _MOST:  # first, for the sake of hundreds of thousands
        return value
    what = "more than 64-bit numbers can count" if type(value) is int and value > _MOST else "which is not a count"
    raise ValueError(f"has the {key} {_shown(value)}, {what}")


def _check_sums(notes: dict[str, Any], shards: list[Shard], length: int) -> None:
    """Raise ``ValueError`` if the entries of an index of so many bytes disagree with its notes, or are too large."""
    stated, found = notes.get("num_samples"), sum(shard.num_samples for shard in shards)
    if stated is not None and stated != found:
        raise ValueError(f"it promises {stated:,} samples and lists {found:,}")
    if found > _MOST or sum(max(shard.size, 0) + max(shard.tar_size, 0) for shard in shards) > _MOST:
        raise OverflowError("it lists more than 64-bit numbers can count")
    lengths = notes.get("generations")
    if lengths is not None and (sorted(set(lengths)) != lengths or lengths[-1:] != [len(shards)]):
        raise ValueError(f"its generations end with {reprlib.repr(lengths)} shards, and it lists {len(shards):,}")
    longest = max((len(shard.name) for shard in shards), default=0)
    if longest * len(shards) > max(_WIDEST, _WIDER * length):  # the array of names is as wide as the longest
        raise ValueError(f"one of its {len(shards):,} names has {longest:,} letters")


def _notes(found: Any) -> dict[str, Any]:
    """Return the packer's notes but for the version and the digest.

    Raises ``ValueError`` if they are of another version, or one has another type than wdsdist writes.
    """
    if not isinstance(found, dict):
        raise ValueError(f"its notes are {reprlib.repr(found)}, not an object")
    if found.get("version", _VERSION) != _VERSION:
        raise ValueError(
            f"its notes are of version {reprlib.repr(found['version'])}, and this wdsdist reads version {_VERSION}"
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


_NOTED: tuple[tuple[set[str], Callable[[Any], bool], str], ...] = (
    ({"classes", "fields", "appended"}, _are_names, "a list of names"),
    ({"num_samples", "payload_bytes", "with_checksums", "left_out", "renamed_keys", "scattered"}, _is_count, "a count"),
    ({"on_error"}, lambda value: isinstance(value, str), "a string"),
    ({"generations"}, lambda value: isinstance(value, list) and all(map(_is_count, value)), "a list of counts"),
    ({"skipped"}, lambda value: isinstance(value, dict) and all(map(_is_count, value.values())), "an object of counts"),
    ({"columns"}, lambda value: isinstance(value, dict) and _are_names(list(value.values())), "an object of names"),
    # A regular expression of somebody else could run without end: only the user gives one, to `index`.
    ({"key_rule", "source_key_rule"}, lambda value: isinstance(value, str), "a key rule"),
)
"""Notes that wdsdist reads, with their checks; others are free."""


def _name(value: Any) -> str:
    """Return a shard's name for a message: without credentials, short, and with control characters escaped once."""
    return _short(f"'{storage.shown(value)}'") if isinstance(value, str) else _shown(value)


def _shown(value: Any) -> str:
    """Return a value for a message: short, and without control characters."""
    return _short(ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
