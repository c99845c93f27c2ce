"""Values of columns as Arrow arrays: int64, double, bool and large_string, each possibly missing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.extras import extra

JSON_TEXT = {b"json": b"text"}
"""Metadata of a field whose strings are JSON: nested values, and values of several types in one column."""


KINDS = {"int64": "int", "double": "float", "bool": "bool", "large_string": "string"}
"""The types of values, and their names for people."""


def pyarrow(purpose: str = "reading a table") -> Any:
    """Return pyarrow with the modules used here. Raises `ExtraMissingError` if it is not installed."""
    for name in ("compute", "csv", "ipc", "parquet"):
        extra(f"pyarrow.{name}", "tables", purpose)
    return extra("pyarrow", "tables", purpose)


def from_values(values: Iterable[Any]) -> Any:
    """Return Python values as an array; ``None`` is a missing value. Values of several types become strings.

    >>> [str(from_values(values).type) for values in ([1, None, 3], [1, 2.5], ["a", 1], [None])]
    ['int64', 'double', 'large_string', 'null']
    """
    pa, listed = pyarrow(), list(values)
    try:
        return plain(pa.array(listed))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError):
        strings = (value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value for value in listed)
        encoded = (None if string is None else str(string).encode("utf-8", "backslashreplace") for string in strings)
        return pa.array(list(encoded), "large_binary").cast("large_string")


def plain(values: Any, metadata: Any = None) -> Any:
    """Return values of any flat type as one of the four types, or null; values of JSON text (`JSON_TEXT`) too.

    Raises ``pyarrow.ArrowInvalid`` for values that a column cannot have, as lists.
    """
    pa, kind, types = pyarrow(), values.type, pyarrow().types
    if metadata == JSON_TEXT:
        rows = (None if string is None else json.loads(string) for string in values.to_pylist())
        return from_values(
            json.dumps(row, ensure_ascii=False) if isinstance(row, (dict, list)) else row for row in rows
        )
    if types.is_dictionary(kind):
        return plain(values.cast(kind.value_type))
    if types.is_nested(kind):
        raise pa.ArrowInvalid(f"values of the type {kind} are nested")
    if types.is_null(kind) or types.is_boolean(kind):
        return values
    if types.is_integer(kind) and kind != pa.uint64():
        return values.cast("int64")
    return values.cast("double" if types.is_floating(kind) else "large_string")


def concatenated(parts: Iterable[Any]) -> Any:
    """Return arrays and chunked arrays one after another, as a chunked array of the narrowest type for all.

    Values that have no other type in common become strings.
    """
    pa, chunks = pyarrow(), [chunk for part in parts for chunk in getattr(part, "chunks", [part])]
    try:
        schemas = [pa.schema([("", kind)]) for kind in {pa.null(), *(chunk.type for chunk in chunks)}]
        kind = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        kind = pa.large_string()
    return pa.chunked_array([chunk.cast(kind, safe=False) for chunk in chunks], kind)


def filled_up(values: Any, others: Any, *, overwrite: bool = False) -> tuple[Any, int]:
    """Return values whose gaps are filled from others, and how many samples have different values in both.

    With ``overwrite``, the others come first. ``values`` is a chunked array, and so is the result.
    """
    both, compute = concatenated([values, others]), pyarrow().compute
    values, others = both[: len(values)], both[len(values) :]
    if str(both.type) == "null":
        return values, 0
    differs = compute.not_equal(values, others)
    if str(both.type) == "double":
        differs = compute.and_not(differs, compute.and_(compute.is_nan(values), compute.is_nan(others)))
    filled = compute.coalesce(others, values) if overwrite else compute.coalesce(values, others)
    return filled, compute.sum(differs).as_py() or 0


def filled(values: Any) -> Any:
    """Return values with zeros or empty strings in place of missing ones."""
    if not values.null_count:
        return values
    return values.fill_null("" if str(values.type) == "large_string" else pyarrow().scalar(0).cast(values.type))


def to_numpy(values: Any) -> npt.NDArray[Any]:
    """Return values as an array of numpy: int64, float64, bool, or objects.

    If values are missing, numbers and booleans are float64 with NaN there, and strings have ``None``.
    """
    if values.null_count and str(values.type) != "large_string":
        values = values.cast("int8") if str(values.type) == "bool" else values
        values = values.cast("double", safe=False)
    array: npt.NDArray[Any] = np.asarray(values.to_numpy(zero_copy_only=False))
    return array
