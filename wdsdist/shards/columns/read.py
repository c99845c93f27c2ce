"""Read columns of a data set: from the indexes of its shards, or from the files that were added."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import numpy as np

from wdsdist.errors import ArgumentError
from wdsdist.shards.columns import column_file, from_index
from wdsdist.shards.columns.column import Column
from wdsdist.shards.columns.column_file import StoredColumn

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

PARTS = "__part__", "__parts__"
"""The columns of a view whose samples are parts of records: which part each is, and how many its record has. Samples
and batches have them under the same names."""


def names(manifest: Manifest) -> list[str]:
    """Return the names of a data set's columns: the free ones, then those of files; of several, what all have."""
    first, *others = map(_names, manifest.data_sets)
    return [name for name in first if all(name in other for other in others)]


def _names(manifest: Manifest) -> list[str]:
    free = [*from_index.ALWAYS, *(f"{extension}.bytes" for extension in from_index.extensions_in(manifest))]
    free += [name for name in column_file.names(manifest) if name not in free]
    return free if not manifest.has_parts else [*(name for name in free if name not in PARTS), *PARTS]


def column(manifest: Manifest, name: str) -> Column:
    """Return a column over the samples of a data set or view.

    Raises `ArgumentError` where there is none of that name, and `IndexFormatError` where its file cannot be used.
    """
    whole, picks = manifest.whole, manifest.picks
    if name in PARTS and picks is not None and picks.parts is not None and picks.totals is not None:
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


def unknown(name: str, known: list[str]) -> ArgumentError:
    """Return the error for a column that a data set does not have, which names the nearest that it has."""
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}."
    return ArgumentError(f"the data set has no column {name!r}: {hint} `wdsdist columns` adds more")
