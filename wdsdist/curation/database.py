"""DuckDB in memory, locked: without a way to files, network or settings."""

from __future__ import annotations

from typing import Any

from wdsdist._util.extras import extra


def connected(purpose: str, *, scratch: str = "", memory_limit: int = 0) -> Any:
    """Return a connection to a database in memory that reaches no file, but for what it spills into ``scratch``."""
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
