"""SQL over columns, by DuckDB: expressions of one sample, without a way to files, network or settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.extras import extra
from wdsdist.curation import read
from wdsdist.curation.columns import ColumnReader, names
from wdsdist.curation.database import connected, shard_groups
from wdsdist.curation.tables import pyarrow
from wdsdist.errors import ArgumentError

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_ROW = "number of the row"
_BEFORE = "SELECT ("
"""Text before an expression that is parsed; a line break and a parenthesis follow it."""


def is_true(manifest: Manifest, where: str) -> npt.NDArray[np.bool_]:
    """Return bool [samples]: for which samples an SQL expression over columns is true.

    Raises `ArgumentError` for anything but an expression over the columns of the data set.
    """
    pa = pyarrow("where=")
    with connected("where=") as connection:
        wanted = _columns(connection, where, manifest)
        read.make_classes(manifest, wanted)
        found = [np.zeros(0, np.bool_)]
        for part in manifest.data_sets:
            readers = {name: _reader(part, name, where) for name in wanted}
            for shards in shard_groups(part):
                columns = {name: reader.read(shards) for name, reader in readers.items()}
                table = pa.table(columns) if columns else pa.table({"": pa.nulls(int(part.counts[shards].sum()))})
                found.append(_evaluated(connection, where, table))
        return np.concatenate(found)


def _evaluated(connection: Any, where: str, table: Any) -> npt.NDArray[np.bool_]:
    """Return for which rows of a table an expression is true."""
    # The numbers of rows, also for an expression that names no column.
    numbered = table.append_column(_ROW, pyarrow().array(np.arange(table.num_rows)))
    with connection.cursor() as cursor:
        cursor.register("samples", numbered)
        try:
            cursor.execute(f'SELECT "{_ROW}" AS row FROM samples WHERE coalesce(CAST(({where}\n) AS BOOLEAN), false)')
            rows = cursor.fetchnumpy()["row"]
        except extra("duckdb", "tables", "where=").Error as error:
            raise _refused(where, str(error).partition("\n")[0].rpartition("Error: ")[2]) from None
    chosen = np.zeros(table.num_rows, np.bool_)
    chosen[rows] = True
    return chosen


def _reader(part: Manifest, name: str, where: str) -> ColumnReader:
    try:
        return ColumnReader(part, name)
    except ArgumentError as error:
        if name in names(part):
            raise
        raise _refused(where, f"{error}; a string stands in single quotes: '{name}'") from None


def _columns(connection: Any, where: str, manifest: Manifest) -> list[str]:
    """Return the columns that an expression names."""
    if not isinstance(where, str) or not where.strip():
        raise ArgumentError(f"where is {where!r}: it must be an SQL expression such as '\"json.width\" >= 256'")
    text = connection.execute("SELECT json_serialize_sql(?)", [f"{_BEFORE}{where}\n)"]).fetchall()[0][0]
    parsed = json.loads(text)
    if parsed.get("error"):
        raise _refused(where, _syntax_error(where, parsed))
    wanted, asked = set[str](), "SELECT stability FROM duckdb_functions() WHERE function_name = ?"
    for expression in _expressions(parsed):
        if expression["class"] == "SUBQUERY":  # samples are looked at some at a time
            raise _refused(where, "a subquery looks at more than one sample")
        if expression["class"] == "FUNCTION":  # such as random(), by which no view could be made again
            function = expression["function_name"]
            if {"VOLATILE", "CONSISTENT_WITHIN_QUERY"} & set(sum(connection.execute(asked, [function]).fetchall(), ())):
                raise _refused(where, f"{function} does not depend on a sample's values alone")
        if expression["class"] == "COLUMN_REF":
            name = ".".join(expression["column_names"])
            if name not in expression["column_names"]:
                problem = f'write a column whose name has a dot in double quotes: "{name}"'
                raise _refused(where, problem if name in names(manifest) else f"the data set has no column {name!r}")
            wanted.add(name)
    return sorted(wanted)


def _syntax_error(where: str, parsed: dict[str, Any]) -> str:
    """Return the syntax error of an expression, with its position."""
    reason, place = str(parsed.get("error_message", "it cannot be parsed")), parsed.get("position")
    if place is None:
        return reason
    before = where.encode()[: int(place) - len(_BEFORE)]
    if len(before) < len(where.encode()):
        return f"{reason}, at character {len(before.decode(errors='replace')) + 1}"
    return "it has a ) too many" if where.count(")") > where.count("(") else "it ends where more is needed"


def _expressions(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the expressions in a serialized expression."""
    if isinstance(value, dict) and isinstance(value.get("class"), str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _expressions(part)


def _refused(where: str, reason: str) -> ArgumentError:
    return ArgumentError(f"where is {where!r}: {' '.join(reason.split())}", argument="where")
