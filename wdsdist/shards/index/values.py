"""`ShardIndex`: the samples and members of one shard, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, runs
from wdsdist.shards.tar.naming import FIRST_DOT


@dataclass(frozen=True, slots=True)
class Stored:
    """Size and digest of a shard's file, which may be compressed."""

    size: int
    sha256: str


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
    """Number of entries of the tar that belong to no sample, by kind."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Samples that packing or indexing left out, as (key, reason): another scan of the tar leaves them out too."""
    key_rule: str = FIRST_DOT
    """The rule by which names were cut into keys and extensions."""
    stored: Stored | None = None
    """The shard's file if it is compressed: all other fields describe the decompressed tar."""
    checksums: npt.NDArray[np.uint32] | None = None
    """uint32 [m]: of each member's data, as `index.checksums` computes it; ``None`` if its bytes were not read."""

    @property
    def file(self) -> Stored:
        """The shard's file, compressed or not."""
        return self.stored or Stored(self.size, self.sha256)

    @property
    def num_samples(self) -> int:
        return len(self.sample_starts) - 1

    @property
    def is_uniform(self) -> bool:
        """Whether all samples have the same extensions in the same order; false without samples."""
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
