"""Look up the value of a column for any samples: lengths and categories that batches are planned by."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.curation.columns import ColumnReader, names
from wdsdist.errors import ArgumentError

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_SHARDS = 1024
"""Shards whose values a lookup keeps in memory."""


class ColumnLookup:
    """The values of one column by shard and number; also over views and several data sets.

    Args:
        manifest: the data set.
        name: of the column.
        item_sizes: bytes of an item of raw arrays by extension, for ``<ext>.tokens`` without a file.

    Raises `ArgumentError` if there is no such column.
    """

    def __init__(self, manifest: Manifest, name: str, item_sizes: Mapping[str, int] | None = None) -> None:
        self.manifest, self.name, self._item_sizes = manifest, name, dict(item_sizes or {})
        self._numbers = functools.lru_cache(_SHARDS)(lambda source, number: self._readers[source].numbers(number))
        try:
            self._readers = {
                number: ColumnReader(part, name, item_sizes)
                for number, part in enumerate(manifest.data_sets)
                if part.num_samples
            }
        except ArgumentError as error:
            extension, known = name.removesuffix(".tokens"), names(manifest)
            if name in known or extension == name or f"{extension}.bytes" not in known:
                raise
            remedy = f'pass decode={{"{extension}": np.int32}} with the dtype of these arrays'
            if extension.endswith(("npy", "json", "jsn")):
                remedy = f"`wdsdist columns {manifest.shown} --probe {name}` counts the items"
            raise ArgumentError(f"the data set has no column {name!r}: {remedy}") from error

    def __call__(self, shards: Int64s, samples: Int64s) -> npt.NDArray[Any]:
        """Return the value of each sample: int64, float64 or bool; of strings uint64, a hash of each.

        Raises `ArgumentError` for a sample that has no value.
        """
        order = np.argsort(shards, kind="stable")
        firsts = np.flatnonzero(np.diff(shards[order], prepend=-1))
        result: npt.NDArray[Any] = np.zeros(0, np.int64)
        for same_shard in np.split(order, firsts[1:]) if len(firsts) else ():
            shard = int(shards[same_shard[0]])
            rows: npt.NDArray[np.integer] = samples[same_shard]
            source, number = int(self.manifest.source[shard]), self.manifest.part(shard)[1]
            reader, (values, missing) = self._readers[source], self._numbers(source, number)
            if reader.manifest.picks is not None and not reader.is_part:
                rows = reader.manifest.picks.of_shard(number)[rows]
            if missing[rows].any():
                raise ArgumentError(
                    f"the column {self.name!r} has no value for some samples of {reader.manifest.shown_name(number)}: "
                    f"choose the others, as in data.select('\"{self.name}\" IS NOT NULL')"
                )
            if not len(result):
                result = np.empty(len(shards), values.dtype)
            result[same_shard] = values[rows]
        return result

    @property
    def digest(self) -> str:
        """Digest of the values in files; the values that shards themselves say need no digest."""
        return " ".join(reader.stored.digest if reader.stored else "" for reader in self._readers.values())

    def __reduce__(self) -> tuple[Any, ...]:  # another process opens the files itself
        return ColumnLookup, (self.manifest, self.name, self._item_sizes)
