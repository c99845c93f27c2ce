"""The manifest of a data set: which shards it has, with their sample counts, sizes and digests.

On disk it is ``index.json``, a valid wids v1 index with keys of our own under ``"wdsdist"``. It is written last and
atomically: where there is no ``index.json`` there is no data set.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage, tarformat
from wdsdist.errors import ArgumentError, IndexFormatError, IndexNotFoundError
from wdsdist.memory import SharedCopy, is_spawning
from wdsdist.permutation import Int64s
from wdsdist.shardindex import ShardIndex

FILE_NAME = "index.json"

_KIND = "wids-shard-index-v1"
_NOTES_ON_ALL = ("payload_bytes", "skipped", "left_out")  # totals, wrong for a part of the shards

_WIDEST, _WIDER = 64 << 20, 16
"""Bytes that the names may take when loaded, and how many times the file they may take beyond that."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a data set."""

    name: str
    """Its path relative to the manifest, or a location of its own."""
    num_samples: int
    size: int
    """Bytes; -1 where the manifest does not say."""
    sha256: str
    """Hexadecimal digest; empty where the manifest does not say."""
    tar_size: int = -1
    """Bytes of the tar in it, where it is compressed and the manifest says; else -1."""

    @classmethod
    def of(cls, name: str, index: ShardIndex) -> Shard:
        """Return the shard that an index describes."""
        file = index.file
        return cls(name, index.num_samples, file.size, file.sha256, index.size if index.stored else -1)

    @property
    def is_compressed(self) -> bool:
        """Whether it has to be decompressed before it is read, as its name says."""
        return tarformat.is_compressed(storage.split(self.name)[1])


@dataclass(frozen=True, eq=False)
class Manifest:
    """All shards of a data set, in order. Make one with `wdsdist.open`, `wdsdist.index` or `wdsdist.pack`.

    The figures live in arrays, so that a hundred thousand shards cost a few megabytes and are shared by processes
    after a fork.
    """

    base: str
    """The folder or URL that shard names are relative to."""
    names: npt.NDArray[np.bytes_]
    counts: Int64s
    """int64 [shards]: samples in each."""
    sizes: Int64s
    """int64 [shards]: bytes of each, -1 where unknown."""
    digests: npt.NDArray[np.bytes_]
    """SHA-256 of each, hexadecimal, empty where unknown."""
    tar_sizes: Int64s
    """int64 [shards]: bytes of the tar in each that is compressed, as far as known; else -1."""
    name: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    """What the packer noted, such as ``classes`` and ``source``."""
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    """Passed to fsspec; kept out of every message, for they may hold credentials."""

    @classmethod
    def of(cls, base: str, shards: Iterable[Shard], **more: Any) -> Manifest:
        """Make a manifest of shards in the given order."""
        listed = list(shards)
        return cls(
            base=base,
            names=np.array([_encoded(shard.name) for shard in listed], np.bytes_),
            counts=np.array([shard.num_samples for shard in listed], np.int64),
            sizes=np.array([shard.size for shard in listed], np.int64),
            digests=np.array([shard.sha256.encode() for shard in listed], np.bytes_),
            tar_sizes=np.array([shard.tar_size for shard in listed], np.int64),
            **more,
        )

    @property
    def num_samples(self) -> int:
        """Samples in all shards."""
        return int(self.counts.sum())

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards whose size is known."""
        return int(self.sizes[self.sizes > 0].sum())

    @property
    def num_tar_bytes(self) -> int:
        """Bytes of all tars, decompressed where they are compressed, as far as known."""
        return int(np.maximum(self.sizes, self.tar_sizes).clip(0).sum())

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards, in order."""
        return tuple(self.shard(number) for number in range(len(self.counts)))

    def shard(self, number: int) -> Shard:
        """Return one shard."""
        return Shard(
            self.names[number].decode(),
            int(self.counts[number]),
            int(self.sizes[number]),
            self.digests[number].decode(),
            int(self.tar_sizes[number]),
        )

    def location(self, number: int) -> str:
        """Return the path or URL of one shard."""
        return storage.join(self.base, self.names[number].decode())

    def part(self, number: int) -> tuple[Manifest, int]:
        """Return the manifest that first listed a shard, and its number there: another where data sets are joined."""
        return self, number

    def label(self, number: int) -> str:
        """Return the name of the data set that a shard came from where data sets are joined; else nothing."""
        return ""

    @property
    def fingerprint(self) -> str:
        """A digest of what the data set holds, whatever folder or store it lies in.

        Two manifests agree when their shards have the same file names, sample counts, sizes and digests in the same
        order.
        """
        state = hashlib.sha256()
        for shard in self.shards:
            name = storage.split(shard.name)[1]
            state.update(f"{name}\0{shard.num_samples}\0{shard.size}\0{shard.sha256}\n".encode())
        return state.hexdigest()[:32]

    def select(self, numbers: Iterable[int]) -> Manifest:
        """Return the manifest of some of the shards."""
        chosen = np.fromiter(numbers, np.int64)
        return Manifest(
            self.base,
            self.names[chosen],
            self.counts[chosen],
            self.sizes[chosen],
            self.digests[chosen],
            self.tar_sizes[chosen],
            self.name,
            {name: note for name, note in self.extra.items() if name not in _NOTES_ON_ALL},
            self.storage_options,
        )

    @functools.cached_property
    def _shared(self) -> SharedCopy:
        return SharedCopy(self._values())

    def _values(self) -> dict[str, Any]:
        """Return what a copy in another process is made of."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def _restored(cls, values: dict[str, Any]) -> Manifest:
        return cls(**values)

    def __reduce__(self) -> tuple[Any, ...]:
        if is_spawning():  # by value, the pipe to each worker would carry megabytes, one worker after another
            return _arrived, (type(self), self._shared)
        return _restored, (type(self), self._values())

    def __repr__(self) -> str:
        return (
            f"Manifest({storage.shown(self.base)!r}: {self.num_samples:,} samples in {len(self.counts):,} shards, "
            f"{self.num_bytes:,} bytes)"
        )


def _arrived(kind: type[Manifest], shared: SharedCopy) -> Manifest:
    return kind._restored(shared.value())


def _restored(kind: type[Manifest], values: dict[str, Any]) -> Manifest:
    return kind._restored(values)


def dumps(manifest: Manifest) -> bytes:
    """Return the bytes of ``index.json``: the same manifest always gives the same bytes."""
    listed = []
    for shard in manifest.shards:
        entry: dict[str, Any] = {"url": shard.name, "nsamples": shard.num_samples}
        if shard.size >= 0:
            entry["filesize"] = shard.size
        if shard.sha256:
            entry["sha256"] = shard.sha256
        if shard.tar_size >= 0:
            entry["tarsize"] = shard.tar_size
        listed.append(entry)
    return (
        json.dumps(
            {
                "__kind__": _KIND,
                "wids_version": 1,
                "name": manifest.name,
                "shardlist": listed,
                "wdsdist": {"version": 1, "num_samples": manifest.num_samples, **manifest.extra},
            },
            indent=1,
        )
        + "\n"
    ).encode()


def save(manifest: Manifest, folder: Path) -> None:
    """Write ``index.json`` into a folder, whole or not at all."""
    with storage.atomic_write(folder / FILE_NAME) as stream:
        stream.write(dumps(manifest))


def load(location: str, storage_options: Mapping[str, Any] | None = None) -> Manifest:
    """Return the manifest in a JSON file.

    Raises `IndexNotFoundError` where there is none and `IndexFormatError` where it is no wids v1 index, or one that
    contradicts itself.
    """
    try:
        content = storage.read(location, storage_options)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise IndexNotFoundError(f"{storage.shown(location)} does not exist") from error
    try:
        data = json.loads(content)
        if data["wids_version"] != 1:
            raise ValueError(f"wids_version is {data['wids_version']!r}")
        shards = [
            Shard(
                _text(entry["url"]),
                _count(entry["nsamples"]),
                _count(entry.get("filesize", -1), -1),
                str(entry.get("sha256", "")),
                _count(entry.get("tarsize", -1), -1),
            )
            for entry in data["shardlist"]
        ]
        extra = dict(data.get("wdsdist", {}))
        extra.pop("version", None)
        stated = extra.pop("num_samples", None)
        found = sum(shard.num_samples for shard in shards)
        if stated is not None and stated != found:
            raise ValueError(f"it promises {stated:,} samples and lists {found:,}")
        if found >= 1 << 62 or sum(max(shard.size, 0) + max(shard.tar_size, 0) for shard in shards) >= 1 << 62:
            raise OverflowError("it lists more than 64-bit numbers can count")
        _check_widths(shards, len(content))
        base = str(data.get("base") or storage.split(location)[0])
        return Manifest.of(
            base, shards, name=str(data.get("name", "")), extra=extra, storage_options=dict(storage_options or {})
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise IndexFormatError(
            f"{storage.shown(location)} is not a wids v1 index ({reason}): make it anew with `wdsdist index`"
        ) from error


def _check_widths(shards: list[Shard], length: int) -> None:
    """Names are kept in an array as wide as the longest: one long name must not make it fill the memory."""
    longest = max((max(len(shard.name), len(shard.sha256)) for shard in shards), default=0)
    if longest * len(shards) > _WIDEST and longest * len(shards) > _WIDER * length:
        raise ValueError(f"one of its {len(shards):,} names has {longest:,} letters")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a path or URL")
    return value


def _encoded(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"the name of shard {name!r} is not UTF-8, which index.json asks for: rename it") from error


def _count(value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{value!r} is not a count")
    return value
