"""The first pass over the rows of a table: sizes and keys, the files that rows name, and what is wrong with rows."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import Counter
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.curation.tables import Table
from wdsdist.errors import SourceError
from wdsdist.packing.payloads import FilePayload, numbered
from wdsdist.packing.sources.columns import Layout
from wdsdist.packing.sources.source import LeftOut, key_digest
from wdsdist.packing.sources.table_rows import Data, Finder, RowError, Rows, is_bytes, lengths, status_of
from wdsdist.shards.tar.writer import stored_size

_BATCH_BYTES = 32 << 20
_SAMPLED = 64
"""One row in so many identifies a ``Dataset`` object by all bytes in it; the others count by their lengths."""


class TableListing:
    """What is known of the rows of a table once all have been read.

    Args:
        table: the rows.
        layout: how they become samples.
        finder: finds the files that they name.
        on_error: how to handle a row that cannot be a sample.
        digests: whether to digest the values, if no file's stamp identifies the rows.
    """

    def __init__(self, table: Table, layout: Layout, finder: Finder, on_error: str, *, digests: bool) -> None:
        self._table, self._layout, self._finder, self._on_error = table, layout, finder, on_error
        self.wrong: dict[int, LeftOut] = {}
        """The rows that are left out, by their numbers."""
        self.state: Any = hashlib.sha256()
        """A digest of the files that the rows name, and of the values if they are digested."""
        self.layouts: Counter[tuple[str, ...]] = Counter()
        """The number of rows by their members."""
        self.weights: Int64s = np.zeros(len(table.starts) - 1, np.int64)
        """int64 [groups]: bytes of memory of each group of rows."""
        self._sizes, self._files, self._keys = array("q"), array("q"), array("Q")
        self._most_files = sum(
            member.form == "file" or layout.columns[member.columns[0]].content == "bytes" for member in layout.members
        )
        self._read(digests)
        self.sizes: Int64s = np.frombuffer(self._sizes, np.int64)
        """int64 [rows]: bytes that each row takes in a tar."""
        self.file_sizes: Int64s = np.frombuffer(self._files, np.int64).reshape(len(self.sizes), self._most_files)
        """int64 [rows, members that may be files]: bytes of each file, then -1."""

    def _read(self, digests: bool) -> None:
        table, values = self._table, dict[str, Any]()
        names = [self._layout.columns[number].name for number in self._layout.used()]
        rows = 4096
        if any(column.content == "bytes" for column in self._layout.columns):  # few such rows fit in memory together
            first = next(table.batches(names, rows=1), None)
            rows = max(1, min(1024, _BATCH_BYTES // max(1, first.nbytes))) if first is not None else 1
        for batch in table.batches(names, rows=rows):
            start = len(self._sizes)
            self.weights[int(np.searchsorted(table.starts, start, side="right")) - 1] += batch.nbytes
            for name, column in zip(names, batch.columns, strict=True) if digests else ():
                if is_bytes(column.type):
                    values.setdefault(f"{name} lengths", hashlib.sha256()).update(_written(lengths(column)))
                    column = column.take(np.arange(-start % _SAMPLED, len(column), _SAMPLED))
                values.setdefault(name, hashlib.sha256()).update(_written(column))
            parsed = Rows(self._layout, self._finder, batch.columns, measures=True)
            for row in range(batch.num_rows):
                self._add(parsed, row)
        for digest in values.values():
            self.state.update(digest.digest())
        if len(self._sizes) != table.num_rows:
            raise SourceError(
                f"{table.label} gives {len(self._sizes):,} rows, but its metadata lists {table.num_rows:,}: fetch it "
                f"again"
            )
        self._refuse_repeated_keys()
        if len(self.wrong) == len(self._sizes):
            raise SourceError(f"no row of {table.label} can be packed, for instance: {self.wrong[0].reason}")

    def _add(self, rows: Rows, row: int) -> None:
        number, files = len(self._sizes), list[int]()
        try:
            members = [(extension, self._size(data, files)) for extension, data in rows.members(row)]
            key = rows.key(row, number, members)
        except RowError as error:
            reason = SourceError(f"{self._table.row_name(number)}: {error}")
            self._leave_out(number, rows.string_key(row) or numbered(number), reason)
            key, members, files = "", [], []
        self._files.extend(files + [-1] * (self._most_files - len(files)))  # a row may lack some
        self._sizes.append(sum(stored_size(f"{key}.{extension}", size) for extension, size in members))
        if members:
            self.layouts[tuple(sorted(extension for extension, _ in members))] += 1
        if self._layout.key is not None:
            self._keys.append(key_digest(key))

    def _size(self, data: Data, files: list[int]) -> int:
        """Return the bytes of a member's data; the size of a file is added to ``files`` too."""
        if not isinstance(data, FilePayload):
            return data if isinstance(data, int) else len(data)
        status, above = status_of(data.path), self._finder.root + os.sep
        relative = os.path.relpath(data.path, above) if data.path.startswith(above) else data.path
        self.state.update(f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogatepass"))
        files.append(status.st_size)
        return status.st_size

    def _refuse_repeated_keys(self) -> None:
        """Raise `SourceError` for two rows with one key, or leave the second one out."""
        digests = np.frombuffer(self._keys, np.uint64)
        ordered = np.sort(digests)
        repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        first: dict[str, int] = {}
        for number in np.flatnonzero(np.isin(digests, repeated)).tolist() if len(repeated) else ():
            name = self._layout.columns[self._layout.key or 0].name
            key = str(self._table.take(np.array([number]), [name]).column(0)[0].as_py())
            if number not in self.wrong and first.setdefault(key, number) != number:
                row, other = self._table.row_name(number), self._table.row_name(first[key])
                self._leave_out(number, key, SourceError(
                    f"{row}: the key {key!r} stands in {other} already: leave such rows out with on_error='skip', or "
                    f"map columns otherwise with columns= so that another column, or none, gives the key"
                ))  # fmt: skip

    def _leave_out(self, number: int, key: str, error: SourceError) -> None:
        """Raise what is wrong with a row, or note it if such rows are left out."""
        if self._on_error == "raise":
            raise error
        shown = key.encode("utf-8", "backslashreplace").decode()
        self.wrong[number] = LeftOut(shown, str(error).replace(self._finder.root + os.sep, ""))


def _written(values: Any) -> bytes:
    """Return the values of an array as bytes, the same however they lie in batches."""
    return "".join(f"{value!r}\n" for value in values.to_pylist()).encode("utf-8", "surrogatepass")
