"""Fetch one shard into its part file, whose space is reserved, and verify it against the manifest.

A compressed shard is decompressed into the part; where it is remote, it is first fetched into an unnamed file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from wdsdist import storage
from wdsdist._util import warn_once
from wdsdist.cache.counters import Counters
from wdsdist.cache.extents import ExtentMap, coalesced, copy_ranges, without
from wdsdist.cache.locks import LockableFile, PlantedError
from wdsdist.cache.request import ShardRequest
from wdsdist.cache.urgency import LONGEST, Line
from wdsdist.errors import ShardDamagedError
from wdsdist.shards import index as shard_index
from wdsdist.shards import scan_local
from wdsdist.shards.index import ShardIndex, Stored
from wdsdist.storage import compression

_ATTEMPTS = 3
"""Attempts to fetch a shard whose bytes are wrong."""

_PIECE = 4 << 20
"""Bytes that are read at once of a local shard."""

_AGAIN = 0.01
"""Share of a range that may come twice in any case, to spare requests: small extents between what is missing."""

_ahead = storage.Connections()
"""Of this process for what is fetched ahead: those that batches wait for must not queue for the same ones."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fetched:
    """A shard fetched into its part file and verified."""

    index: ShardIndex
    sidecar: bytes | None
    """The bytes of the index to keep beside the copy; ``None`` where it lies in the folder of index.json."""
    sha256: str
    """Digest of the copy."""
    made_of: str
    """Identity of the compressed file that it was decompressed from; empty where there is none."""
    known: int = 0
    """Bytes that came from the sparse copy."""


def fetch(request: ShardRequest, count: Callable[[Counters], None], line: Line | None = None) -> Fetched:
    """Fetch a shard into its part, with retries while its bytes are wrong.

    Args:
        request: the shard.
        count: called with the number of retried requests, or of retried fetches.
        line: its place in the line to the store.

    Raises `NotFoundError` and `StorageError` as storage does, `ShardDamagedError` where it differs from
    the manifest or from the index beside it.
    """
    attempt = 1
    while True:
        try:
            return _fetch_once(request, count, line)
        except storage.WrongLengthError as error:
            raise ShardDamagedError(f"{error}: upload it again") from None
        except ShardDamagedError as error:
            if not request.is_remote:
                raise
            if attempt == _ATTEMPTS or not request.deadline.left():
                raise ShardDamagedError(f"{error} (after {attempt} attempts)") from error
        attempt += 1
        count(Counters(retries=1))
        request = request.again()  # its index may be the wrong one


def _fetch_once(request: ShardRequest, count: Callable[[Counters], None], line: Line | None) -> Fetched:
    part = request.paths.part  # every write below keeps its inode, which is locked
    known = 0
    listed = Stored(request.listed.size, request.listed.sha256)
    made_of = request.made_of()
    if request.listed.is_compressed:
        root = request.paths.folder.parent
        warn_once.warn(f"some shards are compressed: each is decompressed once on this node, into {root}")
        with _compressed_file(request, count, line) as path:
            file = scan_local.stored(path)
            _check(request, "index.json", file, listed)
            compression.unpack(path, part, size=request.size, label=request.shown)
        tar = scan_local.stored(part)
    else:
        if request.is_remote:
            with _begin_fetch(request, part, line, digest=True) as shard:
                _ = request.sidecar  # fetched while the shard is
                done = shard.result()
                count(Counters(retries=done.retries))
                known = done.known
            file = tar = Stored(done.bytes, done.sha256)
        else:
            _copy(request, part)
            file = tar = scan_local.stored(part)
        _check(request, "index.json", file, listed)
    if request.made_of() != made_of:
        raise ShardDamagedError(f"{request.shown} has changed while it was read: try again once it is at rest")
    index, sidecar = request.known_index(), request.sidecar
    if index is None:
        index = scan(request, part, file)
    if sidecar is None and (request.keeps_index or not request.has_listed_index()):
        sidecar = shard_index.dumps(index)  # that of a compressed shard has the name of its file, not of the copy
    _check(request, "its index", file, index.file)
    _check(request, "its index", tar, Stored(index.size, index.sha256))
    return Fetched(index, sidecar, tar.sha256, made_of, known)


def _copy(request: ShardRequest, part: Path) -> None:
    """Copy a local shard into its part. Raises `NotFoundError` and `StorageError` where it cannot be read."""
    with part.open("r+b") as target:
        for piece in _pieces(request):
            target.write(piece)
        target.truncate()


def _pieces(request: ShardRequest) -> Iterator[bytes]:
    with request.reading() as path, path.open("rb", buffering=0) as source:
        while piece := source.read(_PIECE):
            yield piece


def scan(request: ShardRequest, tar: Path, file: Stored) -> ShardIndex:
    """Scan a tar and return its index; that of a compressed shard names its compressed ``file``."""
    index = scan_local.scan_shard(tar, label=request.shown, key_rule=request.key_rule)
    return dataclasses.replace(index, stored=file) if request.listed.is_compressed else index


@contextlib.contextmanager
def _compressed_file(request: ShardRequest, count: Callable[[Counters], None], line: Line | None) -> Iterator[Path]:
    """Give the compressed file of a shard; a fetched one is unnamed, so that a crash leaves nothing behind."""
    if not request.is_remote:
        yield storage.local_path(request.location)
        return
    with tempfile.TemporaryFile(dir=request.paths.folder) as file:
        path = Path(f"/proc/self/fd/{file.fileno()}")
        with _begin_fetch(request, path, line) as shard:
            count(Counters(retries=shard.result().retries))
        yield path


def _begin_fetch(request: ShardRequest, path: Path, line: Line | None, *, digest: bool = False) -> storage.Fetching:
    size = request.listed.size if request.listed.size >= 0 else None
    deadline = request.deadline
    if line is not None:  # which must not count
        deadline = dataclasses.replace(deadline, seconds=deadline.seconds + LONGEST)
    # Without a digest nothing would tell that the shard has been replaced since, and all of it is a mix of two.
    has_extents = request.may_have_parts and request.is_first and request.listed.sha256
    known = functools.partial(_take_extents, request) if has_extents else None
    return storage.begin_fetch(
        request.location, path, request.options, size=size, deadline=deadline, digest=digest, line=line,
        known=known, connections=_ahead if request.is_ahead else None,
    )  # fmt: skip


def _take_extents(request: ShardRequest, wanted: range) -> list[range]:
    """Copy the extents that a sparse copy has of a range into the part file; return the ranges left to fetch."""
    paths, everything = request.paths, np.array([[wanted.start, wanted.stop]])
    with contextlib.suppress(FileNotFoundError, PlantedError), contextlib.ExitStack() as stack:
        sparse = stack.enter_context(LockableFile(paths.sparse))
        extents = stack.enter_context(contextlib.closing(ExtentMap(paths.extents)))
        is_there = sparse.lock(alone=False) and sparse.is_at(paths.sparse)
        if is_there and extents.is_of(request.listed_size, request.listed.sha256):
            # As much may come twice as comes in the time of one more request.
            excess = max(_AGAIN, storage.bytes_in_delay(request.location) / len(wanted))
            left = coalesced(without(everything, extents.extents()), excess=excess)
            copy_ranges(sparse.fileno(), paths.part, without(everything, left))
            return [range(*one) for one in left.tolist()]
    return [wanted]


def _check(request: ShardRequest, promise: str, found: Stored, expected: Stored) -> None:
    again = "upload it again" if request.is_remote else "fetch or pack it again"
    if expected.size not in (-1, found.size):
        raise ShardDamagedError(
            f"{request.shown} has {found.size:,} bytes but {promise} says {expected.size:,}: {again}"
        )
    if expected.sha256 not in ("", found.sha256):
        raise ShardDamagedError(f"{request.shown} does not have the digest that {promise} gives: {again}")
