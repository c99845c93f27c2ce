"""Tars made and read by Python's ``tarfile``: the oracle of the format tests."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from wdsdist.shards.tar.reader import entries as entries_of

BLOCK = 512

# Every entry type that tarfile reads as a file; a sparse one would be refused by us.
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)

Listing = list[tuple[str, int, int]]


def file_entry(name: str, size: int, **fields: object) -> tarfile.TarInfo:
    """Return tarfile's description of a regular file, with any of its fields set."""
    entry = tarfile.TarInfo(name)
    entry.size = size
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry


def tar_bytes(
    entries: Iterable[tuple[tarfile.TarInfo, bytes]],
    *,
    format: int = tarfile.USTAR_FORMAT,  # noqa: A002 - tarfile's own name
    pax_headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return the tar that ``tarfile`` writes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format, encoding="utf-8", pax_headers=pax_headers) as tar:
        for entry, data in entries:
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def plain_tar(members: Iterable[tuple[str, bytes]], *, format: int = tarfile.USTAR_FORMAT) -> bytes:  # noqa: A002
    """Return a tar of regular files, from (name, data) pairs."""
    return tar_bytes(((file_entry(name, len(data)), data) for name, data in members), format=format)


def npy_bytes(array: np.ndarray) -> bytes:
    """Return the ``.npy`` file of an array."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def write_shard(path: Path, samples: int, *, prefix: str = "sample", extensions: Iterable[str] = ("txt",)) -> Path:
    """Write a tar of small samples with predictable keys and contents."""
    names = [f"{prefix}{number:04d}.{extension}" for number in range(samples) for extension in extensions]
    path.write_bytes(plain_tar((name, name.encode()) for name in names))
    return path


def write_shards(folder: Path, shards: int, samples: int) -> Path:
    """Write shards `00.tar`, `01.tar`, ... of small samples, whose keys begin with `shard0-`, `shard1-`, ..."""
    for number in range(shards):
        write_shard(folder / f"{number:02}.tar", samples, prefix=f"shard{number}-")
    return folder


def write_numbered(
    folder: Path, counts: Iterable[int], *, extension: str = "cls", texts: Callable[[int], int] | None = None
) -> Path:
    """Write shards `0.tar`, `1.tar`, ... of so many samples each: sample ``n`` of all is ``k<n>`` and holds ``n``.

    Each may have a text as well, whose length is made of ``n``.
    """
    numbers = itertools.count()
    for shard, count in enumerate(counts):
        members = []
        for n in itertools.islice(numbers, count):
            members += [(f"k{n}.{extension}", b"%d" % n)] + ([(f"k{n}.txt", b"x" * texts(n))] if texts else [])
        (folder / f"{shard}.tar").write_bytes(plain_tar(members))
    return folder


def write_samples(folder: Path, shards: Iterable[Iterable[Mapping[str, bytes]]], *, first: int = 0) -> list[str]:
    """Write a tar of the members of each shard's samples, named from ``first`` on; return the keys in order."""
    keys = []
    for number, samples in enumerate(shards, first):
        named = [(f"{number}/k{place}", members) for place, members in enumerate(samples)]
        members = [(f"{key}.{extension}", data) for key, sample in named for extension, data in sample.items()]
        (folder / f"{number:03}.tar").write_bytes(plain_tar(members))
        keys += [key for key, _ in named]
    return keys


def listing(content: bytes) -> Listing:
    """List (name, offset of the data, size) of the regular files, as ``tarfile`` finds them.

    Where tarfile gives up silently, at a header that it cannot read, this raises ``ReadError``.
    """
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:", encoding="utf-8") as tar:
        found = [(entry.name, entry.offset_data, entry.size) for entry in tar if entry.type in _FILES]
        if content[tar.offset : tar.offset + BLOCK].strip(b"\0"):
            raise tarfile.ReadError(f"tarfile stopped at byte {tar.offset}")
    return found


def scanned(content: bytes, label: str = "x.tar") -> Listing:
    """List the regular files of a tar as `listing` does, as wdsdist finds them."""
    return [(name, offset, size) for kind, name, offset, size in entries_of(content, label=label) if not kind]


def skipped(content: bytes) -> Counter[str]:
    """Count the entries that are not regular files, by their kind."""
    return Counter(kind for kind, *_ in entries_of(content, label="x.tar") if kind)


def content_end(content: bytes) -> int:
    """Return where a tar's two closing blocks end; what follows is only fill."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:", encoding="utf-8") as tar:
        tar.getmembers()
        return tar.offset + 2 * BLOCK


def with_checksum(block: bytes) -> bytes:
    """Return a header block whose checksum is right again after a change."""
    blank = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(blank) + block[156:]


def compressed(content: bytes, name: str) -> bytes:
    """Return what a file of this name would hold, as its ending says; of a ``.tar``, the content itself."""
    import gzip

    import zstandard

    packers = {"gz": gzip.compress, "zst": zstandard.compress}
    packers |= {"tgz": gzip.compress, "tar": bytes}
    return packers[name.rpartition(".")[2]](content)
