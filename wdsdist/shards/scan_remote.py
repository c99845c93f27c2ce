"""The index of a remote tar: by range requests of its headers if that is faster, else by one download.

Each header locates the next one, so the requests are sequential. In the latency of one request the store could send a
megabyte or two: only members larger than that are worth skipping.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from wdsdist import storage
from wdsdist._util.host import temporary_dir
from wdsdist.errors import StorageError
from wdsdist.shards import scan_local
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.index.build import from_entries
from wdsdist.shards.tar.naming import FIRST_DOT, is_compressed
from wdsdist.shards.tar.reader import entries

_FIRST = 1 << 20
"""Bytes of the first request."""
_REQUEST = 16 << 10
"""Least bytes of a request for a header, because another, small member may follow."""
_WORTH_A_REQUEST = 2 << 20
"""Bytes that each request must save on average."""
_TRIED = 4
"""Requests after which their average is checked."""


class _TooFineError(Exception):
    """The members are too small for one request each."""


class _Ranges:
    """A remote file as a buffer whose parts are fetched on access, once each."""

    def __init__(self, size: int, read: Callable[..., bytes]) -> None:
        self._size = size
        self._read = read
        self._part = 0, b""  # what was fetched last, and where it starts
        self.requests = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice) -> bytes:
        start, stop, _ = place.indices(self._size)
        first, part = self._part
        if not first <= start <= stop <= first + len(part):
            first, part = self._part = start, self._fetch(start, stop)
        return part[start - first : stop - first]

    def _fetch(self, start: int, stop: int) -> bytes:
        if self.requests >= _TRIED and start < self._size - _FIRST and start < self.requests * _WORTH_A_REQUEST:
            raise _TooFineError
        least = _REQUEST if self.requests else _FIRST
        end = min(max(stop, start + least), self._size)
        self.requests += 1
        return self._read(start=start, stop=end)


def index_remote(
    location: str,
    size: int | None,
    options: storage.StorageOptions | None = None,
    *,
    skip: bool = False,
    key_rule: str = FIRST_DOT,
    deadline: storage.Deadline | None = None,
) -> ShardIndex:
    """Return the index of a remote tar of ``size`` bytes; ``None`` if its store does not give the size.

    ``skip`` and ``key_rule`` are as `from_entries` takes them. If only the headers were read, it holds no digest.

    Raises `NotFoundError`, `StorageError`, and `ShardDamagedError` for a tar that cannot be read without losing
    samples.
    """
    label = storage.shown(location)
    name = storage.split(location)[1]
    if size is not None and size > 2 * _FIRST and not is_compressed(name):
        try:
            ranges = _Ranges(size, partial(storage.read, location, options, deadline=deadline))
            members = entries(ranges, label=label)
            return from_entries(members, size=size, sha256="", label=label, skip=skip, key_rule=key_rule)
        except (_TooFineError, StorageError):  # or a store without range requests: it may give the whole file
            pass
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        path = Path(folder) / name
        storage.fetch(location, path, options, size=size, deadline=deadline)
        return scan_local.scan_shard(path, label=label, skip=skip, key_rule=key_rule)
