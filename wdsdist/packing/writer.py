"""Write one shard and the index beside it, each whole or not at all, and recognise those that are whole.

The bytes of a tar are filled in by one thread, digested and written by two others: they go from the system into a
buffer and from there into the tar; none becomes a Python object. Both threads work on the same buffer, so the digest
covers the very bytes that were written. (``copy_file_range`` and ``sendfile`` were measured: no faster, for the digest
has to read the bytes all the same.)
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist.errors import IndexFormatError, SourceError
from wdsdist.packing.destination import Destination
from wdsdist.packing.members import (
    HEAD,
    SUSPECT_BYTES,
    Batch,
    LeftOut,
    Sample,
    ShardContents,
    content_problem,
    opened,
    read_all,
)
from wdsdist.packing.options import OnError
from wdsdist.shards import checksums
from wdsdist.shards import index as shardindex
from wdsdist.shards.manifest import Shard
from wdsdist.shards.tar.reader import BLOCK, END
from wdsdist.shards.tar.writer import header, padding, plain_headers

BUFFER = 1 << 20
"""Bytes of a buffer: measured best, for what one core has read is still in the cache for the others."""
_BUFFERS = 4  # one that is filled, while others are digested and written
_FLUSH_FRAME = 1  # zstd's own
_SYNC = 16 << 20  # bytes after which the disk begins to write: the last fsync would have all of it to wait for


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """What the manifest needs to know of a shard."""

    listed: Shard
    """Its entry there."""
    extensions: tuple[str, ...]
    payload_bytes: int
    """Bytes of all members, without headers and padding."""
    left_out: tuple[LeftOut, ...]
    """Samples that it was to hold but could not."""

    @classmethod
    def of(cls, name: str, index: shardindex.ShardIndex) -> WrittenShard:
        """Return what the manifest needs to know of a shard with this index."""
        left_out = tuple(LeftOut(*pair) for pair in index.left_out)
        return cls(Shard.of(name, index), index.extensions, int(index.sizes.sum()), left_out)


def write_shard(
    target: Destination,
    name: str,
    samples: Iterable[Sample],
    root: str = "",
    on_error: OnError = "raise",
    compress: str | None = None,
) -> WrittenShard:
    """Write a tar of the samples, then its index.

    What is noted of samples that are left out does not name ``root``, where the source lies; ``compress`` is as
    `Options` has it.

    Raises:
        SourceError: a file has changed or vanished since it was listed, or a sample cannot be stored.
        DestinationError: the destination cannot be written.
    """
    with target.create(name) as stream, _TarOutput(stream.fileno(), compress) as out:
        contents = ShardContents(root, on_error)
        for batch in contents.batches(samples, BUFFER):
            (_write_large if batch.stored > BUFFER else _write_batch)(out, contents, batch)
        out.buffer()[: len(END)] = END
        out.send(len(END))
        index = replace(contents.index(size=out.position, sha256=out.finish()), stored=out.stored)
    # The index comes second: a tar that has one is whole.
    with target.create(name + shardindex.SUFFIX) as stream:
        stream.write(shardindex.dumps(index))
    return WrittenShard.of(name, index)


def whole_index(target: Destination, name: str, size: int | None, on_error: OnError) -> shardindex.ShardIndex | None:
    """Return the index of a shard that was written whole, or ``None``.

    ``size`` is the tar's, or ``None`` if it does not exist. A shard that samples were left out of is whole if
    they may be.
    """
    if size is None:
        return None
    try:
        index = shardindex.load(target.read(name + shardindex.SUFFIX), storage.shown(target.at(name)))
    except (FileNotFoundError, IndexFormatError):
        return None
    return index if size == index.file.size and not (index.left_out and on_error == "raise") else None


def _write_batch(out: _TarOutput, contents: ShardContents, batch: Batch) -> None:
    """Write samples that fit into one buffer; if some cannot be read, the others alone."""
    view = out.buffer()
    while batch.samples:
        sizes = np.array(batch.sizes, np.int64)
        heads = np.full(len(sizes), BLOCK)
        for member, head in batch.headers.items():
            heads[member] = len(head)
        room = sizes + -sizes % BLOCK
        ends = np.cumsum(heads + room)
        starts = ends - room
        used = int(ends[-1])
        blocks = np.frombuffer(view, np.uint8, used).reshape(-1, BLOCK)
        blocks[ends // BLOCK - 1] = 0  # the padding; what stands before it in its block is written over
        plain, names = starts // BLOCK - 1, batch.names
        if batch.headers:
            others = np.setdiff1d(np.arange(len(sizes)), list(batch.headers))
            blocks[plain[others]] = plain_headers([names[member] for member in others.tolist()], sizes[others])
            for member, head in batch.headers.items():
                view[starts[member] - len(head) : starts[member]] = head
        else:
            blocks[plain] = plain_headers(names, sizes)
        failed = read_all(batch.payloads, batch.sizes, view, starts.tolist())
        checked = np.flatnonzero(sizes >= HEAD)
        first_blocks = starts[checked] // BLOCK
        for number in np.flatnonzero(SUSPECT_BYTES[blocks[first_blocks, 0]]).tolist():
            member = int(checked[number])
            if problem := content_problem(names[member], blocks[first_blocks[number], :HEAD].tobytes()):
                failed.setdefault(member, SourceError(problem))
        if not failed:
            contents.add(batch, out.position + starts, checksums.of_data(view, starts, sizes))
            out.send(used)
            return
        batch = contents.without(batch, failed)


def _write_large(out: _TarOutput, contents: ShardContents, batch: Batch) -> None:
    """Write a single sample piece by piece; go back to where it started if it cannot be read to its end."""
    before = out.checkpoint()
    offsets: list[int] = []
    digests: list[int] = []
    try:
        for name, payload, size in zip(batch.names, batch.payloads, batch.sizes, strict=True):
            with opened(payload) as read:
                head = header(name, size)
                view = out.buffer()
                view[: len(head)] = head
                filled, left = len(head), size
                offsets.append(out.position + filled)
                digest = checksums.Digest()
                while left:
                    if filled == BUFFER:
                        out.send(filled)
                        view, filled = out.buffer(), 0
                    count = read(view[filled : min(BUFFER, filled + left)])
                    head = bytes(view[filled : filled + min(count, HEAD)])
                    if left == size and (problem := content_problem(name, head)):
                        raise SourceError(problem)
                    digest.update(view[filled : filled + count])
                    filled, left = filled + count, left - count
                out.send(filled)
                digests.append(digest.intdigest() & checksums.MASK)
            out.buffer()[: -size % BLOCK] = padding(size)
            out.send(-size % BLOCK)
    except SourceError as error:
        out.go_back(before)
        contents.without(batch, {0: error})
    else:
        contents.add(batch, np.array(offsets, np.int64), np.array(digests, np.uint32))


class _TarOutput:
    """Writes a file from its start by whole buffers, and counts and digests what it writes.

    With ``compress``, as `Options` has it, the file holds the tar in compressed form.

    Errors of the system surface at the next `buffer`, at `checkpoint` or at `finish`.
    """

    def __init__(self, descriptor: int, compress: str | None = None) -> None:
        self._descriptor = descriptor
        self._digest = hashlib.sha256()
        self._zstd: Any = None
        if compress:
            import zstandard

            compressor = zstandard.ZstdCompressor(level=int(compress.partition(":")[2]), write_checksum=True)
            self._zstd = compressor.stream_writer(SimpleNamespace(write=self._put), write_size=BUFFER)  # type: ignore[arg-type]
        self._file_digest = hashlib.sha256()  # of the compressed form, which the writing thread meets first
        self._file_position = 0
        self._threads = ThreadPoolExecutor(1, "wdsdist-digest"), ThreadPoolExecutor(1, "wdsdist-write")
        self._syncing = ThreadPoolExecutor(1, "wdsdist-sync")
        self._sync: Future[None] | None = None
        self._unsynced = 0
        # One byte more, so that a file can be asked for more than it should have.
        self._free = deque(memoryview(mmap.mmap(-1, BUFFER + 1)) for _ in range(_BUFFERS))
        self._busy: deque[tuple[memoryview, tuple[Future[None], ...]]] = deque()
        self.position = 0

    def __enter__(self) -> _TarOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for thread in (*self._threads, self._syncing):
            thread.shutdown(cancel_futures=kind is not None)

    def buffer(self) -> memoryview:
        """Return a buffer to fill; it waits until one is free."""
        if not self._free:
            self._settle()
        return self._free[0]

    def send(self, count: int) -> None:
        """Write the first ``count`` bytes of the buffer that was filled."""
        view = self._free.popleft()
        digest, write = self._threads
        self._busy.append(
            (view, (digest.submit(self._digest.update, view[:count]), write.submit(self._write, view[:count])))
        )
        self.position += count

    def checkpoint(self) -> tuple[int, Any, int, Any]:
        """Wait until all that was sent is written; return positions and digests of the tar and of the file."""
        while self._busy:
            self._settle()
        if self._zstd:
            self._zstd.flush(_FLUSH_FRAME)  # what comes later can be dropped
        return self.position, self._digest.copy(), self._file_position, self._file_digest.copy()

    def go_back(self, checkpoint: tuple[int, Any, int, Any]) -> None:
        """Roll back to a checkpoint: discard the bytes written since."""
        self.checkpoint()
        self.position, self._digest, self._file_position, self._file_digest = checkpoint
        os.ftruncate(self._descriptor, self._file_position)
        os.lseek(self._descriptor, self._file_position, os.SEEK_SET)

    def finish(self) -> str:
        """Wait until all is written; return the SHA-256 digest, hexadecimal."""
        self.checkpoint()
        if self._sync is not None:
            self._sync.result()  # the system tells a descriptor of a failed write once, here or to the last fsync
        return str(self._digest.hexdigest())

    @property
    def stored(self) -> shardindex.Stored | None:
        """The finished file, if it holds the tar in compressed form."""
        return shardindex.Stored(self._file_position, self._file_digest.hexdigest()) if self._zstd else None

    def _settle(self) -> None:
        view, futures = self._busy.popleft()
        for future in futures:
            future.result()
        self._free.append(view)

    def _write(self, data: memoryview) -> None:
        (self._zstd.write if self._zstd else self._put)(data)

    def _put(self, data: memoryview | bytes) -> None:
        self._file_position += len(data)
        if self._zstd:
            self._file_digest.update(data)
        while data:
            count = os.write(self._descriptor, data)
            data, self._unsynced = data[count:], self._unsynced + count
        if self._unsynced >= _SYNC and (self._sync is None or self._sync.done()):
            if self._sync is not None:
                self._sync.result()
            self._sync, self._unsynced = self._syncing.submit(os.fdatasync, self._descriptor), 0
