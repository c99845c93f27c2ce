"""`Picks`: which samples of each shard a view has, in which order, and how often."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.errors import IndexFormatError
from wdsdist.shards import array_file

MAGIC, VERSION = b"wds-view", 1
ARRAYS = {"stored_counts": "<i8", "starts": "<i8", "numbers": "<u4"}

NOTES_ON_ALL = ("payload_bytes", "skipped", "left_out", "excluded", "scattered", "generations", "appended")
"""Notes of an ``index.json`` on all samples, such as totals, so that they are wrong for a part of them."""

MOST_IN_A_SHARD = 2**32
"""Samples that a shard of a view may hold: their numbers take four bytes."""


@dataclass(frozen=True, eq=False)
class Picks:
    """The chosen samples of each shard, by their numbers in it."""

    stored_counts: Int64s
    """int64 [shards]: samples that each shard holds."""
    starts: Int64s
    """int64 [shards + 1]: where the numbers of each shard start, and their total."""
    numbers: npt.NDArray[np.uint32]
    """uint32 [samples]: the chosen samples of each shard, one shard after another, in increasing order."""
    path: str = ""
    """The local file that the arrays are mapped from; empty where they are in memory."""
    stated_digest: str = ""
    """SHA-256 of the arrays, as that file states it."""

    @classmethod
    def of_positions(cls, stored_counts: Int64s, positions: Int64s) -> Picks:
        """Return the picks of samples by their places on the line of all stored samples, in increasing order.

        >>> picks = Picks.of_positions(np.array([3, 2]), np.array([0, 2, 2, 4]))
        >>> picks.counts.tolist(), picks.of_shard(0).tolist(), picks.of_shard(1).tolist()
        ([3, 1], [0, 2, 2], [1])
        """
        ends = np.cumsum(stored_counts, dtype=np.int64)
        firsts = ends - stored_counts
        stops = np.searchsorted(positions, ends)
        starts = np.concatenate(([0], stops)).astype(np.int64)
        numbers = (positions - np.repeat(firsts, np.diff(starts))).astype(np.uint32)
        return cls(np.asarray(stored_counts, np.int64), starts, numbers)

    @classmethod
    def load(cls, content: bytes | Path, label: str = "") -> tuple[Picks, dict[str, Any]]:
        """Load the picks of a view from the bytes of its file, or map a local file; return them and its header.

        Raises ``FileNotFoundError``, and `IndexFormatError` where it is no view or damaged, with its ``label``.
        """
        path = str(content) if isinstance(content, Path) else ""
        label = label or path
        found = array_file.load(content, MAGIC, VERSION, ARRAYS, what="view", label=label)
        picks = cls(**found.arrays, path=path, stated_digest=found.digest)
        counts, starts = picks.stored_counts, picks.starts
        if (
            len(starts) != len(counts) + 1
            or starts[0] != 0
            or starts[-1] != len(picks.numbers)
            or bool((picks.counts < 0).any())
            or bool(((counts < 0) | (counts > MOST_IN_A_SHARD)).any())
        ):
            raise IndexFormatError(f"{label} is a damaged view: its arrays do not fit together; make it anew")
        return picks, found.header

    @functools.cached_property
    def counts(self) -> Int64s:
        """int64 [shards]: chosen samples of each shard, repetitions counted."""
        return np.diff(self.starts)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the choice."""
        return self.stated_digest or array_file.digest_of(self.arrays)

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the choice, as they are written."""
        return {name: np.ascontiguousarray(getattr(self, name), dtype) for name, dtype in ARRAYS.items()}

    def check(self) -> None:
        """Raise `IndexFormatError` where the arrays of a file are not those that it was written with."""
        for shard in range(len(self.stored_counts)):
            self.of_shard(shard)
        if self.stated_digest and array_file.digest_of(self.arrays) != self.stated_digest:
            raise IndexFormatError(f"the view {self.path} is damaged: its digest is wrong; make it anew")

    def of_shard(self, shard: int) -> npt.NDArray[np.uint32]:
        """Return the chosen samples of one shard.

        Raises `IndexFormatError` where a file names a sample that the shard cannot hold.
        """
        numbers = self.numbers[self.starts[shard] : self.starts[shard + 1]]
        if len(numbers) and int(numbers.max()) >= self.stored_counts[shard]:
            raise IndexFormatError(
                f"the view {self.path or ''} is damaged: it names sample {int(numbers.max()):,} of a shard of "
                f"{int(self.stored_counts[shard]):,}; make it anew"
            )
        return numbers

    def positions(self) -> Int64s:
        """Return int64 [samples]: the place of each chosen sample on the line of all stored samples."""
        firsts: Int64s = np.cumsum(self.stored_counts) - self.stored_counts
        return np.repeat(firsts, self.counts) + self.numbers.astype(np.int64)

    def of_shards(self, shards: Int64s) -> Picks:
        """Return the picks of some shards, in the given order."""
        parts = [self.of_shard(number) for number in shards.tolist()]
        starts = np.cumsum([0, *map(len, parts)]).astype(np.int64)
        return Picks(self.stored_counts[shards], starts, np.concatenate([*parts, np.zeros(0, np.uint32)]).astype("<u4"))

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path:  # a worker maps the file itself, so that its bytes are in memory once
            return _reloaded, (self.path, self.stated_digest)
        return Picks, (self.stored_counts, self.starts, self.numbers)


def _reloaded(path: str, digest: str) -> Picks:
    picks, _ = Picks.load(Path(path))
    if picks.stated_digest != digest:
        raise IndexFormatError(f"the view {path} was replaced while it was in use: start again")
    return picks


def fingerprint_of(data: str, picks: Picks) -> str:
    """Return the digest of a view of the data set with a fingerprint."""
    return hashlib.sha256(f"{data}\0{picks.digest}".encode()).hexdigest()[:32]
