"""Tables of rows on Arrow: Parquet, Arrow, CSV, TSV and JSON Lines files, and ``Dataset`` objects of ``datasets``.

A `Table` gives its rows as Arrow batches, in order, or any rows by number. It consists of groups of rows that are read
together: row groups of Parquet, record batches of Arrow.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import sys
import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.extras import extra
from wdsdist._util.files import check_readable
from wdsdist.errors import SourceError

Kind = Literal["parquet", "arrow", "csv", "tsv", "jsonl", "dataset"]

SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"), "arrow": (".arrow", ".feather", ".ipc"), "csv": (".csv", ".csv.gz"),
    "tsv": (".tsv", ".tab", ".tsv.gz"), "jsonl": (".jsonl", ".ndjson", ".jsonlines", ".jsonl.gz"),
}  # fmt: skip
"""How the names of files of each kind end, in lower case."""
JSON_TEXT = {b"json": b"text"}
"""Metadata of a field whose strings are JSON: nested values, and values of several types in one column."""

ROWS = 65_536
"""Rows of a batch by default."""
_KEPT_BYTES = 256 << 20
"""Decoded groups of Parquet that a table keeps for `Table.take`."""
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a whole Arrow stream


def kind_of(name: str) -> Kind | None:
    """Return the kind of table that the name of a file says; ``None`` for any other file.

    >>> kind_of("meta/part-0.PARQUET"), kind_of("captions.csv.gz"), kind_of("notes.txt")
    ('parquet', 'csv', None)
    """
    return next((kind for kind, suffixes in SUFFIXES.items() if name.lower().endswith(suffixes)), None)


def is_dataset(source: object) -> bool:
    """Return whether an object is a ``datasets.Dataset`` whose rows are its columns, without a custom transform."""
    datasets = sys.modules.get("datasets.arrow_dataset")
    return datasets is not None and isinstance(source, datasets.Dataset) and source.format["type"] != "custom"


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
    except (pyarrow().ArrowException, UnicodeDecodeError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())[:300]
        raise SourceError(f"{label} is not a table that can be read: {reason}; fetch or write it again") from error


def open_table(
    source: Any,
    *,
    kind: Kind | None = None,
    label: str = "",
    on_error: Literal["raise", "skip"] = "raise",
    scratch: Path | None = None,
) -> Table:
    """Open a table.

    Args:
        source: the path of a file, a list of Parquet or Arrow files with the same columns, or a ``Dataset``.
        kind: of the files; by default their suffix says it.
        label: the name of the table in messages; by default its path.
        on_error: ``"skip"`` leaves out rows of text files that cannot be parsed, and lists them in ``bad_rows``.
        scratch: folder for the temporary copy of a text file.

    Raises:
        SourceError: a file does not hold what its kind says, or two columns have the same name.
        ExtraMissingError: pyarrow is not installed.
        FileNotFoundError: a file does not exist.
    """
    from wdsdist.curation.text_tables import CsvTable, JsonLinesTable

    table: Table
    if is_dataset(source):
        table = DatasetTable(source, label or "the Dataset")
    else:
        paths = [Path(path) for path in ([source] if isinstance(source, (str, Path)) else source)]
        kind, label = kind or kind_of(paths[0].name), label or str(paths[0])
        if kind is None:
            endings = ", ".join(itertools.chain(*SUFFIXES.values()))
            raise SourceError(f"{label} is not a table: its name must end in {endings}")
        for path in paths:
            check_readable(path)
        with reading(label):
            if kind == "parquet":
                table = ParquetTable(paths, label)
            elif kind == "arrow":
                table = ArrowTable([_arrow_batches(path) for path in paths], label, paths)
            elif kind == "jsonl":
                table = JsonLinesTable(paths[0], label, skips=on_error == "skip", scratch=scratch)
            else:
                table = CsvTable(
                    paths[0], label, "," if kind == "csv" else "\t", skips=on_error == "skip", scratch=scratch
                )
    twice = [name for name, count in Counter(table.schema.names).items() if count > 1]
    if twice:
        raise SourceError(f"{table.label} has two columns with the name {twice[0]!r}: rename one")
    return table


class Table(abc.ABC):
    """Rows of the same columns, in order."""

    bad_rows: tuple[tuple[int, str], ...] = ()
    """Skipped rows of a CSV or JSON Lines file: their number, as `row_name` counts, and the reason."""

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

    def batches(self, columns: Sequence[str] | None = None, *, rows: int = ROWS) -> Iterator[Any]:
        """Yield all rows as ``pyarrow.RecordBatch``, of ``rows`` at most, with some columns or all."""
        names = self.schema.names if columns is None else list(columns)
        for group in range(len(self.starts) - 1):
            with reading(self.label):
                for batch in self._parts(group, names, rows):
                    batch.validate(full=True)  # offsets that point elsewhere would be followed out of the file
                    yield batch

    def take(self, rows: Int64s, columns: Sequence[str] | None = None) -> Any:
        """Return some rows as a ``pyarrow.Table``, in the given order; a row may come several times."""
        names = self.schema.names if columns is None else list(columns)
        groups = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(groups, kind="stable")
        parts = []
        with reading(self.label):
            for group in np.unique(groups).tolist():
                numbers = rows[order][groups[order] == group] - self.starts[group]
                part = _takeable(self._group(group, names)).take(pyarrow().array(numbers))
                parts.append(part if isinstance(part, pyarrow().Table) else pyarrow().Table.from_batches([part]))
            if not parts:
                return self.schema.empty_table().select(names)
            taken = pyarrow().concat_tables(parts)
            taken.validate(full=True)
            return taken.take(pyarrow().array(np.argsort(order, kind="stable")))

    def row_name(self, row: int) -> str:
        """Return the place of a row, for messages."""
        return f"{self.label}, row {row:,}"

    @abc.abstractmethod
    def _group(self, group: int, columns: list[str]) -> Any:
        """Return a group as a ``pyarrow.Table`` or ``pyarrow.RecordBatch``."""

    def _parts(self, group: int, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield a group in batches."""
        part = self._group(group, columns)
        for batch in [part] if isinstance(part, pyarrow().RecordBatch) else part.to_batches():
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


class ParquetTable(Table):
    """Parquet files as one table; the last groups that `take` decoded are kept."""

    def __init__(self, paths: list[Path], label: str) -> None:
        self._paths = paths
        self._files = [pyarrow().parquet.ParquetFile(path, memory_map=True, pre_buffer=False) for path in paths]
        schemas = [file.schema_arrow for file in self._files]
        _check_alike(schemas, paths)
        self._groups = [
            (number, group) for number, file in enumerate(self._files) for group in range(file.num_row_groups)
        ]
        lengths = [self._files[number].metadata.row_group(group).num_rows for number, group in self._groups]
        if sum(lengths) != sum(file.metadata.num_rows for file in self._files):
            raise SourceError(f"{label} is damaged: its groups of rows have {sum(lengths):,} rows: fetch it again")
        self._kept: OrderedDict[tuple[int, tuple[str, ...]], Any] = OrderedDict()
        super().__init__(label, schemas[0], lengths)

    def row_name(self, row: int) -> str:
        group = int(np.searchsorted(self.starts, row, side="right")) - 1
        number, own = self._groups[group]
        return f"{self._paths[number]}, row {row - int(self.starts[group]):,} of group {own:,}"

    def _group(self, group: int, columns: list[str]) -> Any:
        key = group, tuple(columns)
        if key not in self._kept:
            number, own = self._groups[group]
            # One thread: several processes read at once. One chunk: a row of it is found fastest.
            table = self._files[number].read_row_group(own, columns=columns, use_threads=False)
            self._kept[key] = table.select(columns).combine_chunks()
            while len(self._kept) > 1 and sum(table.nbytes for table in self._kept.values()) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _parts(self, group: int, columns: list[str], rows: int) -> Iterator[Any]:
        number, own = self._groups[group]
        for batch in self._files[number].iter_batches(rows, row_groups=[own], columns=columns, use_threads=False):
            yield batch.select(columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetTable, (self._paths, self.label)  # another process opens the files itself


class ArrowTable(Table):
    """Record batches that are mapped from files, each file with the same columns."""

    def __init__(self, files: Sequence[tuple[Any, list[Any]]], label: str, names: Sequence[object]) -> None:
        """Make a table of the schema and batches of each file; ``names`` are the names of the files."""
        _check_alike([schema for schema, _ in files], names)
        self._batches = [batch for _, batches in files for batch in batches]
        super().__init__(label, files[0][0], [batch.num_rows for batch in self._batches])

    def _group(self, group: int, columns: list[str]) -> Any:
        return self._batches[group].select(columns)


class DatasetTable(Table):
    """The rows that a ``Dataset`` selects; its files are not opened here, as its rows may lie in memory alone."""

    def __init__(self, dataset: Any, label: str) -> None:
        self.dataset = dataset.with_format("arrow")
        count, rest = divmod(len(dataset), ROWS)
        super().__init__(label, self.dataset[:0].schema, [ROWS] * count + [rest] * (rest > 0))

    def take(self, rows: Int64s, columns: Sequence[str] | None = None) -> Any:
        names = self.schema.names if columns is None else list(columns)
        return self.dataset.select_columns(names)[rows.tolist()].select(names)

    def _group(self, group: int, columns: list[str]) -> Any:
        first, last = self.starts[group : group + 2].tolist()
        return self.dataset.select_columns(columns)[first:last].select(columns)

    def _parts(self, group: int, columns: list[str], rows: int) -> Iterator[Any]:
        part = self.dataset.select_columns(columns)
        first, last = self.starts[group : group + 2].tolist()
        for start in range(first, last, rows):  # few rows: files may be large
            yield from part[start : min(start + rows, last)].select(columns).to_batches()


def _takeable(part: Any) -> Any:
    """Return a part without the views of strings and bytes that Polars writes: pyarrow takes no rows of them."""
    pa = pyarrow()
    kinds = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
    if not any(str(kind) in kinds for kind in part.schema.types):
        return part
    columns = [column.cast(kinds.get(str(column.type), column.type)) for column in part.columns]
    return type(part).from_arrays(columns, names=part.schema.names)


def _check_alike(schemas: Sequence[Any], names: Sequence[object]) -> None:
    for name, schema in zip(names, schemas, strict=True):
        if not schema.equals(schemas[0]):
            first, other = (", ".join(f"{field.name} {field.type}" for field in one) for one in (schemas[0], schema))
            raise SourceError(f"{name} has other columns than {names[0]}: {other}, not {first}")


def _arrow_batches(path: Path) -> tuple[Any, list[Any]]:
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
