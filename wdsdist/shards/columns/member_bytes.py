"""Bytes of the members of a shard: mapped where it is local, fetched in ranges where little of it is needed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist.errors import ShardNotFoundError, StorageError
from wdsdist.shards import scan_local
from wdsdist.shards.index import ShardIndex, checksums
from wdsdist.shards.tar import is_compressed
from wdsdist.storage import compression

_WORTH_A_REQUEST = 64 << 10
"""Bytes between two ranges that are fetched rather than asked for by two requests: with several requests at once, the
latency of one costs about as much."""
_LONGEST = 16 << 20
"""Bytes of a range that is not joined with the next one, which bounds memory."""
_AT_ONCE = 4
"""Requests for one shard at once; several shards are read at once too."""


class MemberBytes:
    """The tar of one shard, whose bytes are there as far as `fill` was asked for them."""

    is_whole = True
    """Whether all bytes are there."""

    def __init__(self, content: memoryview) -> None:
        self._content = content

    def fill(self, offsets: Int64s, lengths: Int64s) -> None:
        """Let the bytes from ``offsets`` on be there. Here they all are."""

    def check(self, index: ShardIndex, members: Int64s, name: str) -> None:
        """Verify members whose `checksums.needed` bytes are there; fetch those that are wrong once more.

        Raises `ShardDamagedError`, with the ``name`` of the shard, where they are wrong again, and what `fill` raises.
        """
        wrong = checksums.wrong(index, members, self)
        if len(wrong):
            self._fetch(coalesced(*checksums.needed(index, wrong)))
            wrong = checksums.wrong(index, wrong, self)
        if len(wrong):
            raise checksums.damage(index, int(wrong[0]), name)

    def _fetch(self, ranges: list[tuple[int, int]]) -> None:
        """Download byte ranges again, also those that are there; a local tar has nothing to download."""

    def __getitem__(self, place: slice) -> memoryview:
        return self._content[place]


class RemoteBytes(MemberBytes):
    """A sparse temporary file of the size of a remote tar, into which ranges are fetched, or all of it."""

    def __init__(self, content: memoryview, path: Path, location: str, options: storage.StorageOptions) -> None:
        super().__init__(content)
        self._path, self._location, self._options = path, location, options
        self._fetched = 0
        self.is_whole = False

    def fill(self, offsets: Int64s, lengths: Int64s) -> None:
        """Fetch the bytes from ``offsets`` on; all of the shard where it would be more than half of it.

        Raises `ShardNotFoundError` and `StorageError`.
        """
        if self.is_whole:
            return
        ranges = coalesced(offsets, lengths)
        self._fetched += sum(stop - start for start, stop in ranges)
        if 2 * self._fetched <= len(self._content):
            with contextlib.suppress(StorageError):  # a server without range requests may still give the whole
                self._fetch(ranges)
                return
        storage.fetch(self._location, self._path, self._options, size=len(self._content))
        self.is_whole = True

    def _fetch(self, ranges: list[tuple[int, int]]) -> None:
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as executor, self._path.open("r+b", buffering=0) as target:

            def fetch(place: tuple[int, int]) -> None:
                part = storage.read_range(self._location, *place, self._options)
                os.pwrite(target.fileno(), part, place[0])

            try:
                for _ in executor.map(fetch, ranges):
                    pass
            except FileNotFoundError as error:
                raise ShardNotFoundError(f"shard {storage.shown(self._location)} does not exist") from error


def coalesced(offsets: Int64s, lengths: Int64s) -> list[tuple[int, int]]:
    """Return the ranges (start, stop) to fetch for some bytes, those with little between them as one.

    >>> coalesced(np.array([1 << 20, 100, 0]), np.array([10, 50, 20]))
    [(0, 150), (1048576, 1048586)]
    """
    ranges: list[tuple[int, int]] = []
    order = np.argsort(offsets, kind="stable")
    for start, length in zip(offsets[order].tolist(), lengths[order].tolist(), strict=True):
        if not length:
            continue
        if ranges and start - ranges[-1][1] <= _WORTH_A_REQUEST and start + length - ranges[-1][0] <= _LONGEST:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], start + length)
        else:
            ranges.append((start, start + length))
    return ranges


@contextlib.contextmanager
def opened(location: str, index: ShardIndex, options: storage.StorageOptions, name: str) -> Iterator[MemberBytes]:
    """Open the tar of a shard that has an index; of a remote one nothing is fetched yet, unless it is compressed.

    Args:
        location: its path or URL.
        index: of its members.
        options: of its store.
        name: in errors.

    Raises `ShardNotFoundError`, `ShardDamagedError` and `StorageError`.
    """
    with tempfile.TemporaryDirectory(prefix="wdsdist-") as folder, contextlib.ExitStack() as stack:
        is_sparse = storage.is_remote(location) and not is_compressed(storage.split(location)[1])
        path = Path(folder) / "shard.tar"
        if is_sparse:
            with path.open("wb") as stream:
                stream.truncate(index.size)
        elif storage.is_remote(location):
            compressed = Path(folder) / "shard.compressed"
            storage.fetch(location, compressed, options, size=index.file.size)
            compression.unpack(compressed, path, size=index.size, label=name)
            compressed.unlink()
        else:
            local = Path(storage.local_path(location))
            path = stack.enter_context(scan_local.decompressed(local, label=name, tar_size=index.size))
        with path.open("rb") as stream:
            # Never closed by name: a header that could not be read may still be looked at by its error.
            content = memoryview(mmap.mmap(stream.fileno(), index.size, access=mmap.ACCESS_READ))
        yield RemoteBytes(content, path, location, options) if is_sparse else MemberBytes(content)
