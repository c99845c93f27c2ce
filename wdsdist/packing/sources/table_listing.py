"""The first pass over the rows of a table: sizes and keys, the files that rows name, and what is wrong with rows."""

from __future__ import annotations

import functools
import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.curation.tables import Table
from wdsdist.errors import SourceError
from wdsdist.packing.payloads import numbered
from wdsdist.packing.sources.columns import Layout
from wdsdist.packing.sources.source import LeftOut, key_digest
from wdsdist.packing.sources.table_rows import (
    Columns,
    Data,
    Finder,
    Length,
    NamedFile,
    RowError,
    is_bytes,
    lengths,
    status_of,
)
from wdsdist.shards.tar.writer import stored_size

_BATCH_BYTES = 32 << 20
_SAMPLED = 64
"""One row in so many tells two ``Dataset`` objects apart by all bytes of its files."""


@dataclass
class TableListing:
    """What is known of the rows of a table once all have been looked at."""

    table: Table
    layout: Layout
    finder: Finder
    on_error: str
    wrong: dict[int, LeftOut] = field(default_factory=dict)
    """The rows that are left out, by their numbers."""
    state: Any = field(default_factory=hashlib.sha256)
    """A digest of the files that the rows name."""
    values: dict[int, Any] = field(default_factory=dict)
    """Digests of the columns, if no file's stamp identifies the rows; of the lengths of bytes below 0."""
    sizes: array[int] = field(default_factory=lambda: array("q"))
    files: array[int] = field(default_factory=lambda: array("q"))
    keys: array[int] = field(default_factory=lambda: array("Q"))
    layouts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    weights: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64 [groups]: bytes of memory of each group of rows."""

    def read(self, *, digests: bool) -> None:
        """Look at all rows; with ``digests``, note the digest of their values: of most files, the lengths."""
        self.weights = np.zeros(len(self.table.starts) - 1, np.int64)
        for batch in self._batches([self.layout.columns[place].name for place in self.layout.used()]):
            group = int(np.searchsorted(self.table.starts, len(self.sizes), side="right")) - 1
            self.weights[group] += batch.nbytes
            if digests:
                self._note(batch)
            columns = Columns(self.layout, self.finder, batch.columns, measures=True)
            for row in range(batch.num_rows):
                self._add(columns, row)
        for number in sorted(self.values):
            self.state.update(self.values[number].digest())
        if len(self.sizes) != self.table.num_rows:
            raise SourceError(
                f"{self.table.label} gives {len(self.sizes):,} rows, but its metadata lists {self.table.num_rows:,}: "
                f"fetch it again"
            )
        self._refuse_repeated_keys()
        if len(self.wrong) == len(self.sizes):
            raise SourceError(f"no row of {self.table.label} can be packed, for instance: {self.wrong[0].reason}")

    def _batches(self, names: list[str]) -> Iterator[Any]:
        """Yield all rows in batches of bounded memory."""
        if not names:
            return
        large = any(column.content == "bytes" for column in self.layout.columns)
        yield from self.table.batches(names, rows=_rows_of_batch(self.table) if large else 4096)

    def _note(self, batch: Any) -> None:
        for number, column in enumerate(batch.columns):
            values = column
            if is_bytes(column.type):
                self.values.setdefault(-1 - number, hashlib.sha256()).update(_written(lengths(column)))
                values = column.take(np.arange(-len(self.sizes) % _SAMPLED, len(column), _SAMPLED))
            self.values.setdefault(number, hashlib.sha256()).update(_written(values))

    def _add(self, columns: Columns, row: int) -> None:
        number, sizes = len(self.sizes), list[int]()
        try:
            members = [(extension, self._size(data, sizes)) for extension, data in columns.members(row)]
            key = columns.key(row, number, members)
        except RowError as error:
            reason = SourceError(f"{self.table.row_name(number)}: {error}")
            self._leave_out(number, columns.text_key(row) or numbered(number), reason)
            key, members, sizes = "", [], []
        if of_files := self.most_files:
            self.files.extend(sizes + [-1] * (of_files - len(sizes)))  # a row may lack some
        self.sizes.append(sum(stored_size(f"{key}.{extension}", size) for extension, size in members))
        self.layouts[tuple([extension for extension, _ in members])] += bool(members)
        if self.layout.key is not None:
            self.keys.append(key_digest(key))

    @functools.cached_property
    def most_files(self) -> int:
        """Return how many members of a row may be files."""
        return sum(
            member.form == "file" or self.layout.columns[member.columns[0]].content == "bytes"
            for member in self.layout.members
        )

    def sorted_layouts(self) -> dict[tuple[str, ...], int]:
        """Count the rows that are packed by their members."""
        found: Counter[tuple[str, ...]] = Counter()
        for members, count in self.layouts.items():
            found[tuple(sorted(members))] += count
        return dict(+found)

    def _size(self, data: Data, sizes: list[int]) -> int:
        """Return the bytes of a member's data; the size of a file is noted in ``sizes`` too."""
        if not isinstance(data, NamedFile):
            return int(data) if isinstance(data, Length) else len(data)
        status, root = status_of(data.path), self.finder.root
        relative = os.path.relpath(data.path, root) if data.path.startswith(root + os.sep) else data.path
        self.state.update(f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogatepass"))
        sizes.append(status.st_size)
        return status.st_size

    def _refuse_repeated_keys(self) -> None:
        """Raise `SourceError` for two rows with one key, or leave the second one out."""
        digests = np.frombuffer(self.keys, np.uint64)
        ordered = np.sort(digests)
        twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        if not len(twice) or self.layout.key is None:
            return
        name = self.layout.columns[self.layout.key].name
        first: dict[str, int] = {}
        for number in np.flatnonzero(np.isin(digests, twice)).tolist():
            key = str(self.table.take(np.array([number]), [name]).column(0)[0].as_py())
            if number in self.wrong:
                continue
            if key in first:
                where, other = self.table.row_name(number), self.table.row_name(first[key])
                self._leave_out(number, key, SourceError(
                    f"{where}: the key {key!r} stands in {other} already: leave such rows out with on_error='skip', or "
                    f"map columns otherwise with columns= so that another column, or none, gives the key"
                ))  # fmt: skip
            first.setdefault(key, number)

    def _leave_out(self, number: int, key: str, error: SourceError) -> None:
        """Raise what is wrong with a row, or note it if such rows are left out."""
        if self.on_error == "raise":
            raise error
        shown = key.encode("utf-8", "backslashreplace").decode()
        self.wrong[number] = LeftOut(shown, str(error).replace(self.finder.root + os.sep, ""))


def _written(values: Any) -> bytes:
    """Return the values of an array as bytes, the same however they lie in batches."""
    return "".join(f"{value!r}\n" for value in values.to_pylist()).encode("utf-8", "surrogatepass")


def _rows_of_batch(table: Table) -> int:
    """Return how many rows of files may be in memory together."""
    first = next(table.batches(rows=1), None)
    return max(1, min(1024, _BATCH_BYTES // max(1, first.nbytes))) if first is not None else 1
