"""Tables that people have values in: Parquet, CSV, JSON Lines, ``.npy``, JSON lists and lines, here or at a URL.

Each is read whole into columns. Nested values other than objects of values are left out.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist._util.extras import extra
from wdsdist._util.host import temporary_dir
from wdsdist._util.npy_header import NPY_PREFIX, npy_header_length, npy_layout
from wdsdist.errors import ArgumentError, NotFoundError, SampleError, SourceError
from wdsdist.shards.columns.column import Column, Kind
from wdsdist.storage import compression

_TABLES = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "json", ".ndjson": "json", ".jsonlines": "json",
}  # fmt: skip
_GZIP = ".gz"
_CODE, _LONG = r"^\s*[-+]?0[0-9]", r"^\s*[-+]?[0-9]{19,}\s*$"
"""Numbers of a CSV that are names, as numbers lose their zeros, and integers that may not fit into 64 bits."""
_MAYBE_CODE = re.compile(rb"(?<![0-9.])0[0-9]|[0-9]{19}")
"""What stands in a CSV that has one of these."""
_ROWS = 1_000_000
"""Rows of a Parquet file that are read at once, which bounds memory."""


def values(location: str, on: str, options: storage.StorageOptions | None = None) -> Column:
    """Return the values of one column of a file; of a ``.npy``, a JSON list or a list of lines, all.

    Args:
        location: path or URL, whose suffix tells the form; any other than those of tables is a list of lines.
        on: the column's name, in a file that has several. ``json.uid`` is looked for as ``uid`` too.
        options: of the store of a URL.

    Raises:
        NotFoundError: there is no such file.
        SourceError: its content is not of its form.
        ArgumentError: it has no such column.
    """
    form = _form(location)
    if form in _TABLES.values():
        return Column.joined([keys for keys, _ in parts(location, on, (), options)])
    with _local(location, options) as path:
        content = _content(path, location)
    if form == "npy":
        return _array(content, location)
    if form == "list":
        return _json_list(content, location)
    if b"\0" in content:  # as a tar has; its lines would be found in no data set, and nothing be said
        raise SourceError(f"{storage.shown(location)} is no list of lines: it has bytes that no text has")
    # As bytes: texts are cut at further characters, which keys may hold.
    return Column.of([line for line in content.removeprefix(codecs.BOM_UTF8).splitlines() if line])


def parts(
    location: str, on: str, only: Collection[str] | None = None, options: storage.StorageOptions | None = None
) -> Iterator[tuple[Column, dict[str, Column]]]:
    """Yield the rows of a table, some at a time: the column that they are matched by, and the others by their names.

    Args:
        location: path or URL.
        on: the name of that column.
        only: the others that are wanted; by default all.
        options: of the store of a URL.

    Raises what `values` raises.
    """
    form = _form(location)
    if form in ("lines", "list"):
        raise ArgumentError(
            f"{storage.shown(location)} is no table that can be joined: it must end in {', '.join(_TABLES)} or .npy"
        )
    reader = {"npy": _npy_table, "parquet": _parquet, "json": _json}.get(form, _csv)
    with _local(location, options) as path:
        for found in reader(path, location, on, None if only is None else set(only)):
            name = _name_of(on, list(found), location)
            others = {
                other: column for other, column in found.items() if other != name and (only is None or other in only)
            }
            lacking = sorted(set(only or ()) - set(others))
            if lacking:
                raise ArgumentError(
                    f"{storage.shown(location)} has no column {lacking[0]!r}: it has {', '.join(found)}"
                )
            yield found[name], others


def of_arrow(values: Any) -> Column | None:
    """Return the column of an array of pyarrow, or ``None`` for a type that no column has, such as lists."""
    import pyarrow

    types, kind = pyarrow.types, values.type
    if types.is_dictionary(kind):
        return of_arrow(values.cast(kind.value_type))
    if types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind) or str(kind) == "binary_view":
        return None
    name: Kind
    filler: bool | float | str
    if types.is_boolean(kind):
        name, target, filler = "bool", kind, False
    elif types.is_integer(kind) and kind != pyarrow.uint64():
        name, target, filler = "int", pyarrow.int64(), 0
    elif types.is_floating(kind) or types.is_null(kind):
        name, target, filler = "float", pyarrow.float64(), 0.0
    else:  # also uint64, which int64 does not hold
        name, target, filler = "text", pyarrow.large_string(), ""
    try:
        values = values.cast(target)  # before chunks are joined: 32-bit offsets of texts would overflow
    except pyarrow.ArrowException:
        return None
    if isinstance(values, pyarrow.ChunkedArray):
        values = values.combine_chunks()
    missing = np.asarray(values.is_null()).view(np.uint8) if values.null_count else None
    values = values.fill_null(filler)
    if name != "text":
        found = np.asarray(values)
        return Column(name, found.view(np.uint8) if name == "bool" else found, None, missing)
    _, starts, data = values.buffers()
    offsets = np.frombuffer(starts, np.int64, len(values) + 1, 8 * values.offset)
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return Column("text", content[offsets[0] : offsets[-1]], offsets - offsets[0], missing)


def _file_name(location: str) -> str:
    return storage.split(location)[1].partition("?")[0].lower()


def _form(location: str) -> str:
    name = _file_name(location).removesuffix(_GZIP)
    if name.endswith(".npy"):
        return "npy"
    if name.endswith(".json"):
        return "list"
    return next((form for suffix, form in _TABLES.items() if name.endswith(suffix)), "lines")


@contextlib.contextmanager
def _local(location: str, options: storage.StorageOptions | None) -> Iterator[Path]:
    """Give the path of a file; of a remote one, that of a temporary copy, so that it can be mapped."""
    try:
        if not storage.is_remote(location):
            yield Path(storage.local_path(location))
            return
        with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
            path = Path(folder) / "table"
            storage.fetch(location, path, options)
            yield path
    except IsADirectoryError as error:
        raise SourceError(f"{storage.shown(location)} is a folder: name a file in it") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"{storage.shown(location)} does not exist") from error


def _content(path: Path, location: str) -> bytes:
    content = path.read_bytes()
    if _file_name(location).endswith(_GZIP):
        try:
            return compression.unzip(content, compression.most_expanded(len(content)))
        except (SampleError, OSError, EOFError, zlib.error) as error:
            raise SourceError(f"{storage.shown(location)} is not whole gzip data: {error}") from error
    return content


def _parquet(
    path: Path, location: str, on: str, only: set[str] | None, *, rows: int = _ROWS
) -> Iterator[dict[str, Column]]:
    parquet = _pyarrow(location, ".parquet")
    pyarrow = _pyarrow(location)
    try:
        # Mapped, and only the columns that are asked for: captions and URLs may take a hundred times as much.
        with parquet.ParquetFile(path, memory_map=True) as file:
            names = file.schema_arrow.names
            if only is not None:
                wanted = [f"{one}." for one in (*only, on, on.rpartition(".")[2])]
                names = [name for name in names if any(one.startswith(f"{name}.") for one in wanted)]
            if not file.metadata.num_rows:
                yield _flat(file.read(columns=names), location, only)
            for batch in file.iter_batches(rows, columns=names):
                yield _flat(pyarrow.Table.from_batches([batch]), location, only)
    except FileNotFoundError:
        raise
    except (pyarrow.ArrowException, OSError) as error:
        raise SourceError(f"{storage.shown(location)} cannot be read as parquet: {error}") from error


def _csv(path: Path, location: str, on: str, only: set[str] | None) -> Iterator[dict[str, Column]]:
    content = _content(path, location)
    # A key such as 000000012 is no number, and a text that looks like a time stays as it is.
    texts = {on, on.rpartition(".")[2]}
    while True:
        table = _csv_table(content, location, texts)
        again = _no_values(table, content, location) - texts
        if not again:
            break
        texts |= again
    yield _flat(table, location, only)


def _csv_table(content: bytes, location: str, texts: Collection[str]) -> Any:
    """Parse a CSV or TSV with some columns as texts; the types of the others are inferred from their values."""
    csv, pyarrow = _pyarrow(location, ".csv"), _pyarrow(location)
    convert = csv.ConvertOptions(column_types={name: pyarrow.string() for name in texts})
    parse = csv.ParseOptions(delimiter="\t" if _form(location) == "tsv" else ",", newlines_in_values=True)
    try:
        return csv.read_csv(pyarrow.BufferReader(content), parse_options=parse, convert_options=convert)
    except (pyarrow.ArrowException, OSError) as error:
        raise SourceError(f"{storage.shown(location)} cannot be read as {_form(location)}: {error}") from error


def _no_values(table: Any, content: bytes, location: str) -> set[str]:
    """Return the columns of a CSV that have been taken for times, or for numbers that they are not.

    Codes such as ``007`` lose their zeros as numbers, and integers of more than 64 bits their last digits.
    """
    pyarrow = _pyarrow(location)
    types, find = pyarrow.types, _pyarrow(location, ".compute").match_substring_regex
    found = {field.name for field in table.schema if types.is_temporal(field.type)}
    numbers = {field.name for field in table.schema if types.is_integer(field.type) or types.is_floating(field.type)}
    if numbers and _MAYBE_CODE.search(content):  # else the table need not be parsed twice
        written = _csv_table(content, location, numbers)
        for place, field in enumerate(table.schema):  # not by name: two columns may have one, which is told later
            code = _CODE if types.is_integer(field.type) else f"{_CODE}|{_LONG}"
            if field.name in numbers and any(find(part, code).true_count for part in written.column(place).chunks):
                found.add(field.name)
    return found


def _json(path: Path, location: str, on: str, only: set[str] | None) -> Iterator[dict[str, Column]]:
    """Yield the columns of JSON Lines; not by pyarrow, which takes texts for times and refuses mixed columns."""
    lines = _content(path, location).splitlines()
    rows = [_row(line, number, location) for number, line in enumerate(lines, 1) if line.strip()]
    names = dict.fromkeys(name for row in rows for name in row)
    yield {name: Column.of([row.get(name) for row in rows]) for name in names}


def _json_list(content: bytes, location: str) -> Column:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{storage.shown(location)} is no JSON: {error}; JSON Lines end in .jsonl") from None
    if not isinstance(found, list) or not all(isinstance(one, (str, int, float)) for one in found):
        raise SourceError(f"{storage.shown(location)} must hold a list of texts or numbers; JSON Lines end in .jsonl")
    return Column.of(found)


def joined(parts: Sequence[tuple[int, dict[str, Column]]]) -> dict[str, Column]:
    """Return the columns of tables, one after another; given the rows of each, for not all may have all columns."""
    names = dict.fromkeys(name for _, columns in parts for name in columns)
    return {
        name: Column.joined([columns.get(name) or Column.of([None] * rows) for rows, columns in parts])
        for name in names
    }


def _row(line: bytes, number: int, location: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{storage.shown(location)} is no JSON in line {number:,}: {error}") from None
    if not isinstance(found, dict):
        raise SourceError(f"{storage.shown(location)} has no object in line {number:,}")
    return dict(_values_in(found, ""))


def _values_in(given: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the values in an object under their names; those in nested objects under names with dots."""
    for name, value in given.items():
        if isinstance(value, dict):
            yield from _values_in(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            yield f"{prefix}{name}", value


def _flat(table: Any, location: str, only: set[str] | None) -> dict[str, Column]:
    import pyarrow

    while any(pyarrow.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    twice = next((name for name, count in Counter(table.column_names).items() if count > 1), None)
    if twice is not None:
        raise SourceError(f"{storage.shown(location)} has two columns with the name {twice!r}: rename one")
    for field in table.schema if _form(location) in ("csv", "tsv") else ():
        if pyarrow.types.is_binary(field.type) and (only is None or field.name in only):
            raise SourceError(
                f"{storage.shown(location)} is not UTF-8 in its column {field.name!r}: convert it, as with "
                f"`iconv -f LATIN1 -t UTF-8`"
            )
    found = {name: of_arrow(table.column(number)) for number, name in enumerate(table.column_names)}
    return {name: column for name, column in found.items() if column is not None}


def _pyarrow(location: str, module: str = "") -> Any:
    return extra(f"pyarrow{module}", "columns", f"reading {storage.shown(location)}")


def _array(content: bytes, location: str) -> Column:
    array = _loaded(content, location)
    if array.dtype.names is not None and [array.dtype[name].kind for name in array.dtype.names] == ["u", "u"]:
        # DataComp's identifiers: two halves of 32 hexadecimal digits.
        halves = np.stack([array[name] for name in array.dtype.names], axis=1).astype(">u8")
        digits = np.frombuffer(halves.tobytes().hex().encode(), np.uint8)
        return Column("text", digits, np.arange(len(array) + 1) * 32)
    column = _plain(array)
    if column is None:
        raise SourceError(
            f"{storage.shown(location)} holds {array.dtype} of shape {array.shape}: it must hold texts, numbers, or "
            f"pairs of uint64, in one dimension"
        )
    return column


def _npy_table(path: Path, location: str, on: str, only: set[str] | None) -> Iterator[dict[str, Column]]:
    array = _loaded(_content(path, location), location)
    if array.dtype.names is None:
        raise ArgumentError(
            f"{storage.shown(location)} has no named fields: to join it, save a structured array, one field of which "
            f"holds the keys"
        )
    found = {name: _plain(array[name]) for name in array.dtype.names}
    yield {name: column for name, column in found.items() if column is not None}


def _loaded(content: bytes, location: str) -> Any:
    length = npy_header_length(content[:NPY_PREFIX])
    layout = npy_layout(content[:length]) if length <= len(content) else None
    if layout is not None and layout.num_bytes > len(content) - length:  # numpy would take the memory first
        raise SourceError(
            f"{storage.shown(location)} is cut: its header announces shape {layout.shape} of {layout.num_bytes:,} "
            f"bytes, but {len(content) - length:,} follow it: fetch it again"
        )
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise SourceError(f"{storage.shown(location)} is not an array without objects: {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim != 1:
        raise SourceError(f"{storage.shown(location)} does not hold one array of one dimension")
    return array


def _plain(array: Any) -> Column | None:
    if array.dtype.kind == "b":
        return Column("bool", array.view(np.uint8))
    if array.dtype.kind == "i" or (array.dtype.kind == "u" and array.dtype.itemsize < 8):
        return Column("int", array.astype("<i8"))
    if array.dtype.kind == "f":
        return Column("float", array.astype("<f8"))
    if array.dtype.kind in "USu":
        return Column.of(array.tolist())
    return None


def _name_of(on: str, names: list[str], location: str) -> str:
    """Return the column of a table that is meant: ``json.uid`` of a data set is often ``uid`` of a table."""
    for name in (on, on.rpartition(".")[2]):
        if name in names:
            return name
    raise ArgumentError(
        f"{storage.shown(location)} has no column {on!r} to match samples by: it has {', '.join(names) or 'none'}"
    )
