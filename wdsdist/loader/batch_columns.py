"""Values of samples by which batches are planned, out of columns: lengths, costs and categories."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.errors import ArgumentError

if TYPE_CHECKING:
    from wdsdist.curation.columns import ColumnLookup
    from wdsdist.shards.manifest import Manifest

_LONGEST = 2**62
"""Tokens of a sample: beyond that, processors differ in which integer they make of a number."""

_DEAREST = 1e100
"""Cost of a sample: its square and the sum of many of these are numbers as well."""


class Codes:
    """Categories as integers: of numbers the numbers, of texts a hash."""

    def __init__(self, values: ColumnLookup) -> None:
        self.values = values

    def __call__(self, shards: Int64s, samples: Int64s) -> Int64s:
        found = self.values(shards, samples)
        return found.view(np.int64) if found.itemsize == 8 else found.astype(np.int64)


class Lengths:
    """Lengths of samples, in tokens: a column, which may count bytes of a fixed number for each token.

    A part of a record has its stretch of the record's tokens.
    """

    def __init__(self, values: ColumnLookup, divisor: int = 1) -> None:
        self.values = values
        self._divisor = divisor

    def __call__(self, shards: Int64s, samples: Int64s) -> Int64s:
        found = self.values(shards, samples)
        if found.dtype == np.uint64 or (len(found) and not 0 <= float(found.min()) <= float(found.max()) <= _LONGEST):
            raise ArgumentError(
                f"the column {self.values.name!r} holds no lengths: they must be numbers from 0 to {_LONGEST:,}"
            )
        tokens = np.ceil(found / self._divisor).astype(np.int64) if self._divisor > 1 else found.astype(np.int64)
        parts = self.values.manifest.parts_of(shards, samples)
        if parts is None:
            return tokens
        lengths: Int64s = (parts[0] + 1) * tokens // parts[1] - parts[0] * tokens // parts[1]
        return lengths


def lengths_of(manifest: Manifest, name: str, itemsizes: dict[str, int]) -> Lengths:
    """Return the lookup of a column of lengths; ``<ext>.tokens`` of a raw array needs no file."""
    from wdsdist.curation.columns import ColumnLookup

    return Lengths(ColumnLookup(manifest, name, itemsizes))


def cost_of(manifest: Manifest, cost: str) -> Callable[..., npt.NDArray[np.float64]]:
    """Return the function of costs that the option ``cost`` names. Raises `ArgumentError` for an unknown column."""
    from wdsdist.curation.columns import ColumnLookup

    if cost == "linear":
        return _linear
    return _quadratic if cost == "quadratic" else CostColumn(ColumnLookup(manifest, cost))


class CostColumn:
    """Costs of samples by a column; a piece of a sample has its share of the tokens, a part an even one of a record."""

    def __init__(self, values: ColumnLookup) -> None:
        self.values = values

    def __call__(self, shards: Int64s, samples: Int64s, lengths: Int64s, sizes: Int64s) -> npt.NDArray[np.float64]:
        share = np.divide(sizes, lengths, out=np.ones(len(sizes)), where=lengths > 0)
        parts = self.values.manifest.parts_of(shards, samples)
        found = self.values(shards, samples)
        if found.dtype == np.uint64 or not (np.abs(found.astype(np.float64)) <= _DEAREST).all():
            raise ArgumentError(
                f"the column {self.values.name!r} holds no costs: they must be numbers up to {_DEAREST:g}"
            )
        costs = found.astype(np.float64) * share
        return costs if parts is None else costs / parts[1]


def _linear(shards: Int64s, samples: Int64s, lengths: Int64s, sizes: Int64s) -> npt.NDArray[np.float64]:
    return sizes.astype(np.float64)


def _quadratic(shards: Int64s, samples: Int64s, lengths: Int64s, sizes: Int64s) -> npt.NDArray[np.float64]:
    return sizes.astype(np.float64) ** 2


def ones(shards: Int64s, samples: Int64s) -> Int64s:
    """Return the length of samples that are alike: 1 for each."""
    return np.ones(len(shards), np.int64)
