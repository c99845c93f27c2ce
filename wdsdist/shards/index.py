"""`ShardIndex`: the samples and members of one shard, as arrays, and its file (``.wdsindex``), which is mapped.

The file lies beside the shard, and nothing in it is parsed per sample.
"""

from __future__ import annotations

import functools
import operator
import reprlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s, runs
from wdsdist.errors import IndexFormatError
from wdsdist.shards import array_file
from wdsdist.shards.tar import FIRST_DOT
from wdsdist.storage.urls import login_of

SUFFIX = ".wdsindex"

_ARRAYS = {
    "sample_starts": "<i8",
    "offsets": "<i8",
    "sizes": "<i8",
    "extension_ids": "<u4",
    "key_starts": "<i8",
    "key_bytes": "|u1",
    "checksums": "<u4",
}
_REMEDY = "delete it and run `wdsdist index` again"
_FORMAT = array_file.Format(b"wdsindex", 2, _ARRAYS, "checksums", "shard index", _REMEDY)


@dataclass(frozen=True, slots=True)
class Stored:
    """Size and digest of a shard's file, which may be compressed."""

    size: int
    sha256: str


@dataclass(frozen=True)
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
    """Number of entries of the tar that belong to no sample, by kind."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Samples that packing or indexing left out, as (key, reason): another scan of the tar leaves them out too."""
    key_rule: str = FIRST_DOT
    """The rule by which names were cut into keys and extensions."""
    stored: Stored | None = None
    """The shard's file if it is compressed: all other fields describe the decompressed tar."""
    checksums: npt.NDArray[np.uint32] | None = None
    """uint32 [m]: of each member's data, as `checksums.of_data` computes it; ``None`` if its bytes were not read."""

    @property
    def file(self) -> Stored:
        """The shard's file, compressed or not."""
        return self.stored or Stored(self.size, self.sha256)

    @property
    def num_samples(self) -> int:
        return len(self.sample_starts) - 1

    @functools.cached_property  # each batch asks for it
    def is_uniform(self) -> bool:
        """Whether all samples have one layout: the same extensions in the same order; false without samples."""
        members, rest = divmod(len(self.offsets), max(self.num_samples, 1))
        if rest or not members:
            return False
        ids = self.extension_ids.reshape(-1, members)
        return bool((np.diff(self.sample_starts) == members).all() and (ids == ids[0]).all())

    @property
    def num_scattered(self) -> int:
        """Number of samples whose members do not follow one another in the tar."""
        if not (np.diff(self.offsets) < 0).any():
            return 0
        places = np.empty(len(self.offsets), np.int64)
        places[np.argsort(self.offsets)] = np.arange(len(self.offsets))
        starts = self.sample_starts[:-1]
        spans = np.maximum.reduceat(places, starts) - np.minimum.reduceat(places, starts) + 1
        return int((spans != np.diff(self.sample_starts)).sum())

    def key(self, sample: int) -> str:
        """Return the key of a sample."""
        start, stop = self.key_starts[sample : sample + 2]
        return self.key_bytes[start:stop].tobytes().decode("utf-8", "surrogateescape")

    def of_samples(self, samples: npt.NDArray[np.integer]) -> ShardIndex:
        """Return the index that has some of the samples, in the given order."""
        members, places = runs(self.sample_starts, samples)
        letters, key_starts = runs(self.key_starts, samples)
        return replace(
            self,
            sample_starts=places,
            offsets=self.offsets[members],
            sizes=self.sizes[members],
            extension_ids=self.extension_ids[members],
            checksums=None if self.checksums is None else self.checksums[members],
            key_starts=key_starts,
            key_bytes=self.key_bytes[letters],
        )

    def members(self, sample: int) -> list[tuple[str, int, int]]:
        """Return the members of a sample as (extension, offset, size)."""
        start, stop = self.sample_starts[sample : sample + 2]
        return [
            (self.extensions[self.extension_ids[m]], int(self.offsets[m]), int(self.sizes[m]))
            for m in range(start, stop)
        ]


def beside(tar: Path) -> Path:
    """Return the path of the index beside a tar.

    >>> beside(Path("/data/00.tar")).name
    '00.tar.wdsindex'
    """
    return tar.with_name(tar.name + SUFFIX)


def index_name(location: str, base: str) -> str:
    """Return the path of a shard's index below the folder of an ``index.json``, if it does not lie beside the shard.

    The folders of a shard elsewhere are repeated there.

    >>> index_name("/data/a/0.tar", "/data"), index_name("https://me:secret@host/0.tar?signature=x", "/indexes")
    ('a/0.tar.wdsindex', 'host/0.tar.wdsindex')
    """
    path = location.partition("?")[0] if storage.is_remote(location) else location
    path = path.removeprefix(f"{base.rstrip('/')}/").rpartition("://")[2].removeprefix(login_of(location))
    return "/".join(part for part in path.split("/") if part not in ("", ".", "..")) + SUFFIX


def places(location: str, base: str) -> list[str]:
    """Return where a shard's index may lie: below the folder of the ``index.json``, then beside the shard.

    >>> places("/data/0.tar", "/data"), places("/data/0.tar", "/own")
    (['/data/0.tar.wdsindex'], ['/own/data/0.tar.wdsindex', '/data/0.tar.wdsindex'])
    """
    path, mark, query = location.partition("?") if storage.is_remote(location) else (location, "", "")
    return list(dict.fromkeys([storage.join(base, index_name(location, base)), f"{path}{SUFFIX}{mark}{query}"]))


def dumps(index: ShardIndex) -> bytes:
    """Serialize an index to the bytes of its file; the same index always gives the same bytes."""
    header = {
        "size": index.size,
        "sha256": index.sha256,
        "extensions": index.extensions,
        "skipped": index.skipped,
        **({"left_out": index.left_out} if index.left_out else {}),
        **({"key_rule": index.key_rule} if index.key_rule != FIRST_DOT else {}),
        **({"stored": asdict(index.stored)} if index.stored else {}),
    }
    return _FORMAT.dumps(header, index)


def load(content: bytes | memoryview | Path, label: str = "") -> ShardIndex:
    """Load the index in a file, which is mapped, or in its bytes; the arrays are views of them.

    Args:
        content: the path of the file, or its bytes.
        label: the name of the file in errors; by default its path.

    Raises ``FileNotFoundError``, and `IndexFormatError` if it is damaged.
    """
    label = label or str(content)
    header, arrays = _FORMAT.load(content, label)
    header = {"left_out": [], "key_rule": FIRST_DOT, "stored": None, **header}
    try:
        index = ShardIndex(
            size=operator.index(header["size"]),
            sha256=_string(header["sha256"]),
            extensions=tuple(map(_string, header["extensions"])),
            skipped={_string(kind): operator.index(count) for kind, count in header["skipped"].items()},
            left_out=tuple((_string(key), _string(reason)) for key, reason in header["left_out"]),
            key_rule=_string(header["key_rule"]),
            stored=header["stored"]
            and Stored(operator.index(header["stored"]["size"]), _string(header["stored"]["sha256"])),
            **arrays,
        )
        _check(index)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise IndexFormatError(f"{label} is a damaged shard index ({reason}): {_REMEDY}") from error
    return index


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"it holds {reprlib.repr(value)} in the place of a string")
    return value


def _check(index: ShardIndex) -> None:
    """Raise ``ValueError`` if the arrays of an index disagree, so that no reader reads out of bounds."""
    samples, members = len(index.sample_starts) - 1, len(index.offsets)
    checks: dict[str, Callable[[], bool]] = {  # each relies on those before it
        "lengths": lambda: (
            len(index.sizes) == len(index.extension_ids) == members and len(index.key_starts) == samples + 1
        ),
        "checksums": lambda: index.checksums is None or len(index.checksums) == members,
        "samples": lambda: (
            _is_divided(index.sample_starts, members)
            and bool((index.sample_starts[1:] > index.sample_starts[:-1]).all())
        ),
        "keys": lambda: _is_divided(index.key_starts, len(index.key_bytes)),
        "extensions": lambda: not members or int(index.extension_ids.max()) < len(index.extensions),
        "members": lambda: not members or min(int(index.offsets.min()), int(index.sizes.min())) >= 0,
        "ends": lambda: not members or bool((index.offsets <= index.size - index.sizes).all()),
    }
    for what, fits in checks.items():
        if not fits():
            raise ValueError(f"its {what} do not fit together")


def _is_divided(starts: Int64s, total: int) -> bool:
    """Return whether offsets are valid: sorted, from 0 to ``total``. Differences may overflow, so none are taken."""
    return len(starts) > 0 and starts[0] == 0 and starts[-1] == total and bool((starts[1:] >= starts[:-1]).all())
