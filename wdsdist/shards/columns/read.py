"""Read columns of a data set, from the indexes of its shards or the files that were added: all values, or some."""

from __future__ import annotations

import functools
import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import check_column, hint
from wdsdist.errors import ArgumentError
from wdsdist.shards.columns import column_file, from_index
from wdsdist.shards.columns.column import Column
from wdsdist.shards.columns.column_file import StoredColumn
from wdsdist.shards.shard_indexes import extensions_in

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

PARTS = "__part__", "__parts__"
"""The columns of a view whose samples are parts of records: which part each is, and how many its record has. Samples
and batches have them under the same names."""

_SHARDS = 1024
"""Shards whose columns stay in memory where they come from the shards' indexes."""


def names(manifest: Manifest) -> list[str]:
    """Return the names of a data set's columns: the free ones, then those of files; of several, what all have."""
    first, *others = map(_names, manifest.data_sets)
    return [name for name in first if all(name in other for other in others)]


def _names(manifest: Manifest) -> list[str]:
    free = [*from_index.ALWAYS, *(f"{extension}.bytes" for extension in extensions_in(manifest))]
    free += [name for name in column_file.names(manifest) if name not in free]
    return free if not manifest.has_parts else [*(name for name in free if name not in PARTS), *PARTS]


def column(manifest: Manifest, name: str) -> Column:
    """Return a column over the samples of a data set or view.

    Raises `ArgumentError` where there is none of that name, and `IndexFormatError` where its file cannot be used.
    """
    if manifest.data_sets != (manifest,):
        return Column.joined([column(part, name) for part in manifest.data_sets])
    whole, picks = manifest.whole, manifest.picks
    if (
        check_column("the name of a column", name) in PARTS
        and picks is not None
        and picks.parts is not None
        and picks.totals is not None
    ):
        return Column("int", (picks.parts if name == PARTS[0] else picks.totals).astype(np.int64))
    stored = of_file(whole, name)
    found = None if stored is None else stored.column
    if found is None and from_index.is_free(name):
        found = from_index.column_of(whole, name)
        if found.is_empty and name not in from_index.ALWAYS:
            found = None
    if found is None:
        raise unknown(name, names(manifest))
    return found if picks is None else found.take(picks.positions())


def of_file(manifest: Manifest, name: str) -> StoredColumn | None:
    """Return a column over all samples of a data set that a file holds; ``None`` where no file does.

    Raises `ArgumentError` where it lacks shards that the data set has now, and `IndexFormatError` as `column` does.
    """
    # A file cannot stand for what the shards themselves say.
    found = None if name in from_index.ALWAYS else column_file.load(manifest, name)
    if found is None:
        return None
    if not found.is_covered.all():
        covered, shards = int(found.is_covered.sum()), len(manifest.counts)
        raise ArgumentError(
            f"the column {name!r} has values for {covered:,} of the {shards:,} shards that the data set has now: run "
            f"`wdsdist columns` again, which adds the rest"
        )
    return found


class UnknownColumnError(ArgumentError):
    """A data set has no column of a name."""


def unknown(name: str, known: list[str]) -> UnknownColumnError:
    """Return the error for a column that a data set does not have, which names the nearest that it has."""
    return UnknownColumnError(f"the data set has no column {name!r}: {hint(name, known)} (`wdsdist columns` adds more)")


class ColumnLookup:
    """The values of one column by shard and number; also over views and concatenated data sets.

    Args:
        manifest: the data set.
        name: of the column.

    Raises `ArgumentError` where there is no such column.
    """

    def __init__(self, manifest: Manifest, name: str) -> None:
        self.manifest = manifest
        self.name = name
        self._of_shards: OrderedDict[tuple[int, int], Column] = OrderedDict()
        _ = self._parts

    def __call__(self, shards: Int64s, samples: Int64s) -> npt.NDArray[Any]:
        """Return the value of each sample: int64, float64 or bool; of texts uint64, a hash of each.

        Raises `ArgumentError` for a sample that has no value.
        """
        order = np.argsort(shards, kind="stable")
        firsts = np.flatnonzero(np.diff(shards[order], prepend=-1))
        found: npt.NDArray[Any] | None = None
        for here in np.split(order, firsts[1:]) if len(firsts) else ():
            values = self._values(int(shards[here[0]]), samples[here])
            if found is None:
                found = np.empty(len(shards), values.dtype)
            found[here] = values
        return np.zeros(0, np.int64) if found is None else found

    @property
    def digest(self) -> str:
        """What tells the values from others under the same name; those that shards themselves say need nothing."""
        return " ".join("" if part is None else part[0].digest for part in self._parts.values())

    def __getstate__(self) -> dict[str, Any]:
        # Mapped columns stay behind: the other process maps them itself.
        return {"manifest": self.manifest, "name": self.name, "_of_shards": OrderedDict()}

    @functools.cached_property
    def _parts(self) -> dict[int, tuple[StoredColumn, Int64s] | None]:
        """The stored column of each part of the data set and where its shards' samples start, by the part's id."""
        parts: dict[int, tuple[StoredColumn, Int64s] | None] = {}
        for part in self.manifest.data_sets:
            if not part.num_samples:
                continue
            stored = of_file(part.whole, self.name)
            if stored is None:
                self._column_of(part, int((part.counts > 0).argmax()))  # which fails where there is none of that name
            parts[id(part)] = None if stored is None else (stored, part.whole.ends - part.whole.counts)
        return parts

    def _values(self, shard: int, samples: Int64s) -> npt.NDArray[Any]:
        part, number = self.manifest.part(shard)
        stored = samples if part.picks is None else part.picks.of_shard(number)[samples].astype(np.int64)
        found = self._parts.get(id(part))
        if found is None:
            column, places = self._column_of(part, number), stored
        else:
            column, places = found[0].column, found[1][number] + stored
        taken = column.take(places)
        if taken.is_missing is not None and taken.is_missing.any():
            raise ArgumentError(
                f"the column {self.name!r} has no value for some samples of {part.shown_name(number)}: choose those "
                f"that have one, as in data.select('\"{self.name}\" IS NOT NULL')"
            )
        if taken.kind == "text":
            digests = [hashlib.blake2b(text, digest_size=8).digest() for text in taken.texts()]
            return np.frombuffer(b"".join(digests), "<u8")
        return taken.typed()

    def _column_of(self, part: Manifest, number: int) -> Column:
        column = self._of_shards.get((id(part), number))
        if column is None:
            if from_index.is_free(self.name):
                column = from_index.column_of_shard(part.whole, number, self.name)
            if column is None or (column.is_empty and self.name not in from_index.ALWAYS):
                raise unknown(self.name, names(part.whole))
            self._of_shards[id(part), number] = column
            while len(self._of_shards) > _SHARDS:
                self._of_shards.popitem(last=False)
        return column
