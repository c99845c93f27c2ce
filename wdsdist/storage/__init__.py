"""Bytes at a path or URL: stores, small objects, downloads with retries, compression.

A *location* is a local path or a URL (``s3://``, ``gs://``, ``az://``, ``hf://``, ``http://``, ``memory://``). Clients
are made on first use in each process. Errors of the many back ends leave here as `StorageError` or `NotFoundError` with
the location in the message, without its credentials. The engine is imported at the first request.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wdsdist.storage.store import Entry, delete, list, put, read, read_until, stat, upload  # noqa: A004 - the verb
from wdsdist.storage.urls import (
    StorageOptions,
    beside,
    is_read_only,
    is_remote,
    join,
    local_path,
    named,
    normalise,
    scheme,
    shown,
    split,
)
from wdsdist.storage.waiting import Deadline

if TYPE_CHECKING:
    from wdsdist.storage.engine import Download, Transfer, begin_ranges, fetch
    from wdsdist.storage.failures import PASSING, Failure

_LATE = {"Download": "engine", "Transfer": "engine", "begin_ranges": "engine", "fetch": "engine",
         "PASSING": "failures", "Failure": "failures"}  # fmt: skip

__all__ = [
    "PASSING", "Deadline", "Download", "Entry", "Failure", "StorageOptions", "Transfer", "begin_ranges", "beside",
    "delete", "fetch", "is_read_only", "is_remote", "join", "list", "local_path", "named", "normalise",
    "put", "read", "read_until", "scheme", "shown", "split", "stat", "upload",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"wdsdist.storage.{_LATE[name]}"), name)
