"""Bytes at a path or URL: stores, small objects, downloads with retries, compression.

A *location* is a local path or a URL (``s3://``, ``gs://``, ``az://``, ``hf://``, ``http://``, ``memory://``). Clients
are made on first use in each process. Errors of the many back ends leave here as `StorageError` or `NotFoundError` with
the location in the message, without its credentials. `storage.engine` fetches ranges and whole files.
"""

from wdsdist.storage.store import Entry, delete, list, put, read, read_until, stat, upload  # noqa: A004 - the verb
from wdsdist.storage.urls import (
    StorageOptions,
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

PASSING = frozenset({"timeout", "unreachable", "broken", "busy"})
"""The kinds of a `StorageError` of a store that is away for now."""

__all__ = [
    "PASSING", "Deadline", "Entry", "StorageOptions", "delete", "is_read_only", "is_remote", "join", "list",
    "local_path", "named", "normalise", "put", "read", "read_until", "scheme", "shown", "split", "stat", "upload",
]  # fmt: skip
