"""Write one shard and the index beside it, each whole or not at all, and recognise those that are whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from wdsdist import storage
from wdsdist.errors import DestinationError, IndexFormatError, SourceError, WdsdistError
from wdsdist.packing.contents import Batch, Contents
from wdsdist.packing.destination import Place
from wdsdist.packing.output import BUFFER, TarOutput
from wdsdist.packing.reading import opened, read_all
from wdsdist.packing.sources.source import LeftOut, OnError, Sample
from wdsdist.shards import index as shardindex
from wdsdist.shards.index import ShardIndex, checksums
from wdsdist.shards.manifest import Shard
from wdsdist.shards.tar import BLOCK, END, header, padding, plain_headers


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
    has_checksums: bool
    """Whether its index has checksums of members: one that an earlier version wrote has none."""

    @classmethod
    def of(cls, name: str, index: ShardIndex) -> WrittenShard:
        """Return what the manifest needs to know of a shard with this index."""
        return cls(
            Shard.of(name, index),
            index.extensions,
            int(index.sizes.sum()),
            tuple(LeftOut(key, reason) for key, reason in index.left_out),
            index.checksums is not None,
        )


def write_shard(
    place: Place,
    name: str,
    samples: Iterable[Sample],
    root: str = "",
    on_error: OnError = "raise",
    compress: str | None = None,
) -> WrittenShard:
    """Write a tar of the samples, then its index.

    What is noted of samples that are left out does not name ``root``, where the source lies; ``compress`` is as
    `compression.checked` returns it.

    Raises:
        SourceError: a file has changed or vanished since it was listed, or a sample cannot be stored.
        DestinationError: the place cannot be written.
    """
    try:
        with place.create(name) as stream, TarOutput(stream.fileno(), compress) as out:
            index = _write_tar(out, Contents(root, on_error), samples)
        # The index comes second: a tar that has one is whole.
        with place.create(name + shardindex.SUFFIX) as stream:
            stream.write(shardindex.dumps(index))
    except WdsdistError:
        raise
    except OSError as error:
        raise DestinationError(
            f"{storage.shown(place.at(name))} cannot be written: {error.strerror or error}"
        ) from error
    return WrittenShard.of(name, index)


def whole_shard(
    place: Place,
    name: str,
    *,
    found: int | None,
    size: int | None,
    num_samples: int,
    on_error: OnError = "raise",
) -> WrittenShard | None:
    """Return what is known of a shard that an earlier run wrote whole, or ``None`` where it did not.

    ``found`` is the size that it has, or ``None`` where it is not there; ``size`` is what it must have, or ``None``
    where that is known only from its index. A shard that samples were left out of is whole where they may be.
    """
    index = whole_index(place, name, found, on_error)
    if index is None or index.num_samples + len(index.left_out) != num_samples:
        return None
    if not index.left_out and size not in (None, index.size):
        return None
    return WrittenShard.of(name, index)


def whole_index(place: Place, name: str, found: int | None, on_error: OnError) -> ShardIndex | None:
    """Return the index of a shard that was written whole, or ``None`` where there is none."""
    if found is None:
        return None
    try:
        index = shardindex.loads(place.read(name + shardindex.SUFFIX), storage.shown(place.at(name)))
    except (FileNotFoundError, IndexFormatError):
        return None
    return index if found == index.file.size and not (index.left_out and on_error == "raise") else None


def index_of(samples: Iterable[Sample], root: str, on_error: OnError) -> ShardIndex:
    """Return the index of the tar that `write_shard` would write, and write nothing."""
    with TarOutput(None) as out:
        return _write_tar(out, Contents(root, on_error), samples)


def _write_tar(out: TarOutput, contents: Contents, samples: Iterable[Sample]) -> ShardIndex:
    for batch in contents.batches(samples, BUFFER):
        if batch.stored > BUFFER:
            _write_large(out, contents, batch)
        else:
            _write_batch(out, contents, batch)
    out.buffer()[: len(END)] = END
    out.send(len(END))
    digest = out.finish()
    return replace(contents.index(size=out.position, sha256=digest), stored=out.stored)


def _write_batch(out: TarOutput, contents: Contents, batch: Batch) -> None:
    """Write samples that fit into one buffer; where some cannot be read, the others as if those had never been."""
    view = out.buffer()
    while batch.keys:
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
        if not failed:
            contents.add(batch, out.position + starts, checksums.of_data(view, starts, sizes))
            out.send(used)
            return
        batch = contents.without(batch, failed)


def _write_large(out: TarOutput, contents: Contents, batch: Batch) -> None:
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
                digest = checksums.Running()
                while left:
                    if filled == BUFFER:
                        out.send(filled)
                        view, filled = out.buffer(), 0
                    count = read(view[filled : min(BUFFER, filled + left)])
                    digest.add(view[filled : filled + count])
                    filled, left = filled + count, left - count
                out.send(filled)
                digests.append(digest.value)
            out.buffer()[: -size % BLOCK] = padding(size)
            out.send(-size % BLOCK)
    except SourceError as error:
        out.go_back(before)
        contents.without(batch, {0: error})
    else:
        contents.add(batch, np.array(offsets, np.int64), np.array(digests, np.uint32))
