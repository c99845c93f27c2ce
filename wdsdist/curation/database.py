"""DuckDB in memory, locked: without a way to files, network or settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist._util.extras import extra

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_ROWS = 4_000_000
"""Samples of one query, about, which bounds memory."""


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


def shard_groups(manifest: Manifest, rows: int = _ROWS) -> Iterator[list[int]]:
    """Yield the numbers of the shards that have samples, some at a time, with about so many samples together."""
    group, count = list[int](), 0
    for number in np.flatnonzero(manifest.counts).tolist():
        if group and count + manifest.counts[number] > rows:
            yield group
            group, count = [], 0
        group.append(number)
        count += int(manifest.counts[number])
    if group:
        yield group


def total_memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
