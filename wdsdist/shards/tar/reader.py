"""Scan the headers of a tar in a buffer and return all members, without reading their data.

A tar that cannot be read without losing samples is an error that names the shard and the offset, never a shorter list.
Ordinary files are parsed in a short loop, other entries by `entries.entry_at`; checksums of headers are computed for
many headers at once.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.errors import ShardDamagedError
from wdsdist.shards.tar.entries import PAX_GLOBAL, HeaderError, entry_at
from wdsdist.shards.tar.fields import BLOCK, ZEROS, octal

_CHUNK = 1 << 20
_CHECKED = 4096
"""Headers whose checksums are computed at once: no more than fit the processor's cache."""
_PART = 1 << 16
"""Members whose names are held as Python objects together."""

Blocks = npt.NDArray[np.uint8]
"""uint8 [headers, 512]."""


class Readable(Protocol):
    """Buffer protocol of the tar reader: ``bytes``, a mapped file, or a remote file that is fetched on access."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: slice, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Members:
    """The regular files of one tar, in file order."""

    names: list[str]
    """Paths as stored."""
    offsets: Int64s
    """Offset of each member's data."""
    sizes: Int64s
    """Bytes of each member's data."""
    skipped: dict[str, int]
    """Number of skipped entries, by kind."""


def scan(buffer: Readable, *, label: str) -> Members:
    """Return the members of the tar in ``buffer``; ``label`` is its name in errors.

    Raises `ShardDamagedError` for a tar that is cut short, lacks its two closing blocks of zeros, has data
    after them, or holds a header with a wrong checksum, an impossible size or a sparse file.

    >>> from wdsdist.shards.tar.fields import END
    >>> from wdsdist.shards.tar.writer import header, padding
    >>> tar = header("a.txt", 5) + b"hello" + padding(5) + END
    >>> members = scan(tar, label="a.tar")
    >>> members.names, members.offsets.tolist(), members.sizes.tolist()
    (['a.txt'], [512], [5])
    """
    (members,) = scan_parts(buffer, label=label, most=len(buffer))
    return members


def scan_parts(
    buffer: Readable, *, label: str, start: int = 0, stop: int | None = None, most: int = _PART
) -> Iterator[Members]:
    """Yield the members of a tar in parts, because the names of millions of members take too much memory at once.

    The tar may be a part of the buffer, between ``start`` and ``stop``; offsets are in the buffer. A part has
    about ``most`` members. Raises what `scan` raises, if only after the parts before the damage.
    """
    end = len(buffer) if stop is None else stop
    offset: int | None = start
    while offset is not None:
        found = _Found()
        error: HeaderError | None = None
        try:
            offset = _scan(buffer, offset, end, most, found)
        except HeaderError as damage:
            error = damage
        # A garbled header leads the scan to a wrong offset: report the header, not that offset.
        wrong = _first_wrong_checksum(buffer, found.all_headers())
        if wrong is not None:
            error = HeaderError(wrong, "a header has a wrong checksum: the tar is damaged")
        if error is not None:
            raise ShardDamagedError(f"{label}: {error} at byte {error.offset - start:,} of {end - start:,}") from None
        yield found.members()


@dataclass(slots=True)
class _Found:
    names: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    headers: list[int] = field(default_factory=list)
    """Offsets of the headers that are not right before a file's data."""

    def all_headers(self) -> Int64s:
        """Return the offsets of all headers, in order."""
        before_files = np.array(self.offsets, np.int64) - BLOCK
        return np.sort(np.append(before_files, np.array(self.headers, np.int64)), kind="stable")

    def members(self) -> Members:
        offsets, sizes = np.array(self.offsets, np.int64), np.array(self.sizes, np.int64)
        return Members(self.names, offsets, sizes, dict(self.skipped))


def _scan(buffer: Readable, offset: int, end: int, most: int, found: _Found) -> int | None:
    """Scan entries from an offset on; return the offset of the next one, or ``None`` at the end of the tar."""

    def read(start: int, stop: int) -> bytes:
        return buffer[start:stop]

    names, offsets, sizes, headers = found.names, found.offsets, found.sizes, found.headers
    while offset + BLOCK <= end:
        block = buffer[offset : offset + BLOCK]
        if block[156] == 48 and not block[345] and block[135] in b"\0 ":  # a plain header of a file: nearly always
            size = octal(block[124:135])
            data = offset + BLOCK
            if 0 <= size <= end - data:
                names.append(
                    block[: block.find(0, 0, 100) if not block[99] else 100].decode("utf-8", "surrogateescape")
                )
                offsets.append(data)
                sizes.append(size)
                offset = data + (size + 511 & -512)
                if len(names) >= most:
                    return offset
                continue
        if block == ZEROS:
            _check_end(buffer, offset, end)
            return None
        try:
            entry = entry_at(read, offset, end)
        except HeaderError as error:
            headers.append(offset)
            if error.offset + BLOCK <= end and buffer[error.offset : error.offset + BLOCK] != ZEROS:
                headers.append(error.offset)
            raise
        headers += entry.headers
        offset = entry.next
        if entry.kind == PAX_GLOBAL:
            continue
        if skipped := entry.skipped:
            found.skipped[skipped] += 1
            continue
        names.append(entry.name)
        offsets.append(entry.data)
        sizes.append(entry.size)
    raise HeaderError(offset, "the tar ends without its two closing blocks of zeros")


def _check_end(buffer: Readable, offset: int, end: int) -> None:
    """Raise `HeaderError` unless the first block of zeros is followed by another, and by zeros only."""
    if end - offset < 2 * BLOCK:
        raise HeaderError(offset, "the tar ends after one of its two closing blocks of zeros")
    for start in range(offset, end, _CHUNK):
        if buffer[start : min(start + _CHUNK, end)].strip(b"\0"):
            raise HeaderError(offset, "there is data after the closing blocks (two tars in one file?)")


def _first_wrong_checksum(buffer: Readable, headers: Int64s) -> int | None:
    """Return the offset of the first header with a wrong checksum."""
    for start in range(0, len(headers), _CHECKED):
        part = headers[start : start + _CHECKED]
        wrong = wrong_checksums(_gather(buffer, part))
        if len(wrong):
            return int(part[wrong[0]])
    return None


def _gather(buffer: Readable, offsets: Int64s) -> Blocks:
    """Return copies of the blocks at the given offsets inside the buffer."""
    if isinstance(buffer, (bytes, mmap.mmap)):
        return np.lib.stride_tricks.sliding_window_view(np.frombuffer(buffer, np.uint8), BLOCK)[offsets]
    blocks = b"".join(buffer[offset : offset + BLOCK] for offset in offsets.tolist())
    return np.frombuffer(blocks, np.uint8).reshape(-1, BLOCK).copy()


def wrong_checksums(blocks: Blocks) -> Int64s:
    """Return the rows whose checksum is wrong; the checksum fields are overwritten with spaces."""
    stored = blocks[:, 148:156].copy()
    blocks[:, 148:156] = ord(" ")
    sums = blocks.sum(axis=1, dtype=np.uint32)
    unlike = np.flatnonzero(_spelled(sums).view(np.uint64)[:, 0] != stored.view(np.uint64)[:, 0])
    # Checksums have other spellings too, and some old writers summed the bytes as signed numbers.
    wrong = [
        row
        for row in unlike.tolist()
        if octal(stored[row].tobytes()) not in (sums[row], blocks[row].view(np.int8).sum(dtype=np.int64))
    ]
    return np.array(wrong, np.int64)


def _spelled(sums: npt.NDArray[np.uint32]) -> Blocks:
    """Encode checksums as nearly all writers do: six octal digits, a NUL and a space."""
    digits = np.zeros((len(sums), 8), np.uint8)
    digits[:, :6] = (sums[:, None] >> np.arange(15, -1, -3, dtype=np.uint32) & 7) + ord("0")
    digits[:, 7] = ord(" ")
    return digits
