"""`Picks`: the samples of each shard that a view has, in their order, and how often."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, runs
from wdsdist.errors import IndexFormatError
from wdsdist.shards import array_file

MAGIC = b"wds-view"
VERSION = 1
_ARRAYS = {"stored_counts": "<i8", "starts": "<i8", "numbers": "<u4", "parts": "<u4"}
_OPTIONAL = ("parts",)
"""The array of views of parts of records alone."""

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
    """uint32 [samples]: the chosen samples of each shard in increasing order, one shard after another."""
    path: str = ""
    """The local file that the arrays are mapped from; empty if they are in memory."""
    stated_digest: str = ""
    """XXH3-128 of the arrays, as that file states it."""
    parts: npt.NDArray[np.uint32] | None = None
    """uint32 [samples, 2]: the number of each part, from 0, and the parts of its record; ``None`` for whole samples."""

    @classmethod
    def of_positions(
        cls, stored_counts: Int64s, positions: Int64s, parts: npt.NDArray[np.uint32] | None = None
    ) -> Picks:
        """Return the picks of samples by their increasing positions on the line of all stored samples.

        >>> picks = Picks.of_positions(np.array([3, 2]), np.array([0, 2, 2, 4]))
        >>> picks.counts.tolist(), picks.of_shard(0).tolist(), picks.of_shard(1).tolist()
        ([3, 1], [0, 2, 2], [1])
        """
        counts = np.asarray(stored_counts, np.int64)
        ends = np.cumsum(counts)
        starts = np.concatenate(([0], np.searchsorted(positions, ends))).astype(np.int64)
        numbers = (positions - np.repeat(ends - counts, np.diff(starts))).astype(np.uint32)
        return cls(counts, starts, numbers, parts=parts)

    @classmethod
    def load(cls, content: bytes | Path, label: str = "") -> tuple[Picks, array_file.ArrayFile]:
        """Load the picks of a view from the bytes of its file, or map a local file; return them and its content.

        Raises ``FileNotFoundError``, and `IndexFormatError` with the ``label`` if the file is not a view, or damaged.
        """
        path = str(content) if isinstance(content, Path) else ""
        label = label or path
        file = array_file.load(content, MAGIC, VERSION, _ARRAYS, optional=_OPTIONAL, what="view", label=label)
        parts = file.arrays.pop("parts", None)
        picks = cls(**file.arrays, path=path, stated_digest=file.digest)
        counts, starts = picks.stored_counts, picks.starts
        if (
            len(starts) != len(counts) + 1
            or starts[0] != 0
            or starts[-1] != len(picks.numbers)
            or (parts is not None and len(parts) != 2 * len(picks.numbers))
            or bool(((starts < 0) | (starts > len(picks.numbers))).any())  # or their differences may wrap around
            or bool((picks.counts < 0).any())
            or bool(((counts < 0) | (counts > MOST_IN_A_SHARD)).any())
        ):
            raise IndexFormatError(f"{label} is a damaged view: its arrays do not fit together; make it again")
        return picks if parts is None else replace(picks, parts=parts.reshape(-1, 2)), file

    @functools.cached_property
    def counts(self) -> Int64s:
        """int64 [shards]: chosen samples of each shard, repetitions counted."""
        return np.diff(self.starts)

    @functools.cached_property
    def digest(self) -> str:
        """XXH3-128 of the choice."""
        return self.stated_digest or array_file.digest_of(self.arrays)

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the choice, as they are written."""
        arrays = ((name, getattr(self, name), dtype) for name, dtype in _ARRAYS.items())
        return {name: np.ascontiguousarray(array, dtype).ravel() for name, array, dtype in arrays if array is not None}

    def fingerprint(self, data: str) -> str:
        """Return the digest of the view of the data set with a fingerprint."""
        return hashlib.sha256(f"{data}\0{self.digest}".encode()).hexdigest()[:32]

    def check(self) -> None:
        """Raise `IndexFormatError` if the arrays of a file are not those that it was written with."""
        for shard, count in enumerate(self.counts.tolist()):
            self.of_shard(shard)
            self.parts_in(shard, np.arange(count))
        if self.stated_digest and array_file.digest_of(self.arrays) != self.stated_digest:
            raise IndexFormatError(f"the view {self.path} is damaged: its digest is wrong; make it again")

    def of_shard(self, shard: int) -> npt.NDArray[np.uint32]:
        """Return the chosen samples of one shard.

        Raises `IndexFormatError` if a file names a sample that the shard cannot hold.
        """
        numbers = self.numbers[self.starts[shard] : self.starts[shard + 1]]
        if len(numbers) and int(numbers.max()) >= self.stored_counts[shard]:
            raise IndexFormatError(
                f"the view {self.path or ''} is damaged: it names sample {int(numbers.max()):,} of a shard of "
                f"{int(self.stored_counts[shard]):,}; make it again"
            )
        return numbers

    def parts_in(self, shard: int, samples: Int64s) -> Int64s | None:
        """Return int64 [2, n]: the part that each sample is, and the parts of its record; ``None`` for whole samples.

        Raises `IndexFormatError` if a file names a part that its record does not have.
        """
        if self.parts is None:
            return None
        pairs: Int64s = self.parts[self.starts[shard] + samples].T.astype(np.int64)
        if bool((pairs[0] >= pairs[1]).any()):
            raise IndexFormatError(
                f"the view {self.path or ''} is damaged: it names parts that a record does not have; make it again"
            )
        return pairs

    def positions(self) -> Int64s:
        """Return int64 [samples]: the position of each chosen sample on the line of all stored samples."""
        firsts: Int64s = np.cumsum(self.stored_counts) - self.stored_counts
        return np.repeat(firsts, self.counts) + self.numbers.astype(np.int64)

    def of_shards(self, shards: Int64s) -> Picks:
        """Return the picks of some shards, in the given order."""
        places, starts = runs(self.starts, shards)
        parts = None if self.parts is None else self.parts[places]
        return Picks(self.stored_counts[shards], starts, self.numbers[places], parts=parts)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path:  # a worker maps the file itself, so that its bytes are in memory once
            return _mapped_again, (self.path, self.stated_digest)
        return Picks, tuple(getattr(self, one.name) for one in fields(self))


def _mapped_again(path: str, digest: str) -> Picks:
    picks, _ = Picks.load(Path(path))
    if picks.stated_digest != digest:
        raise IndexFormatError(f"the view {path} was replaced while it was in use: start again")
    return picks
