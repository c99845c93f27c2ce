"""Values of columns as Arrow arrays: integers of 64 bits, floats, booleans and strings, each possibly missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist.curation.tables import pyarrow

_EXACT = 2**53
"""The largest integer up to which floats hold all integers."""


def from_values(values: Iterable[Any]) -> Any:
    """Return Python values as an array of the narrowest type that changes none of them; ``None`` is a missing value.

    >>> [str(from_values(one).type) for one in ([1, None, 3], [1, 2.5], ["a", 1], [None])]
    ['int64', 'double', 'large_string', 'null']
    """
    pa, listed = pyarrow(), list(values)
    types = {type(value) for value in listed} - {type(None)}
    if not types:
        return pa.nulls(len(listed))
    if types == {bool}:
        return pa.array(listed, "bool")
    largest = max((abs(value) for value in listed if type(value) is int), default=0)
    if types <= {bool, int} and largest < 2**63:
        return pa.array([None if value is None else int(value) for value in listed], "int64")
    if types <= {bool, int, float} and largest <= _EXACT:
        return pa.array([None if value is None else float(value) for value in listed], "double")
    texts = (None if value is None else _string(value) for value in listed)
    return pa.array(list(texts), "large_string")


def _string(value: Any) -> str:
    """Return a value as a string: a whole float as its integer, so that 3 and 3.0 are the same key."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        value = int(value)
    return str(value).encode("utf-8", "backslashreplace").decode()


def common_type(arrays: Iterable[Any]) -> Any:
    """Return the narrowest type that holds the values of all arrays without a change."""
    pa = pyarrow()
    types, largest = set[str](), 0
    for array in arrays:
        types.add(str(array.type))
        if str(array.type) == "int64" and array.null_count < len(array):
            least, most = pa.compute.min_max(array).values()
            largest = max(largest, -least.as_py(), most.as_py())
    types.discard("null")
    if len(types) == 1:
        return pa.type_for_alias(types.pop())
    if "large_string" in types:
        return pa.large_string()
    if types == {"int64", "bool"}:
        return pa.int64()
    return pa.float64() if largest <= _EXACT else pa.large_string()


def concatenated(parts: Sequence[Any]) -> Any:
    """Return arrays and chunked arrays one after another, as a chunked array of the narrowest type for all."""
    kind = common_type(parts)
    return pyarrow().chunked_array(
        [chunk.cast(kind) for part in parts for chunk in getattr(part, "chunks", [part])], kind
    )


def plain(values: Any) -> Any:
    """Return an array of a table as one of the four types; ``None`` for values that a column cannot have, as lists."""
    pa = pyarrow()
    types, kind = pa.types, values.type
    if types.is_dictionary(kind):
        return plain(values.cast(kind.value_type))
    if types.is_null(kind) or types.is_boolean(kind):
        return values
    if types.is_nested(kind) or "binary" in str(kind):
        return None
    if types.is_integer(kind) and kind != pa.uint64():
        return values.cast(pa.int64())
    if types.is_floating(kind):
        return values.cast(pa.float64())
    return values.cast(pa.large_string())


def as_strings(values: Any) -> Any:
    """Return values as the strings by which they are hashed and compared."""
    return values if str(values.type) == "large_string" else values.cast(pyarrow().large_string())


def filled(values: Any) -> Any:
    """Return numbers or booleans with zeros in place of missing values."""
    return values.fill_null(pyarrow().scalar(0).cast(values.type)) if values.null_count else values


def to_numpy(values: Any) -> npt.NDArray[Any]:
    """Return values as an array of numpy: int64, float64, bool, or objects.

    If values are missing, numbers and booleans are float64 with NaN there, and strings have ``None``.
    """
    pa = pyarrow()
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if str(values.type) == "large_string":
        strings: npt.NDArray[Any] = np.array([*values.to_pylist(), None], object)[:-1]
        return strings
    if values.null_count:
        values = values.cast("int8") if str(values.type) == "bool" else values
        return np.asarray(values.cast("double", safe=False).to_numpy(zero_copy_only=False), np.float64)
    return np.asarray(values.to_numpy(zero_copy_only=False))
