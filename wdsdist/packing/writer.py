"""Write one shard and the index beside it, each whole or not at all, and recognise those that are whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wdsdist import shardindex, storage
from wdsdist.errors import DestinationError, IndexFormatError, SourceError, WdsdistError
from wdsdist.packing.contents import Contents, Entry
from wdsdist.packing.output import BUFFER, TarOutput
from wdsdist.packing.reading import opened, read_into
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
    """Write samples, as many as fit into a buffer at a time."""
    batch: list[Entry] = []
    stored = 0
    for entry in contents.entries(samples):
        if stored + entry.stored > BUFFER:
            _write_batch(out, contents, batch)
            batch, stored = [], 0
        if entry.stored > BUFFER:
            _write_large(out, contents, entry)
        else:
            batch.append(entry)
            stored += entry.stored
    _write_batch(out, contents, batch)


def _write_batch(out: TarOutput, contents: Contents, batch: list[Entry]) -> None:
    """Write samples that fit into one buffer; where some cannot be read, the others as if those had never been."""
    view = out.buffer()
    while batch:
        names = [name for entry in batch for name in entry.names]
        sizes = np.array([size for entry in batch for size in entry.sizes], np.int64)
        heads = [head for entry in batch for head in entry.headers]
        head_sizes = np.array([len(head) for head in heads], np.int64)
        plain = np.flatnonzero(head_sizes == 0)
        head_sizes[plain] = BLOCK
        ends = np.cumsum(head_sizes + sizes + -sizes % BLOCK)
        starts = ends - (sizes + -sizes % BLOCK)
        used = int(ends[-1])
        blocks = np.frombuffer(view, np.uint8, used).reshape(-1, BLOCK)
        blocks[ends // BLOCK - 1] = 0  # the padding; what comes before it in its block is written over
        blocks[starts[plain] // BLOCK - 1] = plain_headers([names[number] for number in plain.tolist()], sizes[plain])
        for head, start in zip(heads, starts.tolist(), strict=True):
            if head:
                view[start - len(head) : start] = head
        unreadable = _read_batch(view, contents, batch, starts.tolist())
        if not unreadable:
            contents.add(batch, out.position + starts)
            out.send(used)
            return
        batch = [entry for number, entry in enumerate(batch) if number not in unreadable]


def _read_batch(view: memoryview, contents: Contents, batch: list[Entry], starts: list[int]) -> set[int]:
    """Read the members of samples to where each starts; return the samples that cannot be read."""
    unreadable = set()
    places = iter(starts)
    for number, entry in enumerate(batch):
        at = [next(places) for _ in entry.payloads]
        try:
            for payload, start in zip(entry.payloads, at, strict=True):
                read_into(payload, view, start)
        except SourceError as error:
            contents.leave_out(entry.key, error)
            unreadable.add(number)
    return unreadable


def _write_large(out: TarOutput, contents: Contents, entry: Entry) -> None:
    """Write a sample piece by piece; go back to where it started if it cannot be read to its end."""
    before = out.checkpoint()
    offsets = []
    try:
        for name, payload, size in zip(entry.names, entry.payloads, entry.sizes, strict=True):
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
        contents.leave_out(entry.key, error)
    else:
        contents.add([entry], np.array(offsets, np.int64))


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
