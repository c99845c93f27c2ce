"""Tables that people have values in: Parquet, CSV, JSON Lines, ``.npy`` and lists of lines, here or at a URL.

Each is read whole into columns. Nested values other than objects of values are left out.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist._util.extras import extra
from wdsdist.errors import ArgumentError, SourceError, SourceNotFoundError
from wdsdist.shards.columns.column import Column

_TABLES = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "json", ".ndjson": "json", ".jsonlines": "json",
}  # fmt: skip
_GZIP = ".gz"


def values(location: str, on: str) -> Column:
    """Return the values of one column of a file; of a ``.npy`` or a list of lines, all.

    Args:
        location: path or URL, whose suffix tells the form; any other than those of tables is a list of lines.
        on: the column's name, in a file that has several. ``json.uid`` is looked for as ``uid`` too.

    Raises:
        SourceNotFoundError: there is no such file.
        SourceError: its content is not of its form.
        ArgumentError: it has no such column.
    """
    form = _form(location)
    content = _content(location)
    if form == "npy":
        return _array(content, location)
    if form == "lines":
        lines = content.decode("utf-8", "surrogateescape").splitlines()
        return Column.of([line for line in lines if line])
    found = _table(content, form, location)
    name = _name_of(on, list(found), location)
    return found[name]


def columns(location: str, on: str) -> tuple[Column, dict[str, Column]]:
    """Return the column of a table that its rows are matched by, and all others by their names.

    Raises what `values` raises.
    """
    form = _form(location)
    if form == "lines":
        raise ArgumentError(
            f"{storage.shown(location)} is no table that can be joined: it must end in {', '.join(_TABLES)} or .npy"
        )
    content = _content(location)
    found = _fields(content, location) if form == "npy" else _table(content, form, location)
    name = _name_of(on, list(found), location)
    return found[name], {other: column for other, column in found.items() if other != name}


def of_arrow(values: Any) -> Column | None:
    """Return the column of an array of pyarrow, or ``None`` for a type that no column has, such as lists."""
    import pyarrow

    kind = values.type
    if pyarrow.types.is_dictionary(kind):
        return of_arrow(values.cast(kind.value_type))
    if isinstance(values, pyarrow.ChunkedArray):
        values = values.combine_chunks()
    missing = np.asarray(values.is_null()).view(np.uint8) if values.null_count else None
    if pyarrow.types.is_boolean(kind):
        return Column("bool", np.asarray(values.fill_null(False)).view(np.uint8), None, missing)
    if pyarrow.types.is_integer(kind) and kind != pyarrow.uint64():
        return Column("int", np.asarray(values.fill_null(0).cast(pyarrow.int64())), None, missing)
    if pyarrow.types.is_floating(kind):
        return Column("float", np.asarray(values.fill_null(0.0).cast(pyarrow.float64())), None, missing)
    if pyarrow.types.is_null(kind):
        return Column("float", np.zeros(len(values)), None, np.ones(len(values), np.uint8))
    if pyarrow.types.is_nested(kind) or pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        return None
    texts = values.cast(pyarrow.large_string()).fill_null("")
    _, starts, data = texts.buffers()
    offsets = np.frombuffer(starts, np.int64, len(texts) + 1, 8 * texts.offset)
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return Column("text", content[offsets[0] : offsets[-1]], offsets - offsets[0], missing)


def _form(location: str) -> str:
    name = storage.split(location)[1].partition("?")[0].lower().removesuffix(_GZIP)
    if name.endswith(".npy"):
        return "npy"
    return next((form for suffix, form in _TABLES.items() if name.endswith(suffix)), "lines")


def _content(location: str) -> bytes:
    try:
        content = storage.read(location)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceNotFoundError(f"{storage.shown(location)} does not exist") from error
    if storage.split(location)[1].partition("?")[0].lower().endswith(_GZIP):
        import gzip

        try:
            return gzip.decompress(content)
        except (OSError, EOFError) as error:
            raise SourceError(f"{storage.shown(location)} is not whole gzip data: {error}") from error
    return content


def _table(content: bytes, form: str, location: str) -> dict[str, Column]:
    label = storage.shown(location)

    def part(module: str) -> Any:
        return extra(f"pyarrow{module}", "columns", f"reading {label}")

    pyarrow = part("")
    stream = pyarrow.BufferReader(content)
    try:
        if form == "parquet":
            table = part(".parquet").read_table(stream)
        elif form == "json":
            table = part(".json").read_json(stream)
        else:
            options = part(".csv").ParseOptions(delimiter="\t" if form == "tsv" else ",", newlines_in_values=True)
            table = part(".csv").read_csv(stream, parse_options=options)
    except (pyarrow.ArrowException, OSError) as error:
        raise SourceError(f"{label} cannot be read as {form}: {error}") from error
    while any(part(".types").is_struct(field.type) for field in table.schema):
        table = table.flatten()
    found = {name: of_arrow(table.column(number)) for number, name in enumerate(table.column_names)}
    return {name: column for name, column in found.items() if column is not None}


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


def _fields(content: bytes, location: str) -> dict[str, Column]:
    array = _loaded(content, location)
    if array.dtype.names is None:
        raise ArgumentError(
            f"{storage.shown(location)} has no named fields: to join it, save a structured array, one field of which "
            f"holds the keys"
        )
    found = {name: _plain(array[name]) for name in array.dtype.names}
    return {name: column for name, column in found.items() if column is not None}


def _loaded(content: bytes, location: str) -> Any:
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
        return Column.of([one.decode() if isinstance(one, bytes) else str(one) for one in array.tolist()])
    return None


def _name_of(on: str, names: list[str], location: str) -> str:
    """Return the column of a table that is meant: ``json.uid`` of a data set is often ``uid`` of a table."""
    for name in (on, on.rpartition(".")[2]):
        if name in names:
            return name
    raise ArgumentError(
        f"{storage.shown(location)} has no column {on!r} to match samples by: it has {', '.join(names) or 'none'}"
    )
