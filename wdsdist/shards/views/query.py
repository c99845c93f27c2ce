"""Evaluate SQL expressions over columns, by DuckDB: expressions only, with no way to files, network or settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.extras import extra
from wdsdist.errors import ArgumentError
from wdsdist.shards.columns import read

if TYPE_CHECKING:
    from wdsdist.shards.columns.column import Column
    from wdsdist.shards.manifest import Manifest

_ROWS = 4_000_000
"""Samples that are looked at in one query, which bounds memory."""

_SETTINGS = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}

_BEFORE = "SELECT ("
"""What stands before an expression that is parsed; a line break and a parenthesis stand behind it."""

_EXPRESSIONS = frozenset(
    ["COLUMN_REF", "CONSTANT", "VALUE_CONSTANT", "COMPARISON", "CONJUNCTION", "FUNCTION", "OPERATOR", "BETWEEN", "CASE",
     "CAST", "COLLATE"]
)  # fmt: skip
"""Classes of expressions that depend on the values of one sample alone; others are subqueries, windows, aggregates."""


def is_true(manifest: Manifest, where: str) -> npt.NDArray[np.bool_]:
    """Return bool [samples]: whether an SQL expression over columns is true of each sample.

    Raises `ArgumentError` for anything but an expression over the columns of the data set.
    """
    duckdb = extra("duckdb", "columns", "where=")
    extra("pyarrow", "columns", "where=")
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    try:
        columns = _columns(connection, where, manifest)
        found = np.zeros(manifest.num_samples, np.bool_)
        for first in range(0, len(found), _ROWS):
            last = min(first + _ROWS, len(found))
            table = {name: column.part(first, last).arrow() for name, column in columns.items()}
            found[first:last] = _evaluated(duckdb, connection, where, table, last - first)
        return found
    finally:
        connection.close()


def _evaluated(duckdb: Any, connection: Any, where: str, table: dict[str, Any], rows: int) -> Any:
    import pyarrow

    # A column for each query, so that an expression over no column has a row for each sample.
    samples = pyarrow.table({**table, "": pyarrow.array(np.zeros(rows, np.bool_))})
    cursor = connection.cursor()
    try:
        cursor.register("samples", samples)
        cursor.execute(f"SELECT coalesce(CAST(({where}\n) AS BOOLEAN), false) AS chosen FROM samples")
        return cursor.fetchnumpy()["chosen"]
    except duckdb.Error as error:
        raise _refused(where, str(error).partition("\n")[0].rpartition("Error: ")[2]) from None
    finally:
        cursor.close()


def _columns(connection: Any, where: str, manifest: Manifest) -> dict[str, Column]:
    """Return the columns that an expression names. Raises `ArgumentError` for anything but an expression over them."""
    if not isinstance(where, str) or not where.strip():
        raise ArgumentError(f"where is {where!r}: it must be an SQL expression such as '\"json.width\" >= 256'")
    text = _rows(connection, "SELECT json_serialize_sql(?)", f"{_BEFORE}{where}\n)")[0][0]
    parsed = json.loads(text)
    if parsed.get("error"):
        raise _refused(where, _syntax_error(where, parsed))
    statements = parsed["statements"]
    node = statements[0]["node"] if len(statements) == 1 else {}
    plain = node.get("type") == "SELECT_NODE" and len(node["select_list"]) == 1
    others = ("modifiers", "where_clause", "group_expressions", "having", "qualify")
    if not plain or any(map(node.get, others)) or node["from_table"].get("type") != "EMPTY" or node["cte_map"]["map"]:
        raise _refused(where, "it must be one expression, not a statement")
    names: set[tuple[str, ...]] = set()
    for one in _nodes(node["select_list"][0]):
        if one["class"] not in _EXPRESSIONS:
            raise _refused(where, f"a {one['class'].lower()} looks at more than one sample")
        if one["class"] == "COLUMN_REF":
            names.add(tuple(one["column_names"]))
        if one["class"] == "FUNCTION":
            _check_function(connection, where, str(one["function_name"]))
    return {parts[-1]: _column(where, parts, manifest) for parts in sorted(names)}


def _syntax_error(where: str, parsed: dict[str, Any]) -> str:
    """Return the syntax error of a ``where`` expression, with its position."""
    reason, place = str(parsed.get("error_message", "it cannot be parsed")), parsed.get("position")
    if place is None:
        return reason
    before = where.encode()[: int(place) - len(_BEFORE)]
    if len(before) < len(where.encode()):
        return f"{reason}, at character {len(before.decode(errors='replace')) + 1}"
    return "it has a ) too many" if where.count(")") > where.count("(") else "it ends where more is needed"


def _rows(connection: Any, asked: str, argument: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        return list(cursor.execute(asked, [argument]).fetchall())


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the expressions in a serialized one, itself first."""
    if isinstance(value, dict):
        if isinstance(value.get("class"), str) and "type" in value:
            yield value
        for part in value.values():
            yield from _nodes(part)
    elif isinstance(value, list):
        for part in value:
            yield from _nodes(part)


def _column(where: str, parts: tuple[str, ...], manifest: Manifest) -> Column:
    """Return the column of a name. Its store is not asked for all names unless there is none of this one."""
    name = ".".join(parts)
    try:
        if len(parts) == 1:
            return read.column(manifest, name)
    except read.UnknownColumnError as error:
        raise _refused(where, f"{error}; a text stands in single quotes: '{name}'") from None
    known = read.names(manifest)
    if name in known:
        raise _refused(where, f'a column whose name has a dot stands in double quotes: "{name}"')
    raise _refused(where, f"{read.unknown(name, known)}; a text stands in single quotes: '{name}'")


def _check_function(connection: Any, where: str, name: str) -> None:
    """Raise `ArgumentError` for a function that is not a pure one of single values, such as ``random``."""
    asked = "SELECT function_type, stability FROM duckdb_functions() WHERE function_name = ?"
    found = _rows(connection, asked, name.lower())
    if not found:
        raise _refused(where, f"there is no function {name}")
    if ("scalar", "CONSISTENT") not in found or any(
        kind in ("aggregate", "window") or (kind == "scalar" and stable != "CONSISTENT") for kind, stable in found
    ):
        raise _refused(where, f"{name} is no function of a sample's values alone")


def _refused(where: str, reason: str) -> ArgumentError:
    return ArgumentError(f"where is {where!r}: {reason}")
