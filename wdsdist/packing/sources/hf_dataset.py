"""A ``Dataset`` object of Hugging Face's ``datasets`` as a table: the rows that it selects, read as Arrow batches.

Its rows may be a selection of what its files hold, in another order, as after ``select``, ``shuffle`` or ``filter``, or
lie in memory alone. So it is asked for them, by their numbers, and no file of it is opened here.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wdsdist._util.array_types import Int64s
from wdsdist._util.pools import Carried
from wdsdist.packing.sources.arrow_files import LISTED_ROWS, ArrowTable, is_bytes, listed_rows, pyarrow, value_at
from wdsdist.packing.sources.columns import Column
from wdsdist.packing.sources.table_rows import FileTable, Row, Rows

_SAMPLED = 64
"""One in so many rows tells two data sets apart by all bytes of its files, which would take long of every row."""
_AT_ONCE = 256
"""Rows that are asked for together where they are written: views of the data, so that their size does not matter."""


def is_table(made: object) -> bool:
    """Return whether an object is a ``Dataset`` whose rows are its columns; by a transform they are what that makes."""
    datasets = sys.modules.get("datasets.arrow_dataset")
    return datasets is not None and isinstance(made, datasets.Dataset) and made.format["type"] != "custom"


class DatasetTable(ArrowTable):
    """The rows of a ``Dataset`` as a table.

    Args:
        dataset: the ``Dataset``, of any format.
        label: names it in messages.
        has_root: whether texts are looked up as paths. Without a folder of its own, its texts would be taken for the
            paths of whatever lies in the current one.
    """

    def __init__(self, dataset: Any, label: str, *, has_root: bool) -> None:
        self._dataset = Carried(dataset.with_format("arrow"))
        self._has_root = has_root
        self._is_parquet = False
        self.schema = self._dataset.value[:0].schema
        FileTable.__init__(self, label, (), [[len(dataset)]])

    def columns(self, root: str) -> list[Column]:
        return super().columns(root if self._has_root else os.devnull)

    def rows(self, used: Sequence[int], columns: Sequence[Column]) -> Iterator[Row]:
        """Yield the rows of the table, and note the digest of what is used: of most files, the lengths."""
        state = hashlib.sha256(str(len(self.schema.names)).encode())
        for part in self._dataset.value.iter(LISTED_ROWS):
            found = part.select(list(used))
            rows = listed_rows(found, used, len(self.schema.names))
            for place, column in zip(used, found.columns, strict=True):
                parts = [column]
                if is_bytes(column.type):
                    state.update(repr([row[place] for row in rows]).encode("utf-8", "surrogatepass"))
                    parts = [column.slice(at, 1) for at in range(0, len(rows), _SAMPLED)]
                for values in parts:
                    state.update(pyarrow().RecordBatch.from_arrays([values.combine_chunks()], [""]).serialize())
            yield from rows
        self.digest = state.hexdigest()

    def take(self, indices: Int64s, used: Sequence[int]) -> Rows:
        """Return some rows, which are asked for where they are written."""
        return _DatasetRows(self._dataset, self.label, indices.tolist(), tuple(used))

    def _first(self, place: int, most: int) -> list[Any]:
        found: list[Any] = []
        column = self._dataset.value.select_columns([self.schema.names[place]])
        for part in column.iter(max(most, 64)):  # few, for files are copied here
            found += part.column(0).drop_null()[: most - len(found)].to_pylist()
            if len(found) >= most:
                break
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _DatasetRows(Rows):
    """Some rows of a ``Dataset``."""

    dataset: Carried[Any]
    label: str
    indices: list[int]
    used: tuple[int, ...]

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, len(self.indices), _AT_ONCE):
            part = self.dataset.value[self.indices[start : start + _AT_ONCE]]
            for number in range(part.num_rows):
                row: Row = [None] * part.num_columns
                for place in self.used:
                    row[place] = value_at(part.column(place), number)
                yield row

    def place(self, number: int) -> str:
        return f"row {self.indices[number]:,} of {self.label}"
