"""DuckDB without a way to files, network or settings, and SQL expressions over columns that it evaluates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.arrow import pyarrow
from wdsdist._util.extras import extra
from wdsdist.curation.columns import ColumnReader, keep_classes, names
from wdsdist.errors import ArgumentError, given

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_TABLE, _ROW = "some of the samples", "number of the row"
_ROWS = 4_000_000
"""Samples of one query, about, which bounds memory."""


def connected(purpose: str, **config: str) -> Any:
    """Connect to a DuckDB database in memory, which reaches no file, network, variable of Python, or setting."""
    connection = extra("duckdb", "tables", purpose).connect(":memory:", config={"temp_directory": "", **config})
    for setting in (
        "enable_progress_bar", "enable_external_access", "autoinstall_known_extensions", "autoload_known_extensions",
        "python_enable_replacements", "preserve_insertion_order",
    ):  # fmt: skip
        connection.execute(f"SET {setting} = false")
    connection.execute("SET lock_configuration = true")
    return connection


def is_true(manifest: Manifest, where: str) -> npt.NDArray[np.bool_]:
    """Return bool [samples]: for which samples an SQL expression over columns is true.

    Raises `ArgumentError` for anything but an expression over the columns of the data set.
    """
    if not isinstance(where, str) or not where.strip():
        raise ArgumentError(f"where is {where!r}: it must be an SQL expression such as '\"json.width\" >= 256'")
    pa, duckdb, first = pyarrow(given("where")), extra("duckdb", "tables", given("where")), 0
    is_chosen = np.zeros(manifest.num_samples, np.bool_)
    with connected(given("where")) as connection:
        used = _columns(connection, where)
        keep_classes(manifest, used)
        for part in manifest.data_sets:
            try:
                readers = {name: ColumnReader(part, name) for name in used}
            except ArgumentError as error:
                if set(used) <= set(names(part)):
                    raise
                raise _refused(where, f"{error}; put strings in single quotes, as in 'dog'") from None
            filled = np.flatnonzero(part.counts)
            groups = (np.cumsum(part.counts[filled]) - 1) // _ROWS
            for shards in np.split(filled, np.flatnonzero(np.diff(groups)) + 1) if len(filled) else ():
                columns: dict[str, Any] = {name: reader.read(shards.tolist()) for name, reader in readers.items()}
                columns[_ROW] = np.arange(first, first := first + int(part.counts[shards].sum()))
                connection.register(_TABLE, pa.table(columns))
                try:
                    connection.execute(f'SELECT "{_ROW}" FROM "{_TABLE}" WHERE CAST(({where}\n) AS BOOLEAN)')
                    is_chosen[connection.fetchnumpy()[_ROW]] = True
                except duckdb.Error as error:
                    raise _refused(where, str(error).partition("\n")[0].rpartition("Error: ")[2]) from None
    return is_chosen


def _columns(connection: Any, where: str) -> list[str]:
    """Return the columns that an expression names."""
    parsed = json.loads(connection.execute("SELECT json_serialize_sql(?)", [f"SELECT ({where}\n)"]).fetchall()[0][0])
    if parsed.get("error"):
        raise _refused(where, str(parsed.get("error_message", "it cannot be parsed")))
    used = set[str]()
    for expression in _expressions(parsed):
        match expression:
            case {"class": "COLUMN_REF", "column_names": [str(name)]}:
                used.add(name)
            case {"class": "COLUMN_REF", "column_names": list(parts)}:
                raise _refused(where, f'write a column whose name has a dot in double quotes: "{".".join(parts)}"')
    return sorted(used)


def _expressions(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects in a serialized expression."""
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _expressions(part)


def _refused(where: str, reason: str) -> ArgumentError:
    return ArgumentError(f"where is {where!r}: {' '.join(reason.split())}", argument="where")
