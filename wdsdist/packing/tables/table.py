"""A table: rows of the same columns as Arrow batches, in order, or any rows by number."""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import hint
from wdsdist.errors import ArgumentError, SourceError
from wdsdist.packing.tables import arrays
from wdsdist.packing.tables.arrays import pyarrow

_ROWS = 65_536
_VALUES = 1_000_000
_DATASET_ROWS = 4096
_KEPT_BYTES = 256 << 20
"""Decoded groups of Parquet that a table keeps for `Table.take`."""


@contextlib.contextmanager
def reading(label: str) -> Iterator[None]:
    """Raise a `SourceError` that names the table in place of an error of pyarrow."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SourceError(f"{label} cannot be read: {error.strerror or error}") from error
    except (pyarrow().ArrowException, UnicodeDecodeError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())[:300]
        raise SourceError(f"{label} is not a table that can be read: {reason}; fetch or write it again") from error


class Group(NamedTuple):
    """Rows of a table that are read together."""

    file: object
    """The name of their file in messages."""
    first: int
    """The number of the first row in that file."""
    num_rows: int
    read: Callable[[list[str]], Any] = list
    """Returns some columns as a ``pyarrow.Table``, unless the table reads its groups itself."""


class Table:
    """Rows of the same columns, in order; the last groups that were read are kept.

    Args:
        label: the name of the table in messages.
        schema: the columns: a ``pyarrow.Schema``.
        groups: the groups of rows.
        bad: the reason for each skipped row, by its number in messages.
    """

    def __init__(self, label: str, schema: Any, groups: Sequence[Group], bad: Mapping[int, str] | None = None) -> None:
        self.label, self.schema, self._groups = label, schema, groups
        self.bad_rows = tuple(sorted((bad or {}).items()))
        """Skipped rows of a CSV or JSON Lines file: their number, as `row_name` counts, and the reason."""
        self.starts: Int64s = np.cumsum([0, *(group.num_rows for group in groups)]).astype(np.int64)
        """int64 [groups + 1]: the first row of each group of rows that are read together, and the number of rows."""
        self._kept: OrderedDict[tuple[int, tuple[str, ...]], Any] = OrderedDict()

    @property
    def num_rows(self) -> int:
        return int(self.starts[-1])

    def batches(self, columns: Sequence[str] | None = None, *, rows: int = _ROWS) -> Iterator[Any]:
        """Yield all rows as ``pyarrow.RecordBatch``, of ``rows`` at most, with some columns or all."""
        names = self.schema.names if columns is None else list(columns)
        for group in range(len(self._groups)):
            with reading(self.label):
                yield from self._read(group, names).to_batches(max_chunksize=rows)

    def take(self, rows: Int64s, columns: Sequence[str] | None = None) -> Any:
        """Return some rows as a ``pyarrow.Table``, in the given order; a row may come several times."""
        names = self.schema.names if columns is None else list(columns)
        groups = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(groups, kind="stable")
        parts = [self.schema.empty_table().select(names)]
        with reading(self.label):
            for group in np.unique(groups).tolist():
                numbers = rows[order][groups[order] == group] - self.starts[group]
                parts.append(self._read(group, names).take(pyarrow().array(numbers)))
            return pyarrow().concat_tables(parts).take(pyarrow().array(np.argsort(order, kind="stable")))

    def name_of(self, on: str) -> str:
        """Return the column that is matched with the column ``on`` of a data set: of that name, or of its last part.

        Raises `ArgumentError` if the table has neither.
        """
        for name in (on, on.rpartition(".")[2]):
            if name in self.schema.names:
                return name
        raise ArgumentError(
            f"{self.label} has no column {on!r} to match samples by: {hint(on, self.schema.names)}", argument="on"
        )

    def values(self, name: str) -> Iterator[Any]:
        """Yield the values of a column, as arrays of a type that columns of a data set have.

        Raises `SourceError` if they are nested.
        """
        metadata = self.schema.field(name).metadata
        try:
            yield from (arrays.plain(batch.column(0), metadata) for batch in self.batches([name], rows=_VALUES))
        except pyarrow().ArrowInvalid as error:
            raise SourceError(f"{self.label}: samples cannot be matched by {name!r}: {error}") from error

    def row_name(self, row: int) -> str:
        """Return the place of a row, for messages."""
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        group = self._groups[number]
        number_in_file = row - int(self.starts[number]) + group.first
        for bad, _ in self.bad_rows:
            number_in_file += bad <= number_in_file
        return f"{group.file}, row {number_in_file:,}"

    def _read(self, group: int, names: list[str]) -> Any:
        """Return some columns of a group, with the types of the schema."""
        key = group, tuple(names)
        if key not in self._kept:
            pa, read, fields = pyarrow(), self._groups[group].read(names), [self.schema.field(name) for name in names]
            columns = [
                pa.nulls(len(read)) if pa.types.is_null(field.type) else read.column(field.name).cast(field.type)
                for field in fields
            ]
            # A column in one chunk, whose rows are found fastest.
            table = pa.Table.from_arrays(columns, schema=pa.schema(fields)).combine_chunks()
            table.validate(full=True)  # offsets that point elsewhere would be followed out of the file
            self._kept[key] = table
            while len(self._kept) > 1 and sum(table.nbytes for table in self._kept.values()) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


class DatasetTable(Table):
    """The rows that a ``Dataset`` selects; its files are not opened here, as its rows may lie in memory alone."""

    def __init__(self, dataset: Any, label: str) -> None:
        self._dataset = dataset.with_format("arrow")
        firsts = range(0, len(dataset), _DATASET_ROWS)
        groups = [Group(label, first, min(_DATASET_ROWS, len(dataset) - first)) for first in firsts]
        super().__init__(label, self._dataset[:0].schema, groups)

    def take(self, rows: Int64s, columns: Sequence[str] | None = None) -> Any:
        names = self.schema.names if columns is None else list(columns)
        return self._dataset.select_columns(names)[rows.tolist()].select(names)

    def _read(self, group: int, names: list[str]) -> Any:  # keeps nothing: the table travels to other processes
        first, last = self.starts[group : group + 2].tolist()
        return self._dataset.select_columns(names)[first:last].select(names)


def groups_of(batches: Iterable[Any], file: object, first: int = 0) -> Iterator[Group]:
    """Yield record batches as groups of rows of a file, whose first row has the number ``first`` in messages."""
    for batch in batches:
        yield Group(file, first, len(batch), pyarrow().Table.from_batches([batch]).select)
        first += len(batch)


def check_names(names: Sequence[str], label: str) -> None:
    for name, count in Counter(names).items():
        if name and count > 1:
            raise SourceError(f"{label} has two columns with the name {name!r}: rename one")
