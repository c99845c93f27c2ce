"""Tables of rows on Arrow: of Parquet and Arrow files, and of ``Dataset`` objects of ``datasets``.

A `Table` gives its rows as Arrow batches, in order, or any rows by number. It consists of groups of rows that are read
together: row groups of Parquet, record batches of Arrow.
"""

from __future__ import annotations

import abc
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.extras import extra
from wdsdist.errors import SourceError

JSON_TEXT = {b"json": b"text"}
"""Metadata of a field whose strings are JSON: nested values, and values of several types in one column."""

ROWS = 65_536
"""Rows of a batch by default."""
_KEPT_BYTES = 256 << 20
"""Decoded groups of Parquet that a table keeps for `Table.take`."""
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a whole Arrow stream


def pyarrow(purpose: str = "reading a table") -> Any:
    """Return pyarrow with the modules used here. Raises `ExtraMissingError` if it is not installed."""
    module = extra("pyarrow", "tables", purpose)
    for name in ("compute", "csv", "ipc", "parquet"):
        extra(f"pyarrow.{name}", "tables", purpose)
    return module


@contextlib.contextmanager
def reading(label: str) -> Iterator[None]:
    """Raise a `SourceError` that names the table in place of an error of pyarrow."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SourceError(f"{label} cannot be read: {error.strerror or error}") from error
    except (pyarrow().ArrowException, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise SourceError(f"{label} is not a table that can be read: {reason}; fetch or write it again") from error


class Table(abc.ABC):
    """Rows of the same columns, in order."""

    bad_rows: tuple[tuple[int, str], ...] = ()
    """Rows of a text file that were skipped: the number as `row_name` counts, and the reason."""

    def __init__(self, label: str, schema: Any, lengths: Sequence[int]) -> None:
        self.label = label
        """The name of the table in messages."""
        self.schema = schema
        """The columns: a ``pyarrow.Schema``."""
        self.starts: Int64s = np.concatenate(([0], np.cumsum(np.asarray(lengths, np.int64)))).astype(np.int64)
        """int64 [groups + 1]: the first row of each group of rows that are read together, and the number of rows."""

    @property
    def num_rows(self) -> int:
        return int(self.starts[-1])

    def batches(self, columns: Sequence[str] | None = None, *, rows: int = ROWS, raw: bool = False) -> Iterator[Any]:
        """Yield all rows as ``pyarrow.RecordBatch``.

        Args:
            columns: names; by default all columns.
            rows: of a batch at most.
            raw: give the values of a CSV as the strings in the file, whatever the type of the column.
        """
        names = self.schema.names if columns is None else list(columns)
        for group in range(len(self.starts) - 1):
            with reading(self.label):
                for batch in self._parts(group, names, rows, raw):
                    batch.validate(full=True)  # offsets that point elsewhere would be followed out of the file
                    yield batch

    def take(self, rows: Int64s, columns: Sequence[str] | None = None, *, raw: bool = False) -> Any:
        """Return some rows as a ``pyarrow.Table``, in the given order; a row may come several times."""
        names = self.schema.names if columns is None else list(columns)
        groups = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(groups, kind="stable")
        parts = []
        with reading(self.label):
            for group in np.unique(groups).tolist():
                numbers = rows[order][groups[order] == group] - self.starts[group]
                part = _takeable(self._group(group, names, raw)).take(pyarrow().array(numbers))
                parts.append(part if isinstance(part, pyarrow().Table) else pyarrow().Table.from_batches([part]))
            if not parts:
                return self.schema.empty_table().select(names)
            taken = pyarrow().concat_tables(parts)
            taken.validate(full=True)
            return taken.take(pyarrow().array(np.argsort(order, kind="stable")))

    def row_name(self, row: int) -> str:
        """Return where a row stands, for messages."""
        return f"{self.label}, row {row:,}"

    @abc.abstractmethod
    def _group(self, group: int, columns: list[str], raw: bool) -> Any:
        """Return a group as a ``pyarrow.Table`` or ``pyarrow.RecordBatch``."""

    def _parts(self, group: int, columns: list[str], rows: int, raw: bool) -> Iterator[Any]:
        """Yield a group in parts."""
        found = self._group(group, columns, raw)
        batches = [found] if isinstance(found, pyarrow().RecordBatch) else found.to_batches()
        for batch in batches:
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


class ParquetTable(Table):
    """Parquet files as one table; the last groups that `take` decoded are kept."""

    def __init__(self, paths: list[Path], label: str) -> None:
        self._paths = paths
        self._files = [pyarrow().parquet.ParquetFile(path, memory_map=True, pre_buffer=False) for path in paths]
        schemas = [file.schema_arrow for file in self._files]
        _check_alike(schemas, paths)
        self._groups: list[tuple[int, int]] = []
        lengths = []
        for number, file in enumerate(self._files):
            own = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
            if sum(own) != file.metadata.num_rows:
                raise SourceError(
                    f"{paths[number]} is damaged: its groups have {sum(own):,} rows, and the file "
                    f"{file.metadata.num_rows:,}; fetch it again"
                )
            self._groups += ((number, group) for group in range(len(own)))
            lengths += own
        self._kept: OrderedDict[tuple[int, tuple[str, ...]], Any] = OrderedDict()
        super().__init__(label, schemas[0], lengths)

    def row_name(self, row: int) -> str:
        group = int(np.searchsorted(self.starts, row, side="right")) - 1
        number, own = self._groups[group]
        return f"{self._paths[number]}, row {row - int(self.starts[group]):,} of group {own:,}"

    def _group(self, group: int, columns: list[str], raw: bool) -> Any:
        key = group, tuple(columns)
        if key not in self._kept:
            number, own = self._groups[group]
            # One thread: several processes read at once. One chunk: a row of it is found fastest.
            table = self._files[number].read_row_group(own, columns=columns, use_threads=False)
            self._kept[key] = table.select(columns).combine_chunks()
            while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _parts(self, group: int, columns: list[str], rows: int, raw: bool) -> Iterator[Any]:
        number, own = self._groups[group]
        for batch in self._files[number].iter_batches(rows, row_groups=[own], columns=columns, use_threads=False):
            yield batch.select(columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetTable, (self._paths, self.label)  # another process opens the files itself


class ArrowTable(Table):
    """Record batches that are mapped from files, each file with the same columns."""

    def __init__(self, files: Sequence[Any], label: str, names: Sequence[str]) -> None:
        """Make a table of the ``(schema, batches)`` of each file; ``names`` are those of the files."""
        _check_alike([schema for schema, _ in files], names)
        self._batches = [batch for _, batches in files for batch in batches]
        super().__init__(label, files[0][0], [batch.num_rows for batch in self._batches])

    def _group(self, group: int, columns: list[str], raw: bool) -> Any:
        return self._batches[group].select(columns)


class DatasetTable(Table):
    """The rows that a ``Dataset`` selects; no file of it is opened here, as they may lie in memory alone."""

    def __init__(self, dataset: Any, label: str) -> None:
        self.dataset = dataset.with_format("arrow")
        count, rest = divmod(len(dataset), ROWS)
        super().__init__(label, self.dataset[:0].schema, [ROWS] * count + [rest] * (rest > 0))

    def take(self, rows: Int64s, columns: Sequence[str] | None = None, *, raw: bool = False) -> Any:
        names = self.schema.names if columns is None else list(columns)
        return self.dataset.select_columns(names)[rows.tolist()].select(names)

    def _group(self, group: int, columns: list[str], raw: bool) -> Any:
        return self.dataset.select_columns(columns)[int(self.starts[group]) : int(self.starts[group + 1])].select(
            columns
        )

    def _parts(self, group: int, columns: list[str], rows: int, raw: bool) -> Iterator[Any]:
        part = self.dataset.select_columns(columns)
        for start in range(int(self.starts[group]), int(self.starts[group + 1]), rows):  # few rows: files are large
            yield from part[start : min(start + rows, int(self.starts[group + 1]))].select(columns).to_batches()


class _FlatTable(Table):
    """A table whose nested objects are columns with dots in their names, without lists and bytes."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._columns: dict[str, tuple[str, ...]] = {}
        fields = []
        for field in table.schema:
            for path, leaf in _leaves(field, (field.name,)):
                self._columns[".".join(path)] = path
                fields.append(leaf.with_name(".".join(path)))
        super().__init__(table.label, pyarrow().schema(fields), np.diff(table.starts).tolist())

    def row_name(self, row: int) -> str:
        return self._table.row_name(row)

    def _group(self, group: int, columns: list[str], raw: bool) -> Any:
        return self._flat(self._table._group(group, self._roots(columns), raw), columns)

    def _parts(self, group: int, columns: list[str], rows: int, raw: bool) -> Iterator[Any]:
        for batch in self._table._parts(group, self._roots(columns), rows, raw):
            yield self._flat(batch, columns)

    def _roots(self, columns: list[str]) -> list[str]:
        return list(dict.fromkeys(self._columns[name][0] for name in columns))

    def _flat(self, part: Any, columns: list[str]) -> Any:
        arrays = []
        for name in columns:
            root, *path = self._columns[name]
            values = part.column(root)
            arrays.append(pyarrow().compute.struct_field(values, path) if path else values)
        return type(part).from_arrays(arrays, names=columns)


def _leaves(field: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the field of each plain value in a field."""
    types = pyarrow().types
    if types.is_struct(field.type):
        for inner in field.type:
            yield from _leaves(inner, (*path, inner.name))
    elif not (types.is_nested(field.type) or "binary" in str(field.type)):
        yield path, field


def _takeable(part: Any) -> Any:
    """Return a part without the views of strings and bytes that Polars writes: no rows can be taken of them."""
    pa = pyarrow()
    kinds = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
    if not any(str(kind) in kinds for kind in part.schema.types):
        return part
    columns = [column.cast(kinds.get(str(column.type), column.type)) for column in part.columns]
    return type(part).from_arrays(columns, names=part.schema.names)


def checked(table: Table, flatten: bool) -> Table:
    found = _FlatTable(table) if flatten else table
    twice = [name for name, count in Counter(found.schema.names).items() if count > 1]
    if twice:
        raise SourceError(f"{table.label} has two columns with the name {twice[0]!r}: rename one")
    return found


def _check_alike(schemas: Sequence[Any], names: Sequence[Any]) -> None:
    for name, schema in zip(names, schemas, strict=True):
        if not schema.equals(schemas[0]):
            shown = (", ".join(f"{field.name} {field.type}" for field in one) for one in (schema, schemas[0]))
            raise SourceError(f"{name} has other columns than {names[0]}: {next(shown)}, not {next(shown)}")


def arrow_batches(path: Path) -> tuple[Any, list[Any]]:
    """Return the schema and the batches of an Arrow file or stream, mapped."""
    pa = pyarrow()
    content = pa.memory_map(str(path)).read_buffer()
    if content.slice(0, 6).to_pybytes() == b"ARROW1":
        file = pa.ipc.open_file(pa.BufferReader(content))
        return file.schema, [file.get_batch(number) for number in range(file.num_record_batches)]
    # A stream that is cut between two batches looks like a shorter one.
    if content.slice(max(0, content.size - len(_END))).to_pybytes() != _END:
        raise SourceError(f"{path} lacks the end of an Arrow stream, so rows are missing: fetch or write it again")
    reader = pa.ipc.open_stream(content)
    return reader.schema, list(reader)
