"""Parse the fields of tar header blocks: names, numbers, checksums, PAX records.

Sources: POSIX.1-2017 `pax`; the GNU tar manual, "Basic Tar Format" (base-256 numbers).
"""

from __future__ import annotations

import mmap
from typing import Protocol

import numpy as np
import numpy.typing as npt

BLOCK = 512
ZEROS = bytes(BLOCK)

REGULAR = b"0\x007"
"""Types of regular files."""
PAX, PAX_SOLARIS, PAX_GLOBAL, LONG_NAME, LONG_LINK, SPARSE = b"xXgLKS"
EXTENDED = frozenset((PAX, PAX_SOLARIS, PAX_GLOBAL, LONG_NAME, LONG_LINK))
"""Types of the headers that describe the entry after them."""

Blocks = npt.NDArray[np.uint8]
"""uint8 [headers, 512]."""


class Readable(Protocol):
    """Buffer protocol of the tar reader: ``bytes``, a mapped file, or a remote file that is fetched on access."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: slice, /) -> bytes: ...


def gather(buffer: Readable, offsets: npt.NDArray[np.int64], width: int = BLOCK) -> Blocks:
    """Return copies of the blocks, or of their first ``width`` bytes, at the given offsets inside the buffer."""
    if isinstance(buffer, (bytes, mmap.mmap)):
        views = np.lib.stride_tricks.sliding_window_view(np.frombuffer(buffer, np.uint8), width)
        return views[offsets]
    parts = b"".join(buffer[offset : offset + width] for offset in offsets.tolist())
    return np.frombuffer(parts, np.uint8).reshape(-1, width).copy()


def wrong_checksums(blocks: Blocks) -> npt.NDArray[np.int64]:
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
    text = np.zeros((len(sums), 8), np.uint8)
    text[:, :6] = (sums[:, None] >> np.arange(15, -1, -3, dtype=np.uint32) & 7) + ord("0")
    text[:, 7] = ord(" ")
    return text


def decode(field: bytes) -> str:
    """Decode a NUL-terminated name; bytes that are not UTF-8 become surrogates, as in ``tarfile``."""
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def short_name(block: bytes) -> str:
    """Return the name in a header block: its name field, behind the prefix that many writers split off at a slash."""
    name = decode(block[:100])
    # Only POSIX headers have a prefix: GNU's keep times in its place.
    return f"{decode(block[345:500])}/{name}" if block[345] and block[257:263] == b"ustar\0" else name


def octal(field: bytes) -> int:
    """Parse octal digits between optional spaces and NULs; -1 for anything else."""
    try:
        return int(field.rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        return -1


def number(field: bytes) -> int:
    """Parse a size field: octal digits, or base-256 by its first byte; negative for anything else."""
    return int.from_bytes(field[1:], "big") if field[0] == 0x80 else octal(field)


def pax_records(body: bytes) -> dict[str, str] | None:
    """Parse the ``length keyword=value`` records of a PAX header; ``None`` where they are malformed.

    >>> pax_records(b"20 mtime=1700000000\\n")
    {'mtime': '1700000000'}
    """
    records = {}
    start = 0
    while start < len(body) and body[start]:
        digits, _, _ = body[start : start + 20].partition(b" ")
        stop = start + int(digits) if digits.isdigit() else start
        keyword, equals, value = body[start + len(digits) + 1 : stop - 1].partition(b"=")
        if not equals or stop > len(body) or body[stop - 1 : stop] != b"\n":
            return None
        records[decode(keyword)] = value.decode("utf-8", "surrogateescape")
        start = stop
    return records
