"""Bytes at a path or URL: clients, small objects, downloads with retries, compression.

A *location* is a local path, which is read directly, or a URL (``s3://``, ``gs://``, ``az://``, ``hf://``, ``http://``,
``memory://``), which is read through fsspec. Clients are made on first use in each process. Errors of the many back
ends leave here as `StorageError` or ``FileNotFoundError`` with the location in the message, without its credentials.

`wdsdist.storage.memory` is a back end in memory with planted faults, for tests.
"""

from wdsdist.storage.clients import StorageOptions, named, options_for, store
from wdsdist.storage.download import Connections, Fetching, Transfer, begin_fetch, fetch
from wdsdist.storage.link_speed import bytes_in_delay
from wdsdist.storage.objects import (
    Entry,
    entry,
    exists,
    glob,
    listing,
    names,
    read,
    read_range,
    read_until,
    remove,
    sizes,
    upload,
    write,
)
from wdsdist.storage.ranges import Download, Failure, begin_ranges, read_ranges
from wdsdist.storage.retry import (
    AwayError,
    Deadline,
    NoRangesError,
    NotKeptError,
    RequestPolicy,
    UnfitError,
    WrongLengthError,
    raise_alone,
    use_policy,
)
from wdsdist.storage.urls import beside, is_read_only, is_remote, join, local_path, normalise, scheme, shown, split

stat = entry

__all__ = [
    "AwayError",
    "Connections",
    "Download",
    "Failure",
    "Deadline",
    "Entry",
    "Fetching",
    "NoRangesError",
    "NotKeptError",
    "RequestPolicy",
    "StorageOptions",
    "Transfer",
    "UnfitError",
    "WrongLengthError",
    "begin_fetch",
    "begin_ranges",
    "beside",
    "bytes_in_delay",
    "entry",
    "exists",
    "fetch",
    "glob",
    "is_read_only",
    "is_remote",
    "join",
    "listing",
    "local_path",
    "named",
    "names",
    "normalise",
    "options_for",
    "raise_alone",
    "read",
    "read_range",
    "read_ranges",
    "read_until",
    "remove",
    "scheme",
    "shown",
    "sizes",
    "split",
    "stat",
    "store",
    "upload",
    "use_policy",
    "write",
]
