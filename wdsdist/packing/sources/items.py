"""What Python makes, as samples: the rules for keys and fields, checked before anything is written."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from wdsdist.errors import ArgumentTypeError, SourceError
from wdsdist.packing.sources.source import BrokenPayload, Encode, Payload, Sample
from wdsdist.samples.codecs import encode
from wdsdist.shards.tar import is_text, split_name

_DIGITS = 9
_NOTES = frozenset(("__url__", "__local_path__", "__shard__", "__shardindex__", "__index__"))
"""What readers of WebDataset shards add to samples to say where they come from."""


@dataclass(frozen=True, slots=True)
class ItemEncoder:
    """Turns the items of one source into samples.

    >>> ItemEncoder.of("photos", None)({"cls": 3, "jpg": b"..."}, 5)
    ('000000005', [('cls', b'3'), ('jpg', b'...')])
    >>> ItemEncoder.of("photos", lambda item: {"__key__": f"a/{item[1]}", "txt": item[0]})(("hello", 7), 5)
    ('a/7', [('txt', b'hello')])
    """

    source: str
    """Its name, for messages."""
    function: Encode | None
    wants_number: bool

    @classmethod
    def of(cls, source: str, function: Encode | None) -> ItemEncoder:
        """Make an encoder; ``function`` gets an item's number too if it has a second parameter that asks for one.

        Raises `ArgumentTypeError` for what is no function.
        """
        if function is not None and not callable(function):
            raise ArgumentTypeError(f"encode is {function!r}: it must be a function from an item to a sample dict")
        return cls(source, function, function is not None and _wants_number(function))

    def __call__(self, item: Any, number: int) -> Sample:
        """Return the sample of one item, its members by extension.

        Raises `SourceError` with the item's number for what can be no sample.
        """
        fields = self._fields(item, number)
        key = self._key(fields.get("__key__", numbered(number)), number)
        members: list[tuple[str, Payload]] = []
        seen: dict[str, str] = {}
        for field, value in fields.items():
            if field == "__key__" or field in _NOTES:
                continue
            reason = _wrong_field(key, field) or _clash(field, seen)
            if reason:
                raise self._error(number, key, reason)
            try:
                members.append((field, encode(field, value)))
            except Exception as error:  # also what Pillow and others raise; one sort leaves here
                raise self._error(number, key, f"{error}") from error
        if not members:
            raise self._error(number, key, "it has no members, so that readers would miss it: leave it out")
        return key, sorted(members)

    def _fields(self, item: Any, number: int) -> Mapping[str, Any]:
        who = f"item {number:,} of {self.source}"
        if self.function is None:
            if not isinstance(item, Mapping):
                raise SourceError(
                    f'{who} is a {type(item).__name__}, not a sample such as {{"jpg": ..., "cls": 3}}: give encode=, '
                    f"a function that makes one of it"
                )
            return item
        try:
            fields = self.function(item, number) if self.wants_number else self.function(item)
        except Exception as error:
            raise SourceError(f"encode failed on {who}: {type(error).__name__}: {error}") from error
        if not isinstance(fields, Mapping):
            raise SourceError(f"encode returned a {type(fields).__name__} for {who}: it must return a dict of members")
        return fields

    def _key(self, key: Any, number: int) -> str:
        reason = _wrong_key(key)
        if reason:
            raise self._error(number, key, reason)
        return str(key).removeprefix("./")

    def _error(self, number: int, key: Any, reason: str) -> SourceError:
        return SourceError(f"sample {number:,} of {self.source} (key {key!r}) cannot be packed: {reason}")


def broken(key: str, error: SourceError) -> Sample:
    """Return what stands for a sample that is to be left out, with the reason.

    >>> broken("000000007", SourceError("item 7 cannot be had"))
    ('000000007', [('broken', BrokenPayload(reason='item 7 cannot be had', size=0))])
    """
    return key, [("broken", BrokenPayload(str(error)))]


def numbered(number: int) -> str:
    """Return the key of a sample that has none of its own."""
    return f"{number:0{_DIGITS}d}"


def refuse_again(key: str, seen: set[str], source: str) -> None:
    """Note a key, and raise `SourceError` where the shard, or the sample before, has it already.

    Neighbours with one key would be read as one sample.
    """
    if key in seen:
        raise SourceError(f"{source} gives key {key!r} twice: readers could not tell the two samples apart")
    seen.add(key)


def digest(kind: str, length: int | None, samples: Iterable[Sample]) -> str:
    """Digest what is known of a source beforehand: its length, if it has one, and the bytes of some samples."""
    state = hashlib.sha256(f"{kind}\0{length}\n".encode())
    for key, members in samples:
        for extension, data in members:
            # Items are encoded when they are taken; one that could not be has no bytes.
            content = data if isinstance(data, bytes) else b""
            state.update(f"{key}.{extension}\0{len(content)}\n".encode())
            state.update(content)
    return state.hexdigest()


def _wants_number(function: Encode) -> bool:
    """Say whether the second positional parameter is for the number: it has no default, or it is called index."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C do not tell
        return False
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].default is inspect.Parameter.empty or positional[1].name == "index")


def _wrong_key(key: Any) -> str | None:
    """Say why something can be no key; any other becomes the path of files when the tar is unpacked."""
    if not isinstance(key, str):
        return f"a key is a str, not a {type(key).__name__}"
    parts = key.removeprefix("./").split("/")
    if not key or "" in parts:
        return "a key must not be empty, start or end with a slash, or hold two in a row"
    if ".." in parts or "." in parts:
        return "a key must not lead out of its folder"
    if "." in parts[-1]:
        return "a key must not have a dot in its last part: readers would cut it there"
    if "\n" in key or "\0" in key:
        return "a key must not hold a line break or a NUL"
    if not is_text(key):
        return "a key must be valid Unicode"
    if split_name(f"{key}.x") is None:
        return "a part of a key must not be named like __this__: readers pass it over"
    return None


def _wrong_field(key: str, field: Any) -> str | None:
    """Say why something can be no field, or nothing where readers will find it as it is."""
    if not isinstance(field, str):
        return f"field {field!r} is no str"
    if field.startswith("__") and field.endswith("__"):
        return f"field {field!r} has the name of an entry that readers add: rename it"
    if field.startswith("."):
        return f"field {field!r} starts with a dot: give the extension alone"
    if not is_text(field) or "\0" in field or split_name(f"{key}.{field}") != (key, field):
        return f"field {field!r} can be no extension: it must not be empty or hold a slash, a line break or a NUL"
    return None


def _clash(field: str, seen: dict[str, str]) -> str | None:
    other = seen.setdefault(field.lower(), field)
    return None if other is field else f"fields {other!r} and {field!r} differ in case only: readers take both for one"
