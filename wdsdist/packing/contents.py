"""What a shard holds: which of its samples can be stored, and where they then lie."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from wdsdist.errors import SourceError
from wdsdist.permutation import Int64s
from wdsdist.shardindex import ShardIndex
from wdsdist.sources import OnError, Payload, Sample, Samples
from wdsdist.tarformat import BLOCK, header, is_plain, split_name

_LONGEST_NAME = 4095  # bytes: the longest path that Linux takes, so no tool could unpack a longer one
_SUSPECT = re.compile(r"[.\n]|__|/$|^/|^$")  # what a key holds that a reader might cut elsewhere


class Entry(NamedTuple):
    """A sample that can be stored."""

    key: str
    kind: int
    """The number of its extensions, taken together."""
    names: list[str]
    payloads: list[Payload]
    sizes: list[int]
    headers: list[bytes]
    """Of each member; empty where it is a plain one."""
    stored: int
    """Bytes in the tar."""


class Contents:
    """Checks the samples of a shard before they are written, and notes where those lie that were."""

    def __init__(self, root: str, on_error: OnError) -> None:
        self._root = root + "/"
        self._on_error = on_error
        self._taken: set[str] = set()
        self._kinds: dict[tuple[str, ...], int] = {}
        self._keys: list[bytes] = []
        self._stored_kinds: list[int] = []
        self._offsets: list[Int64s] = []
        self._sizes: list[int] = []
        self._left_out: list[tuple[str, str]] = []

    def entries(self, samples: Samples) -> Iterator[Entry]:
        """Yield the samples that can be stored; raise `SourceError` for the first other one, or leave it out."""
        given = iter(samples)
        seen, lost = 0, None
        while True:
            try:
                sample = next(given)
            except StopIteration:
                break
            except SourceError as error:
                self.leave_out("", error)
                lost = error
            else:
                try:
                    entry = self._entry(sample)
                except SourceError as error:
                    self.leave_out(sample[0], error)
                else:
                    yield entry
            seen += 1
        # An iterator may go on after an error; a generator ends, and the samples after it would be lost in silence.
        if lost is not None and seen != len(samples):
            raise lost

    def leave_out(self, key: str, error: SourceError) -> None:
        """Raise what is wrong with a sample, or note it where such samples are left out."""
        if self._on_error == "raise":
            raise error
        self._left_out.append((key, str(error).replace(self._root, "")))

    def add(self, entries: Sequence[Entry], offsets: Int64s) -> None:
        """Note samples that were written, and where the data of their members starts."""
        for entry in entries:
            self._keys.append(entry.key.encode())
            self._stored_kinds.append(entry.kind)
            self._sizes += entry.sizes
        self._offsets.append(offsets)

    def index(self, *, size: int, sha256: str) -> ShardIndex:
        """Return the index of the shard, given the size and digest of its tar."""
        numbers: dict[str, int] = {}
        ids: dict[int, list[int]] = {}
        kinds = list(self._kinds)
        members: list[int] = []
        for kind in self._stored_kinds:
            if kind not in ids:
                ids[kind] = [numbers.setdefault(extension, len(numbers)) for extension in kinds[kind]]
            members += ids[kind]
        counts = np.array([len(kind) for kind in kinds], np.int64)[np.array(self._stored_kinds, np.int64)]
        return ShardIndex(
            size=size,
            sha256=sha256,
            extensions=tuple(numbers),
            sample_starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            offsets=np.concatenate([np.empty(0, np.int64), *self._offsets]),
            sizes=np.array(self._sizes, np.int64),
            extension_ids=np.array(members, np.uint32),
            key_starts=np.cumsum([0, *map(len, self._keys)], dtype=np.int64),
            key_bytes=np.frombuffer(b"".join(self._keys), np.uint8),
            left_out=tuple(self._left_out),
        )

    def _entry(self, sample: Sample) -> Entry:
        key, members = sample
        kind = self._kinds.get(tuple([extension for extension, _ in members]))
        if kind is None:
            kind = self._new_kind(key, tuple(extension for extension, _ in members))
        if _SUSPECT.search(key) and split_name(f"{key}.x") != (key, "x"):
            raise SourceError(
                f"sample {_short(key)} would be read back as another one: a key is a path whose last part is not "
                f"empty and has no dot; choose other keys"
            )
        names, payloads, sizes, headers, stored = [], [], [], [], 0
        for extension, payload in members:
            name = f"{key}.{extension}"
            size = len(payload) if isinstance(payload, bytes) else payload.size
            head = b"" if is_plain(name, size) else _header(name, size)
            names.append(name)
            payloads.append(payload)
            sizes.append(size)
            headers.append(head)
            stored += (len(head) or BLOCK) + size + -size % BLOCK
        if key in self._taken:
            raise SourceError(f"sample {_short(key)} is there twice: each needs a key of its own")
        self._taken.add(key)
        return Entry(key, kind, names, payloads, sizes, headers, stored)

    def _new_kind(self, key: str, extensions: tuple[str, ...]) -> int:
        """Number the extensions of a sample, once they are known to be told apart by readers."""
        seen: set[str] = set()
        for extension in extensions:
            lower = extension.lower()
            if lower in seen:
                raise SourceError(
                    f"sample {_short(key)} has two members {lower!r}, in capitals or not, which readers take for the "
                    f"same: rename one"
                )
            if split_name(f"x.{extension}") != ("x", extension) or (lower.startswith("__") and lower.endswith("__")):
                raise SourceError(
                    f"sample {_short(key)} has a member {extension!r}, which readers would not find: rename it"
                )
            seen.add(lower)
        if not extensions:
            raise SourceError(f"sample {_short(key)} has no member: a tar cannot hold it")
        return self._kinds.setdefault(extensions, len(self._kinds))


def _header(name: str, size: int) -> bytes:
    try:
        found = header(name, size)
    except ValueError as error:
        raise SourceError(f"{_short(name)} cannot be the name of a file in a tar: rename it") from error
    if len(name.encode()) > _LONGEST_NAME:
        raise SourceError(
            f"{_short(name)} is a name of {len(name.encode()):,} bytes, and a path has {_LONGEST_NAME:,} at most: "
            f"choose shorter keys"
        )
    return found


def _short(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:97]}...")
