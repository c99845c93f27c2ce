"""Write one shard and the index beside it, each whole or not at all, and recognise those that are whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wdsdist import shardindex, storage
from wdsdist.errors import DestinationError, IndexFormatError, SourceError, WdsdistError
from wdsdist.packing.contents import Batch, Contents
from wdsdist.packing.output import BUFFER, TarOutput
from wdsdist.packing.reading import opened, read_all
from wdsdist.shardindex import ShardIndex
from wdsdist.sources import LeftOut, OnError, Samples
from wdsdist.tarformat import BLOCK, END, header, padding, plain_headers


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """What the manifest needs to know of a shard."""

    name: str
    num_samples: int
    size: int
    sha256: str
    extensions: tuple[str, ...]
    payload_bytes: int
    """Bytes of all members, without headers and padding."""
    left_out: tuple[LeftOut, ...] = ()
    """Samples that it was to hold but could not."""


def write_shard(folder: Path, name: str, samples: Samples, root: str = "", on_error: OnError = "raise") -> WrittenShard:
    """Write a tar of the samples, then its index.

    Args:
        folder: where to.
        name: of the shard.
        samples: what it is to hold.
        root: where the source lies; what is noted of samples that are left out does not name it.
        on_error: whether a sample that cannot be read or stored is an error, or is left out.

    Raises:
        SourceError: a file has changed or vanished since it was listed, or a sample cannot be stored.
        DestinationError: the folder cannot be written.
    """
    contents = Contents(root, on_error)
    try:
        with storage.atomic_write(folder / name) as stream:
            with TarOutput(stream.fileno()) as out:
                _write_samples(out, contents, samples)
                out.buffer()[: len(END)] = END
                out.send(len(END))
                digest = out.finish()
            index = contents.index(size=out.position, sha256=digest)
        # The index comes second: a tar that has one is whole.
        with storage.atomic_write(shardindex.beside(folder / name)) as stream:
            stream.write(shardindex.dumps(index))
    except WdsdistError:
        raise
    except OSError as error:
        raise DestinationError(f"{folder / name} cannot be written: {error.strerror or error}") from error
    return _summary(name, index)


def whole_shard(
    folder: Path, name: str, *, size: int | None, num_samples: int, on_error: OnError = "raise"
) -> WrittenShard | None:
    """Return what is known of a shard that an earlier run wrote whole, or ``None`` where it did not.

    ``size`` is what it must have, or ``None`` where that is known only from its index. A shard that samples were left
    out of is whole where they may be.
    """
    try:
        index = shardindex.load(shardindex.beside(folder / name))
        found = (folder / name).stat().st_size
    except (FileNotFoundError, IndexFormatError):
        return None
    if found != index.size or index.num_samples + len(index.left_out) != num_samples:
        return None
    if (index.left_out and on_error == "raise") or (not index.left_out and size not in (None, found)):
        return None
    return _summary(name, index)


def _write_samples(out: TarOutput, contents: Contents, samples: Samples) -> None:
    for batch in contents.batches(samples, BUFFER):
        if batch.stored > BUFFER:
            _write_large(out, contents, batch)
        else:
            _write_batch(out, contents, batch)


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
            contents.add(batch, out.position + starts)
            out.send(used)
            return
        batch = contents.without(batch, failed)


def _write_large(out: TarOutput, contents: Contents, batch: Batch) -> None:
    """Write a single sample piece by piece; go back to where it started if it cannot be read to its end."""
    before = out.checkpoint()
    offsets: list[int] = []
    try:
        for name, payload, size in zip(batch.names, batch.payloads, batch.sizes, strict=True):
            with opened(payload) as read:
                head = header(name, size)
                view = out.buffer()
                view[: len(head)] = head
                filled, left = len(head), size
                offsets.append(out.position + filled)
                while left:
                    if filled == BUFFER:
                        out.send(filled)
                        view, filled = out.buffer(), 0
                    count = read(view[filled : min(BUFFER, filled + left)])
                    filled, left = filled + count, left - count
                out.send(filled)
            out.buffer()[: -size % BLOCK] = padding(size)
            out.send(-size % BLOCK)
    except SourceError as error:
        out.go_back(before)
        contents.without(batch, {0: error})
    else:
        contents.add(batch, np.array(offsets, np.int64))


def _summary(name: str, index: ShardIndex) -> WrittenShard:
    return WrittenShard(
        name,
        index.num_samples,
        index.size,
        index.sha256,
        index.extensions,
        int(index.sizes.sum()),
        tuple(LeftOut(key, reason) for key, reason in index.left_out),
    )
