"""Scan a tar without an index: map a local tar, and read only the headers of a remote one if that is faster.

A compressed tar is decompressed into a temporary file first. Its index says where the members lie in the tar, and of
which compressed file.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from wdsdist import storage
from wdsdist._util.files import sha256
from wdsdist._util.host import temporary_dir
from wdsdist.errors import ShardDamagedError, StorageError
from wdsdist.shards.index import ShardIndex, Stored, checksums
from wdsdist.shards.index.build import from_entries
from wdsdist.shards.shard_indexes import regular
from wdsdist.shards.tar.naming import FIRST_DOT, is_compressed
from wdsdist.shards.tar.reader import entries
from wdsdist.storage import compression

_FIRST = 1 << 20
"""Bytes of the first request for a remote tar."""
_REQUEST = 16 << 10
"""Least bytes of a request for a header, because another, small member may follow."""
_WORTH_A_REQUEST = 2 << 20
"""Bytes that each request must save on average: in its latency the store could send a megabyte or two."""
_TRIED = 4
"""Requests after which their average is checked."""


def scan_shard(
    path: Path, *, label: str = "", tar_size: int = -1, skip: bool = False, key_rule: str = FIRST_DOT
) -> ShardIndex:
    """Scan a whole tar and return its index, digest and checksums included.

    Args:
        path: the tar, compressed or not.
        label: its name in errors; by default its path.
        tar_size: bytes of the tar in a compressed one, if they are known.
        skip: leave out samples that readers would lose or mix.
        key_rule: the rule by which names are cut.
    """
    label = label or str(path)
    regular(path)
    with decompressed(path, label=label, tar_size=tar_size) as tar, tar.open("rb") as stream:
        if not os.fstat(stream.fileno()).st_size:
            raise ShardDamagedError(f"{label}: the file is empty, without the two closing blocks of a tar")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            digest = hashlib.sha256(content).hexdigest()
            members = entries(content, label=label)
            try:
                index = from_entries(
                    members, size=len(content), sha256=digest, label=label, skip=skip, key_rule=key_rule
                )
            except ShardDamagedError:
                if tar == path and (codec := compression.codec_of(path)):
                    raise ShardDamagedError(
                        f"{label} is compressed by {codec}, which its name does not tell: rename it, as to .tar.gz for "
                        f"gzip or .tar.zst for zstd, or decompress it"
                    ) from None
                raise
            with memoryview(content) as data:
                index = replace(index, checksums=checksums.of_data(data, index.offsets, index.sizes))
        return index if tar == path else replace(index, stored=Stored(path.stat().st_size, sha256(path)))


@contextlib.contextmanager
def decompressed(path: Path, *, label: str = "", tar_size: int = -1) -> Iterator[Path]:
    """Give the path of a tar; if it is compressed by its name, the path of a decompressed temporary file."""
    if not is_compressed(path.name):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        tar = Path(folder) / "shard.tar"
        compression.unpack(path, tar, size=tar_size, label=label)
        yield tar


def scan_remote(
    location: str,
    size: int,
    options: storage.StorageOptions | None = None,
    *,
    skip: bool = False,
    key_rule: str = FIRST_DOT,
    deadline: storage.Deadline | None = None,
) -> ShardIndex:
    """Return the index of a remote tar of ``size`` bytes, -1 if unknown; without a digest if only headers were read.

    Each header locates the next one, so the requests are sequential.

    Raises `NotFoundError`, `StorageError`, and `ShardDamagedError` for a tar that cannot be read without losing
    samples.
    """
    label = storage.shown(location)
    name = storage.split(location)[1]
    if size > 2 * _FIRST and not is_compressed(name):
        try:
            ranges = _Ranges(size, partial(storage.read, location, options, deadline=deadline))
            members = entries(ranges, label=label)
            return from_entries(members, size=size, sha256="", label=label, skip=skip, key_rule=key_rule)
        except (_TooFineError, StorageError):  # or a store without range requests: it may give the whole file
            pass
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        path = Path(folder) / name
        storage.fetch(location, path, options, size=size if size >= 0 else None, deadline=deadline)
        return scan_shard(path, label=label, skip=skip, key_rule=key_rule)


class _TooFineError(Exception):
    """The members are too small for one request each."""


class _Ranges:
    """A remote file as a buffer whose parts are fetched on access, once each."""

    def __init__(self, size: int, read: Callable[..., bytes]) -> None:
        self._size = size
        self._read = read
        self._start, self._part = 0, b""  # what was fetched last
        self._requests = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice) -> bytes:
        start, stop, _ = place.indices(self._size)
        if not self._start <= start <= stop <= self._start + len(self._part):
            is_near_end = start >= self._size - _FIRST
            if self._requests >= _TRIED and not is_near_end and start < self._requests * _WORTH_A_REQUEST:
                raise _TooFineError
            least = _REQUEST if self._requests else _FIRST
            self._requests += 1
            self._start, self._part = start, self._read(start=start, stop=min(max(stop, start + least), self._size))
        return self._part[start - self._start : stop - self._start]


def advised(error: ShardDamagedError) -> ShardDamagedError:
    """Add advice to the error of a strict tar scan: unpack and pack again, or skip.

    >>> print(advised(ShardDamagedError("a.tar: a sparse file ...")))
    a.tar: a sparse file ...: unpack it by `tar xf`, and pack the files; or leave it out with on_error="skip"
    """
    if any(advice in str(error) for advice in ("on_error", "rename it", "key=")):
        return error
    remedy = ": unpack it by `tar xf`, and pack the files" if "a sparse file" in str(error) else ": fetch it again"
    remedy = "" if "fetch it again" in str(error) else remedy
    return ShardDamagedError(f'{error}{remedy}; or leave it out with on_error="skip"')
