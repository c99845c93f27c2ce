"""DuckDB without a way to files, network or settings, and SQL expressions over columns that it evaluates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.extras import extra
from wdsdist.curation.columns import ColumnReader, make_classes, names
from wdsdist.curation.tables import pyarrow
from wdsdist.errors import ArgumentError

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_ROW = "number of the row"
_ROWS = 4_000_000
"""Samples of one query, about, which bounds memory."""


def connected(purpose: str, *, scratch: str = "", memory_limit: int = 0) -> Any:
    """Connect to a DuckDB database in memory that may read no file and spills into ``scratch`` only."""
    config: dict[str, Any] = {"temp_directory": scratch}
    if memory_limit:
        config["memory_limit"] = f"{memory_limit}B"
    connection = extra("duckdb", "tables", purpose).connect(":memory:", config=config)
    connection.execute("SET enable_progress_bar = false")
    for setting in ("enable_external_access", "autoinstall_known_extensions", "autoload_known_extensions"):
        connection.execute(f"SET {setting} = false")
    connection.execute("SET python_enable_replacements = false; SET preserve_insertion_order = false")
    connection.execute("SET lock_configuration = true")
    return connection


def is_true(manifest: Manifest, where: str) -> npt.NDArray[np.bool_]:
    """Return bool [samples]: for which samples an SQL expression over columns is true.

    Raises `ArgumentError` for anything but an expression over the columns of the data set.
    """
    if not isinstance(where, str) or not where.strip():
        raise ArgumentError(f"where is {where!r}: it must be an SQL expression such as '\"json.width\" >= 256'")
    pa, duckdb, chosen, first = pyarrow("where="), extra("duckdb", "tables", "where="), [], 0
    with connected("where=") as connection:
        wanted = _columns(connection, where, manifest)
        make_classes(manifest, wanted)
        for part in manifest.data_sets:
            readers = {name: _reader(part, name, where) for name in wanted}
            for shards in _groups(part):
                columns: dict[str, Any] = {name: reader.read(shards) for name, reader in readers.items()}
                columns[_ROW] = np.arange(first, first := first + int(part.counts[shards].sum()))
                connection.register("samples", pa.table(columns))
                try:
                    connection.execute(f'SELECT "{_ROW}" FROM samples WHERE CAST(({where}\n) AS BOOLEAN)')
                    chosen.append(connection.fetchnumpy()[_ROW])
                except duckdb.Error as error:
                    raise _refused(where, str(error).partition("\n")[0].rpartition("Error: ")[2]) from None
    found = np.zeros(first, np.bool_)
    for rows in chosen:
        found[rows] = True
    return found


def _groups(manifest: Manifest) -> list[list[int]]:
    """Return the numbers of the shards that have samples, in groups of about `_ROWS` samples."""
    filled = np.flatnonzero(manifest.counts)
    groups = (np.cumsum(manifest.counts[filled]) - 1) // _ROWS
    return [part.tolist() for part in np.split(filled, np.flatnonzero(np.diff(groups)) + 1) if len(part)]


def _reader(part: Manifest, name: str, where: str) -> ColumnReader:
    try:
        return ColumnReader(part, name)
    except ArgumentError as error:
        if name in names(part):
            raise
        raise _refused(where, f"{error}; a string stands in single quotes: '{name}'") from None


def _columns(connection: Any, where: str, manifest: Manifest) -> list[str]:
    """Return the columns that an expression names.

    Raises `ArgumentError` for what depends on more than a sample's columns, by which no view could be made again.
    """
    parsed = json.loads(connection.execute("SELECT json_serialize_sql(?)", [f"SELECT ({where}\n)"]).fetchall()[0][0])
    if parsed.get("error"):
        raise _refused(where, str(parsed.get("error_message", "it cannot be parsed")))
    wanted, stability = set[str](), "SELECT stability FROM duckdb_functions() WHERE function_name = ?"
    for expression in _expressions(parsed):
        match expression:
            case {"class": "SUBQUERY"}:  # samples are looked at some at a time
                raise _refused(where, "a subquery looks at more than one sample")
            case {"class": "FUNCTION", "function_name": function}:
                kinds = {kind for (kind,) in connection.execute(stability, [function]).fetchall()}
                if kinds & {"VOLATILE", "CONSISTENT_WITHIN_QUERY"}:  # such as random()
                    raise _refused(where, f"{function} does not depend on a sample's values alone")
            case {"class": "COLUMN_REF", "column_names": list(parts)}:
                if len(parts) > 1:
                    name = ".".join(parts)
                    raise _refused(where, f'write a column whose name has a dot in double quotes: "{name}"')
                wanted.add(parts[0])
    return sorted(wanted)


def _expressions(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects in a serialized expression."""
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _expressions(part)


def _refused(where: str, reason: str) -> ArgumentError:
    return ArgumentError(f"where is {where!r}: {' '.join(reason.split())}", argument="where")
