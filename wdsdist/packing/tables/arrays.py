"""Values of columns as Arrow arrays: int64, double, bool and large_string, each possibly missing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from wdsdist._util.arrow import pyarrow

JSON_TEXT = {b"json": b"text"}
"""Metadata of a field whose strings are JSON: nested values, and values of several types in one column."""


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
