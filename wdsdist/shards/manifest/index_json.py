"""Load, validate and serialize ``index.json``, the manifest on disk: a wids v1 index with own keys under ``"wdsdist"``.

It is written last and atomically: without ``index.json`` there is no data set.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import reprlib
from collections.abc import Mapping
from typing import Any

from wdsdist import storage
from wdsdist.errors import ArgumentError, IndexFormatError, given
from wdsdist.shards.manifest.allowed_locations import ElsewhereError, check_location
from wdsdist.shards.manifest.listing import Shard
from wdsdist.shards.manifest.manifest import Manifest

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

_DIGEST = re.compile(r"(?:[0-9a-fA-F]{64})?")

_KIND = "wids-shard-index-v1"
_VERSION = 1
"""The version of the notes."""
_STATED = re.compile(rb'"%s": ?"([0-9a-f]{64})"' % DIGEST.encode())
_WIDEST, _WIDER = 64 << 20, 16
"""Bytes that the names may take in memory, and the most as a multiple of the file's size beyond that."""

_NOTES: dict[str, Any] = {
    **{name: [str] for name in ("classes", "fields")},
    **dict.fromkeys(("num_samples", "payload_bytes", "with_checksums", "left_out", "renamed_keys", "scattered"), int),
    "generations": [int],
    "skipped": {"": int},
    "columns": {"": str},
    # A regular expression of somebody else could run without end: only the user gives one, to `index`.
    **dict.fromkeys(("on_error", "key_rule", "source_key_rule"), str),
}
"""The types of the notes that wdsdist reads; others are free."""

_log = logging.getLogger("wdsdist")


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


def report_of(location: str) -> str:
    """Return the location of ``index-report.jsonl``, the skipped samples of `wdsdist.index`, beside an index.json."""
    return f"{location.removesuffix('.json')}-report.jsonl"


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
    allow_elsewhere: bool = False,
) -> Manifest:
    """Load a manifest from a JSON file, with retries after transient faults until the deadline.

    The locations that a data set names are validated here, and nowhere else: they may lie outside its own folder if
    ``allow_elsewhere`` says so. Options are for the store of the file, unless they are bound to others.

    Raises `NotFoundError` if the file does not exist, and `IndexFormatError` if it is not a wids v1 index, contradicts
    itself, or has an entry that cannot be right.
    """
    options = storage.named(storage_options, [location]) if storage_options else None

    def parse(content: bytes, is_final: bool) -> Manifest:
        manifest = _parsed(content, location, options, allow_elsewhere=allow_elsewhere)
        if not storage.is_remote(location):
            return manifest
        stated = _STATED.search(content)
        blanked = b"" if stated is None else content[: stated.start(1)] + BLANK.encode() + content[stated.end(1) :]
        if stated is not None and hashlib.sha256(blanked).hexdigest().encode() != stated[1]:
            reason = f"{storage.shown(location)} does not have the digest that it states"
            if not is_final:
                raise IndexFormatError(reason)
            _log.warning("%s: was it edited?", reason)
        return manifest.with_source(version=hashlib.sha256(content).hexdigest())

    return storage.read_until(location, parse, options, deadline=deadline)


def _parsed(
    content: bytes, location: str, options: storage.StorageOptions | None, *, allow_elsewhere: bool
) -> Manifest:
    where = storage.shown(location)
    try:
        data = json.loads(content)
        if not isinstance(data, dict):
            raise ValueError(f"it is {reprlib.repr(data)}, not an object")
        if data["wids_version"] != 1:
            raise ValueError(f"wids_version is {reprlib.repr(data['wids_version'])}")
        stated, base = data.get("base"), storage.split(location)[0]
        if stated not in (None, "", ".", base, f"{base}/"):
            stated = stated.rstrip("/") if isinstance(stated, str) else stated
            try:
                check_location(base, stated, elsewhere=allow_elsewhere)
            except ValueError as error:
                raise type(error)(f"its base, {_name(stated)}, {error}") from None
            base = storage.join(base, stated)
        shards = entries(data["shardlist"], base, elsewhere=allow_elsewhere)
        notes = data.get("wdsdist", {})
        _check_notes(notes, shards)
        longest = max((len(shard.name) for shard in shards), default=0)
        if longest * len(shards) > max(_WIDEST, _WIDER * len(content)):  # the array of names is as wide as the longest
            raise ValueError(f"one of its {len(shards):,} names has {longest:,} letters")
        extra = {name: note for name, note in notes.items() if name not in ("version", "num_samples", DIGEST)}
        name = str(data.get("name", ""))
        return Manifest.of(base, shards, name=name, extra=extra, client_options=options, origin=location)
    except ElsewhereError as error:
        refusal = IndexFormatError(
            f"{where}: {error}, and a data set may name only relative paths in its own folder: if you know where it "
            f"leads and want that, open it with {given('allow_elsewhere', True)}"
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError, RecursionError)):
            reason = f"no JSON: {error}"
        refusal = IndexFormatError(f"{where} is not a wids v1 index ({reason}): make it again with `wdsdist index`")
    raise refusal  # outside the handlers: what json raises keeps the document, in which there may be signed URLs


def entries(listed: Any, base: str, *, elsewhere: bool = False) -> list[Shard]:
    """Return the shards of a ``shardlist``, which may lie outside the base if ``elsewhere`` says so.

    Raises ``ValueError`` for the first invalid entry, `ElsewhereError` if it lies elsewhere.
    """
    if not isinstance(listed, list):
        raise ValueError(f"shardlist is {reprlib.repr(listed)}, not a list")
    shards: list[Shard] = []
    numbers: dict[str, int] = {}
    for number, entry in enumerate(listed):
        try:
            if not isinstance(entry, dict):
                raise ValueError("is not an object with url and nsamples")
            check_location(base, entry["url"], elsewhere=elsewhere)
            sha256, count = entry.get("sha256", ""), entry["nsamples"]
            size, tar_size = entry.get("filesize", -1), entry.get("tarsize", -1)
            if not isinstance(sha256, str) or not _DIGEST.fullmatch(sha256):
                raise ValueError(f"has the sha256 {sha256!a:.100}, which is not 64 hexadecimal digits")
            for key, value, least in (("nsamples", count, 0), ("filesize", size, -1), ("tarsize", tar_size, -1)):
                if type(value) is not int or not least <= value <= _MOST:
                    raise ValueError(f"has the {key} {value!a:.100}, which is not a count")
            shard = Shard(entry["url"], count, size, sha256, tar_size)
            name = shard.name
            if "?" in name and storage.is_remote(storage.join(base, name)):
                name = name.partition("?")[0]  # the query may be a signature: what is kept of a shard lies without it
            first = numbers.setdefault(name, number)
            if first != number and shards[first] != shard:
                raise ValueError(f"says other than entry {first}, which has the same name before any query")
        except (ValueError, KeyError) as error:
            name = _name(entry.get("url") if isinstance(entry, dict) else entry)
            kind = ElsewhereError if isinstance(error, ElsewhereError) else ValueError
            reason = f"has no {error}" if isinstance(error, KeyError) else error
            raise kind(f"entry {number}, {name}, {reason}") from None
        shards.append(shard)
    return shards


def _check_notes(notes: Any, shards: list[Shard]) -> None:
    """Raise ``ValueError`` if notes have another version or type than wdsdist writes, or disagree with the shards."""
    if not isinstance(notes, dict):
        raise ValueError(f"its notes are {reprlib.repr(notes)}, not an object")
    if notes.get("version", _VERSION) != _VERSION:
        raise ValueError(
            f"its notes are of version {reprlib.repr(notes['version'])}, and this wdsdist reads version {_VERSION}"
        )
    for name in notes.keys() & _NOTES.keys():
        if not _is_of_type(notes[name], _NOTES[name]):
            raise ValueError(f"its note {name!r} is {reprlib.repr(notes[name])}, of another type")
    listed = sum(shard.num_samples for shard in shards)
    if notes.get("num_samples", listed) != listed:
        raise ValueError(f"it promises {notes['num_samples']:,} samples and lists {listed:,}")
    if listed > _MOST or sum(max(shard.size, 0) + max(shard.tar_size, 0) for shard in shards) > _MOST:
        raise OverflowError("it lists more than 64-bit numbers can count")
    lengths = notes.get("generations")
    if lengths is not None and (sorted(set(lengths)) != lengths or lengths[-1:] != [len(shards)]):
        raise ValueError(f"its generations end with {reprlib.repr(lengths)} shards, and it lists {len(shards):,}")


def _is_of_type(value: Any, kind: Any) -> bool:
    """Check the type of a note in index.json: a string, a count, or a list or object of these, as in ``kind``."""
    if isinstance(kind, list):
        return isinstance(value, list) and all(_is_of_type(item, kind[0]) for item in value)
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(_is_of_type(item, kind[""]) for item in value.values())
    return isinstance(value, str) if kind is str else type(value) is int and 0 <= value <= _MOST


def _name(value: Any) -> str:
    """Return a shard's name for a message: without credentials, short, and with control characters escaped once."""
    name = f"'{storage.shown(value)}'" if isinstance(value, str) else ascii(value)
    return name if len(name) <= 100 else f"{name[:100]}..."
