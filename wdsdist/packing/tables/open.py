"""Open a file or a ``Dataset`` as a table, by the suffix of its name or its kind."""

from __future__ import annotations

import functools
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from wdsdist import storage
from wdsdist._util.files import check_readable
from wdsdist._util.host import temporary_dir
from wdsdist.errors import NotFoundError, SourceError
from wdsdist.packing.tables.arrays import pyarrow
from wdsdist.packing.tables.table import DatasetTable, Group, Table, check_names, groups_of, reading
from wdsdist.packing.tables.text import csv_table, json_lines_table
from wdsdist.storage import engine

Kind = Literal["parquet", "arrow", "csv", "tsv", "jsonl", "dataset"]

SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"), "arrow": (".arrow", ".feather", ".ipc"), "csv": (".csv", ".csv.gz"),
    "tsv": (".tsv", ".tab", ".tsv.gz"), "jsonl": (".jsonl", ".ndjson", ".jsonlines", ".jsonl.gz"),
}  # fmt: skip
"""How the names of files of each kind end, in lower case."""

_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


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
        scratch = scratch if scratch is not None and scratch.is_dir() else None
        with reading(label):
            if kind == "parquet":
                table = _parquet(paths, label)
            elif kind == "arrow":
                table = _arrow(paths, label)
            elif kind == "jsonl":
                table = json_lines_table(paths[0], label, on_error == "skip", scratch)
            else:
                table = csv_table(paths[0], label, "," if kind == "csv" else "\t", on_error == "skip", scratch)
    with reading(table.label):  # a name of a column may be no text
        check_names(table.schema.names, table.label)
    return table


def open_at(
    location: str, options: storage.StorageOptions | None, on_error: Literal["raise", "skip"] = "raise"
) -> Table:
    """Open a table at a path or URL; a remote one is fetched into a temporary file, whose name is removed at once.

    Raises `NotFoundError`, and `SourceError` if it is not a table that can be read.
    """
    shown, kind = storage.shown(location), kind_of(storage.split(location)[1].partition("?")[0])
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        try:
            if storage.is_remote(location):
                url, location = location, f"{folder}/table{'.gz' if shown.endswith('.gz') else ''}"
                engine.fetch(url, Path(location), options)
            return open_table(Path(location), kind=kind, label=shown, on_error=on_error)
        except IsADirectoryError as error:
            raise SourceError(f"{shown} is a folder: name a file in it") from error
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"{shown} does not exist") from error


def _parquet(paths: list[Path], label: str) -> Table:
    files = [pyarrow().parquet.ParquetFile(path, memory_map=True, pre_buffer=False) for path in paths]
    groups = []
    for path, file in zip(paths, files, strict=True):
        first = 0
        for number in range(file.num_row_groups):
            # One thread: several processes read at once.
            read = functools.partial(file.read_row_group, number, use_threads=False)
            groups.append(Group(path, first, file.metadata.row_group(number).num_rows, read))
            first += groups[-1].num_rows
        if first != file.metadata.num_rows:
            raise SourceError(f"{path} is damaged: its groups of rows have {first:,} rows: fetch it again")
    return Table(label, _schema_of([file.schema_arrow for file in files], paths), groups)


def _arrow(paths: list[Path], label: str) -> Table:
    """Open Arrow files or streams, mapped."""
    pa, schemas, groups = pyarrow(), [], list[Group]()
    for path in paths:
        content = pa.memory_map(str(path)).read_buffer()
        if content.slice(0, 6).to_pybytes() == b"ARROW1":
            file = pa.ipc.open_file(pa.BufferReader(content))
            batches = [file.get_batch(number) for number in range(file.num_record_batches)]
        else:
            # A stream that is cut between two batches looks like a shorter one.
            if content.slice(max(0, content.size - len(_STREAM_END))).to_pybytes() != _STREAM_END:
                raise SourceError(
                    f"{path} lacks the end of an Arrow stream, so rows are missing: fetch or write it again"
                )
            file = pa.ipc.open_stream(content)
            batches = list(file)
        schemas.append(file.schema)
        groups += groups_of(batches, path)
    return Table(label, _schema_of(schemas, paths), groups)


def _schema_of(schemas: Sequence[Any], names: Sequence[object]) -> Any:
    """Return the schema of files. Raises `SourceError` if they differ."""
    pa, first = pyarrow(), schemas[0]
    for name, schema in zip(names, schemas, strict=True):
        if not schema.equals(first):
            own, other = (", ".join(f"{field.name} {field.type}" for field in each) for each in (first, schema))
            raise SourceError(f"{name} has other columns than {names[0]}: {other}, not {own}")
    views = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}  # pyarrow takes no rows of these
    fields = [field.with_type(views.get(str(field.type), field.type)) for field in first]
    return pa.schema(fields, first.metadata)
