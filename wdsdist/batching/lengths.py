"""Values of samples by which batches are planned, read from columns: lengths, costs and categories."""

from __future__ import annotations

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.curation.columns import ColumnLookup
from wdsdist.errors import ArgumentError

_LONGEST = 2**62
"""Tokens of a sample: beyond that, processors differ in which integer they make of a number."""


class Codes:
    """Categories as integers: numbers stand for themselves, strings for a hash."""

    def __init__(self, values: ColumnLookup) -> None:
        self.values = values

    def __call__(self, shards: Int64s, samples: Int64s) -> Int64s:
        values = self.values(shards, samples)
        return values.view(np.int64) if values.itemsize == 8 else values.astype(np.int64)


class Lengths:
    """Lengths of samples in tokens. A part of a record has its stretch of the record's tokens."""

    def __init__(self, values: ColumnLookup) -> None:
        self.values = values

    def __call__(self, shards: Int64s, samples: Int64s) -> Int64s:
        values = self.values(shards, samples)
        is_length = values.dtype != np.uint64  # the hash of a string
        if not is_length or (len(values) and not 0 <= float(values.min()) <= float(values.max()) <= _LONGEST):
            raise ArgumentError(
                f"the column {self.values.name!r} holds no lengths: they must be numbers from 0 to {_LONGEST:,}"
            )
        tokens = values.astype(np.int64)
        parts = self.values.manifest.parts_of(shards, samples)
        if parts is None:
            return tokens
        lengths: Int64s = (parts[0] + 1) * tokens // parts[1] - parts[0] * tokens // parts[1]
        return lengths

    def of_shard(self, number: int) -> Int64s:
        """Return the lengths of all samples of a shard."""
        samples = np.arange(int(self.values.manifest.counts[number]))
        return self(np.full(len(samples), number), samples)


def ones(shards: Int64s, samples: Int64s) -> Int64s:
    """Return the length of samples that are alike: 1 for each."""
    return np.ones(len(shards), np.int64)
