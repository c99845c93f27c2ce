"""The index of one shard: where each member of each sample lies in its tar, as arrays that load by mmap.

On disk it stands beside the shard as ``NAME.tar.wdsindex``: a preamble (magic, version, length of the header, CRC-32
of that length and all that follows), a JSON header, then little-endian arrays on 64-byte boundaries. Nothing is
parsed per sample.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist.errors import IndexFormatError, ShardDamagedError
from wdsdist.permutation import Int64s
from wdsdist.tarformat import Members, group, split_name

SUFFIX = ".wdsindex"

_MAGIC = b"wdsindex"
_VERSION = 1
_PREAMBLE = struct.Struct("<8sIIII")  # magic, version, header length, CRC-32 of the rest, zero
_ALIGNMENT = 64
_ARRAYS = {
    "sample_starts": "<i8",
    "offsets": "<i8",
    "sizes": "<i8",
    "extension_ids": "<u4",
    "key_starts": "<i8",
    "key_bytes": "|u1",
}


def beside(tar: Path) -> Path:
    """Return the path of the index that stands beside a tar.

    >>> beside(Path("/data/00.tar")).name
    '00.tar.wdsindex'
    """
    return tar.with_name(tar.name + SUFFIX)


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Samples and members of one shard; ``n`` samples with ``m`` members in all."""

    size: int
    """Bytes of the tar."""
    sha256: str
    """Digest of the tar, hexadecimal."""
    extensions: tuple[str, ...]
    """Each extension that occurs, as stored."""
    sample_starts: Int64s
    """int64 [n + 1]: the first member of each sample, and ``m``."""
    offsets: Int64s
    """int64 [m]: where each member's data starts in the tar."""
    sizes: Int64s
    """int64 [m]: bytes of each member's data."""
    extension_ids: npt.NDArray[np.uint32]
    """uint32 [m]: each member's place in ``extensions``."""
    key_starts: Int64s
    """int64 [n + 1]: where each sample's key starts in ``key_bytes``."""
    key_bytes: npt.NDArray[np.uint8]
    """uint8: all keys, UTF-8, one after another."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Entries of the tar that belong to no sample, counted by what they are."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Samples that packing was to write but could not, as (key, reason)."""

    @property
    def num_samples(self) -> int:
        return len(self.sample_starts) - 1

    @property
    def is_uniform(self) -> bool:
        """Whether all samples have members of the same extensions in the same order; false where there is none."""
        members, rest = divmod(len(self.offsets), max(self.num_samples, 1))
        if rest or not members:
            return False
        ids = self.extension_ids.reshape(-1, members)
        return bool((np.diff(self.sample_starts) == members).all() and (ids == ids[0]).all())

    def key(self, sample: int) -> str:
        """Return the key of a sample."""
        start, stop = self.key_starts[sample : sample + 2]
        return self.key_bytes[start:stop].tobytes().decode("utf-8", "surrogateescape")

    def members(self, sample: int) -> list[tuple[str, int, int]]:
        """Return the members of a sample as (extension, offset, size)."""
        start, stop = self.sample_starts[sample : sample + 2]
        return [
            (self.extensions[self.extension_ids[m]], int(self.offsets[m]), int(self.sizes[m]))
            for m in range(start, stop)
        ]


class ShardIndexBuilder:
    """Collects the members of a shard, in file order, and checks that they form samples.

    Raises `ShardDamagedError` from `add` for what would lose or mix samples: an extension that occurs twice in a
    sample, a sample whose members are not adjacent, a member named like an entry that readers add themselves.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._extensions: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._starts: list[int] = []
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._ids: list[int] = []
        self._current: set[str] = set()
        self._key: str | None = None

    def add(self, key: str, extension: str, offset: int, size: int) -> None:
        """Add the next member."""
        if key != self._key:
            if key in self._keys:
                raise ShardDamagedError(
                    f"{self._label}: the members of sample {key!r} are not adjacent: pack the shard anew"
                )
            self._keys[key] = len(self._starts)
            self._starts.append(len(self._offsets))
            self._key, self._current = key, set()
        lower = extension.lower()
        if lower in self._current:
            raise ShardDamagedError(f"{self._label}: sample {key!r} has two members with extension {lower!r}")
        if lower.startswith("__") and lower.endswith("__"):
            raise ShardDamagedError(
                f"{self._label}: member {key}.{extension} has the name of an entry that readers add: rename it"
            )
        self._current.add(lower)
        self._offsets.append(offset)
        self._sizes.append(size)
        self._ids.append(self._extensions.setdefault(extension, len(self._extensions)))

    def finish(self, *, size: int, sha256: str, skipped: dict[str, int] | None = None) -> ShardIndex:
        """Return the index, given the size and digest of the whole tar."""
        return ShardIndex(
            size=size,
            sha256=sha256,
            extensions=tuple(self._extensions),
            sample_starts=np.array([*self._starts, len(self._offsets)], np.int64),
            offsets=np.array(self._offsets, np.int64),
            sizes=np.array(self._sizes, np.int64),
            extension_ids=np.array(self._ids, np.uint32),
            skipped=dict(skipped or {}),
            **_key_arrays([key.encode("utf-8", "surrogateescape") for key in self._keys]),
        )


def _key_arrays(keys: list[bytes]) -> dict[str, Any]:
    return {
        "key_starts": np.append(0, np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)))),
        "key_bytes": np.frombuffer(b"".join(keys), np.uint8),
    }


def from_members(members: Members, *, size: int, sha256: str, label: str) -> ShardIndex:
    """Return the index of a tar whose members were scanned; ``label`` names it in errors."""
    samples = group(members.names)
    if samples is not None:
        return ShardIndex(
            size=size,
            sha256=sha256,
            extensions=samples.extensions,
            sample_starts=samples.starts,
            offsets=members.offsets,
            sizes=members.sizes,
            extension_ids=samples.extension_ids,
            skipped=dict(members.skipped),
            **_key_arrays(samples.keys),
        )
    builder = ShardIndexBuilder(label)
    skipped = dict(members.skipped)
    for name, offset, length in zip(members.names, members.offsets.tolist(), members.sizes.tolist(), strict=True):
        parts = split_name(name)
        if parts is None:
            skipped["name without a key and an extension"] = skipped.get("name without a key and an extension", 0) + 1
        else:
            builder.add(*parts, offset, length)
    return builder.finish(size=size, sha256=sha256, skipped=skipped)


def dumps(index: ShardIndex) -> bytes:
    """Return the bytes of an index file: the same index always gives the same bytes."""
    arrays: dict[str, tuple[int, int]] = {}
    data = bytearray()
    for name, dtype in _ARRAYS.items():
        data += bytes(-len(data) % _ALIGNMENT)
        array = getattr(index, name).astype(dtype)
        arrays[name] = (len(data), len(array))
        data += array.tobytes()
    header = json.dumps(
        {
            "size": index.size,
            "sha256": index.sha256,
            "extensions": index.extensions,
            "skipped": index.skipped,
            **({"left_out": index.left_out} if index.left_out else {}),
            "arrays": arrays,
        },
        ensure_ascii=True,
    ).encode()
    header += b" " * (-(_PREAMBLE.size + len(header)) % _ALIGNMENT)
    rest = header + data
    return _PREAMBLE.pack(_MAGIC, _VERSION, len(header), _checksum(len(header), rest), 0) + rest


def load(path: Path) -> ShardIndex:
    """Return the index in a file; its arrays are views of the mapped file.

    Raises ``FileNotFoundError`` where there is none and `IndexFormatError` where it is damaged.
    """
    with path.open("rb") as stream:
        try:
            content = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:  # an empty file cannot be mapped
            content = memoryview(b"")
    return loads(content, str(path))


def loads(content: bytes | memoryview, label: str) -> ShardIndex:
    """Return the index in the bytes of a file, which its arrays are views of; ``label`` names it in errors."""
    content = memoryview(content)
    try:
        magic, version, length, crc, _ = _PREAMBLE.unpack_from(content)
        rest = content[_PREAMBLE.size :]
        if magic != _MAGIC or version != _VERSION or _checksum(length, rest) != crc:
            raise ValueError(f"magic {magic!r}, version {version}, checksum {'wrong' if magic == _MAGIC else 'unread'}")
        index = _parsed(json.loads(bytes(rest[:length])), rest[length:])
        _check(index)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise IndexFormatError(
            f"{label} is not a shard index of version {_VERSION} ({reason}): delete it and run `wdsdist index` again"
        ) from error
    return index


def _parsed(header: dict[str, Any], data: memoryview) -> ShardIndex:
    arrays: dict[str, Any] = {}
    for name, dtype in _ARRAYS.items():
        start, count = header["arrays"][name]
        if not (type(start) is type(count) is int and start >= 0 <= count):  # -1 would mean all that is left
            raise ValueError(f"{name} has {count!r} items from byte {start!r} on")
        arrays[name] = np.frombuffer(data, dtype, count, start) if count else np.zeros(0, dtype)
    extensions, skipped = header["extensions"], header["skipped"]
    if not all(isinstance(extension, str) for extension in extensions) or not isinstance(extensions, list):
        raise ValueError("extensions are no list of texts")
    if not isinstance(header["size"], int) or not isinstance(header["sha256"], str) or not isinstance(skipped, dict):
        raise ValueError("size, digest or skipped are not of their types")
    return ShardIndex(
        size=header["size"],
        sha256=header["sha256"],
        extensions=tuple(extensions),
        skipped=skipped,
        left_out=tuple((str(key), str(reason)) for key, reason in header.get("left_out", ())),
        **arrays,
    )


def _check(index: ShardIndex) -> None:
    """Raise ``ValueError`` where the parts of an index do not fit together, so that no reader steps out of them."""
    samples, members = len(index.sample_starts) - 1, len(index.offsets)
    for what, fits in (
        ("lengths", len(index.sizes) == len(index.extension_ids) == members and len(index.key_starts) == samples + 1),
        ("samples", _is_divided(index.sample_starts, members) and bool((np.diff(index.sample_starts) > 0).all())),
        ("keys", _is_divided(index.key_starts, len(index.key_bytes))),
        ("extensions", not members or int(index.extension_ids.max()) < len(index.extensions)),
        ("members", not members or min(int(index.offsets.min()), int(index.sizes.min())) >= 0),
        ("ends", not members or bool((index.offsets <= index.size - index.sizes).all())),
    ):
        if not fits:
            raise ValueError(f"its {what} do not fit together")


def _is_divided(starts: Int64s, total: int) -> bool:
    """Say whether starts, with the end as the last, divide a line of some length."""
    return len(starts) > 0 and starts[0] == 0 and starts[-1] == total and bool((np.diff(starts) >= 0).all())


def _checksum(header_length: int, rest: bytes | bytearray | memoryview) -> int:
    # The header ends in spaces: a wrong length could still give a header, and shift every array behind it.
    return zlib.crc32(rest, header_length)
