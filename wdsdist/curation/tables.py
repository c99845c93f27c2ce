"""Tables whose rows are samples or values of samples: `open_table` reads files of every kind, and `datasets`."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any, Literal

from wdsdist._util.files import check_readable
from wdsdist.curation.arrow_tables import (
    JSON_TEXT,
    ArrowTable,
    DatasetTable,
    ParquetTable,
    Table,
    arrow_batches,
    checked,
    reading,
)
from wdsdist.curation.text_tables import TextTable
from wdsdist.errors import SourceError

__all__ = ["JSON_TEXT", "SUFFIXES", "Kind", "Table", "is_dataset", "kind_of", "open_table"]

Kind = Literal["parquet", "arrow", "csv", "tsv", "jsonl", "dataset"]

SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "parquet": (".parquet", ".pq"), "arrow": (".arrow", ".feather", ".ipc"), "csv": (".csv", ".csv.gz"),
    "tsv": (".tsv", ".tab", ".tsv.gz"), "jsonl": (".jsonl", ".ndjson", ".jsonlines", ".jsonl.gz"),
}  # fmt: skip
"""How the names of files of each kind end, in lower case."""


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
    flatten: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    scratch: Path | None = None,
) -> Table:
    """Open a table.

    Args:
        source: the path of a file, a list of Parquet or Arrow files with the same columns, or a ``Dataset``.
        kind: of the files; by default their suffix says it.
        label: the name of the table in messages; by default its path.
        flatten: give the values in nested objects as columns such as ``size.width``, leave out lists and bytes, read
            NA and NaN in numbers of a CSV as missing. Joins want this; packing keeps values as they are.
        on_error: ``"skip"`` leaves out rows of text files that cannot be parsed, and lists them in ``bad_rows``.
        scratch: folder for the temporary copy of a text file.

    Raises:
        SourceError: a file does not hold what its kind says, or two columns have the same name.
        ExtraMissingError: pyarrow is not installed.
        FileNotFoundError: a file does not exist.
    """
    if is_dataset(source):
        return checked(DatasetTable(source, label or "the Dataset"), flatten)
    paths = [Path(path) for path in ([source] if isinstance(source, (str, Path)) else source)]
    kind = kind or kind_of(paths[0].name)
    label = label or str(paths[0])
    if kind is None:
        raise SourceError(
            f"{label} is not a table: its name must end in {', '.join(itertools.chain(*SUFFIXES.values()))}"
        )
    for path in paths:
        check_readable(path)
    with reading(label):
        if kind == "parquet":
            return checked(ParquetTable(paths, label), flatten)
        if kind == "arrow":
            return checked(ArrowTable([arrow_batches(path) for path in paths], label, list(map(str, paths))), flatten)
    return TextTable(paths[0], kind, label, flatten=flatten, on_error=on_error, scratch=scratch)
