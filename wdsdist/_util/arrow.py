"""Columns as Arrow arrays: int64, double, bool and large_string, each possibly missing, and pyarrow itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.extras import extra

KINDS = {"int64": "int", "double": "float", "bool": "bool", "large_string": "string"}
"""The types of values, and their names for people."""


def pyarrow(purpose: str = "reading a table") -> Any:
    """Return pyarrow with its modules that tables need. Raises `ExtraMissingError` if it is not installed."""
    for name in ("compute", "csv", "ipc", "parquet"):
        extra(f"pyarrow.{name}", "tables", purpose)
    return extra("pyarrow", "tables", purpose)


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
