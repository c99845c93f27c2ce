"""The bytes of some members of one shard.

A local shard is mapped. Ranges of a remote one are fetched into a sparse temporary file, several members by one
request.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.host import temporary_dir
from wdsdist.errors import StorageError
from wdsdist.shards import scan_local
from wdsdist.shards.index import ShardIndex, checksums
from wdsdist.shards.tar.naming import is_compressed
from wdsdist.storage import compression

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_WORTH_A_REQUEST = 64 << 10
"""Bytes between two ranges that are fetched with them: with several requests at once, one more costs about as much."""
_LONGEST = 16 << 20
"""Bytes of a range that is not joined with the next one."""


class MemberBytes:
    """The tar of one shard; a remote one has the bytes that `fill` was asked for.

    Attributes:
        is_whole: whether all bytes are present.
    """

    def __init__(self, path: Path, size: int, remote: tuple[str, storage.StorageOptions] | None) -> None:
        self._path, self._size, self._remote = path, size, remote
        self.is_whole = remote is None
        with path.open("rb") as stream:
            # Never closed: the traceback of a header that could not be read may still refer to it.
            self._content = memoryview(mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ))

    def __getitem__(self, place: slice) -> memoryview:
        return self._content[place]

    def fill(self, offsets: Int64s, lengths: Int64s, *, again: bool = False) -> None:
        """Fetch the bytes from each offset on, also those that are present if ``again``."""
        if self._remote is None or (self.is_whole and not again) or not len(offsets):
            return
        location, options = self._remote
        with self._path.open("r+b") as stream:
            try:
                storage.read_ranges(location, coalesced(offsets, lengths), stream.fileno(), options, size=self._size)
            except StorageError as error:
                if error.kind != "ranges":  # such a server gives whole files only
                    raise
                storage.read_ranges(location, [(0, self._size)], stream.fileno(), options, size=self._size)
                self.is_whole = True

    def check(self, index: ShardIndex, members: Int64s, name: str) -> None:
        """Verify members that are present; fetch wrong ones once more.

        Raises `ShardDamagedError`, with the ``name`` of the shard, if they are wrong again.
        """
        wrong = checksums.wrong(index, members, self)
        if len(wrong) and self._remote is not None:
            self.fill(*checksums.needed(index, wrong), again=True)
            wrong = checksums.wrong(index, wrong, self)
        if len(wrong):
            raise checksums.damage(index, int(wrong[0]), name)


def coalesced(offsets: Int64s, lengths: Int64s) -> list[tuple[int, int]]:
    """Return the ranges (start, stop) to fetch for some bytes, joined if little lies between them.

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
def opened(manifest: Manifest, number: int, index: ShardIndex) -> Iterator[MemberBytes]:
    """Open the tar of a shard; nothing of a remote one is fetched yet, unless it is compressed.

    Raises `NotFoundError`, `ShardDamagedError` and `StorageError`.
    """
    location, options, name = manifest.location(number), manifest.client_options, manifest.shown_name(number)
    if not storage.is_remote(location):
        local = Path(storage.local_path(location))
        with scan_local.decompressed(local, label=name, tar_size=index.size) as path:
            yield MemberBytes(path, index.size, None)
        return
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        path = Path(folder) / "shard.tar"
        if is_compressed(storage.split(location)[1]):
            storage.fetch(location, Path(folder) / "compressed", options, size=index.file.size)
            compression.unpack(Path(folder) / "compressed", path, size=index.size, label=name)
            yield MemberBytes(path, index.size, None)
            return
        with path.open("wb") as stream:
            stream.truncate(index.size)
        yield MemberBytes(path, index.size, (location, options))
