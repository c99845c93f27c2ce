"""Write deterministic tar headers: the same name and size always give the same bytes.

A member costs one 512-byte USTAR header and its data padded to 512 bytes. Times, owners and groups are zero. A
PAX header (1,024 bytes more) appears only for a name that USTAR cannot hold or a size of 8 GiB and above.

Source: POSIX.1-2017, `pax`, "ustar Interchange Format" and "pax Extended Header".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wdsdist.shards.tar.reader import BLOCK

Blocks = npt.NDArray[np.uint8]
"""uint8 [headers, 512]."""

SIZE_LIMIT = 8**11
"""Least size of a file, in bytes, that does not fit the eleven octal digits of a USTAR header."""
PLAIN_NAME = 100
"""Most bytes of a name that needs no prefix field."""
_PREFIX = 155  # bytes
_SIZE = slice(124, 135)
_CHECKSUM = slice(148, 154)


def _block(typeflag: bytes, name: bytes = b"", prefix: bytes = b"", size: int = 0) -> bytes:
    """Return a header block, with its checksum."""
    block = bytearray(BLOCK)
    block[: len(name)] = name
    block[100:108] = b"0000644\0"  # mode
    block[108:116] = block[116:124] = b"0000000\0"  # uid, gid
    block[124:136] = b"%011o\0" % size
    block[136:148] = b"00000000000\0"  # mtime
    block[148:156] = b"        "  # the checksum counts its own field as spaces
    block[156:157] = typeflag
    block[257:265] = b"ustar\x0000"
    block[345 : 345 + len(prefix)] = prefix
    block[148:155] = b"%06o\0" % sum(block)
    return bytes(block)


_EMPTY = _block(b"0")


def _split_prefix(name: bytes) -> tuple[bytes, bytes] | None:
    """Split a long path at a slash so that both parts fit their USTAR fields; ``None`` if none do."""
    if len(name) <= PLAIN_NAME:
        return b"", name
    cut = name.rfind(b"/", 0, _PREFIX + 1)
    if cut < 1 or not 0 < len(name) - cut - 1 <= PLAIN_NAME:
        return None
    return name[:cut], name[cut + 1 :]


def _pax_record(keyword: str, value: bytes) -> bytes:
    body = b" " + keyword.encode() + b"=" + value + b"\n"
    length = len(body)
    # The length counts its own digits, so it grows until it agrees with itself.
    while length != len(body) + len(str(length)):
        length = len(body) + len(str(length))
    return str(length).encode() + body


def header(name: str, size: int) -> bytes:
    """Return the header of a regular file: 512 bytes, or 1,536 and more if PAX is needed.

    Raises ``ValueError`` for a name that no file in a tar can have (empty, with a NUL or a slash at its end, or not
    valid Unicode) and for a negative size.

    >>> len(header("cat/0001.jpg", 70_000))
    512
    >>> len(header("köln/0001.jpg", 70_000))
    1536
    """
    if not name or "\0" in name or name[-1] == "/" or size < 0:
        raise ValueError(f"not a tar member: name {name!r}, size {size}")
    path = name.encode()
    split = _split_prefix(path) if path.isascii() else None
    if split is not None and size < SIZE_LIMIT:
        return _block(b"0", split[1], split[0], size)

    records = b""
    if split is None:
        records += _pax_record("path", path)
        split = b"", name.encode("ascii", "replace")[:PLAIN_NAME]
    if size >= SIZE_LIMIT:
        records += _pax_record("size", str(size).encode())
        size = 0
    extended = _block(b"x", b"././@PaxHeader", b"", len(records))
    return extended + records + padding(len(records)) + _block(b"0", split[1], split[0], size)


def plain_headers(names: Sequence[str], sizes: npt.NDArray[np.int64]) -> Blocks:
    """Return the plain USTAR headers of regular files: uint8 [members, 512].

    Args:
        names: ASCII without NUL, 1 to `PLAIN_NAME` bytes, no slash at their ends.
        sizes: int64 [members]: 0 to below `SIZE_LIMIT`.

    >>> from wdsdist.shards.tar.writer import header
    >>> plain_headers(["a.jpg", "b.cls"], np.array([70_000, 1]))[1].tobytes() == header("b.cls", 1)
    True
    """
    blocks = np.empty((len(names), BLOCK), np.uint8)
    if not names:
        return blocks
    blocks[:] = np.frombuffer(_EMPTY, np.uint8)
    empty_sum = int(_EMPTY[_CHECKSUM], 8) - sum(_EMPTY[_SIZE])
    letters = np.frombuffer("".join(names).encode("ascii"), np.uint8)
    lengths = np.fromiter(map(len, names), np.int64, len(names))
    starts = np.cumsum(lengths) - lengths
    blocks.reshape(-1)[np.repeat(np.arange(len(names)) * BLOCK - starts, lengths) + np.arange(len(letters))] = letters
    digits = _octal(sizes, _SIZE)
    blocks[:, _SIZE] = digits
    sums = empty_sum + np.add.reduceat(letters, starts, dtype=np.int64) + digits.sum(axis=1, dtype=np.int64)
    blocks[:, _CHECKSUM] = _octal(sums, _CHECKSUM)
    blocks[:, _CHECKSUM.stop] = 0
    return blocks


def _octal(numbers: npt.NDArray[np.int64], digits: slice) -> Blocks:
    shifts = 3 * np.arange(digits.stop - digits.start - 1, -1, -1)
    octal: Blocks = ((numbers[:, None] >> shifts & 7) + ord("0")).astype(np.uint8)
    return octal


def padding(size: int) -> bytes:
    """Return the zeros that fill ``size`` bytes up to whole blocks."""
    return bytes(-size % BLOCK)


def stored_size(name: str, size: int) -> int:
    """Return the bytes that a member takes in a tar: header, data and padding.

    >>> stored_size("a.cls", 1)
    1024
    """
    # Listings ask for millions of sizes: what fits one block needs no header to be made.
    is_plain = 0 < len(name) <= PLAIN_NAME and name.isascii() and "\0" not in name and name[-1] != "/"
    front = BLOCK if is_plain and 0 <= size < SIZE_LIMIT else len(header(name, size))
    return front + size + -size % BLOCK
