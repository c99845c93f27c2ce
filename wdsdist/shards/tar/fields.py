"""Fields of one header block of a tar, and whether a member lies where an index says. Readers of shards load no more.

Sources: POSIX.1-2017 `pax`; the GNU tar manual, "Basic Tar Format" (base-256 numbers).
"""

from __future__ import annotations

from collections.abc import Callable

BLOCK = 512
ZEROS = bytes(BLOCK)
END = bytes(2 * BLOCK)
"""The end of a tar file: two blocks of zeros."""

REGULAR = b"0\x007"
"""Types of regular files."""

LONGEST_HEADERS = 1 << 20
"""Most bytes of the extended headers of one member: enough for any path, and the attributes of any file system."""

Read = Callable[[int, int], bytes]
"""Returns the bytes of a tar from the first up to the second offset."""


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


def is_member_at(read: Read, offset: int, name: str, size: int) -> bool:
    """Return whether the data at an offset of a tar is a regular file of this name and size, by its headers.

    It is true for every member that `reader.entries` yields, with its offset, name and size.

    >>> from wdsdist.shards.tar.writer import header
    >>> tar = header("a.txt", 5)
    >>> is_member_at(lambda start, stop: tar[start:stop], 512, "a.txt", 5)
    True
    >>> is_member_at(lambda start, stop: tar[start:stop], 512, "b.txt", 5)
    False
    """
    block = read(offset - BLOCK, offset) if offset >= BLOCK else b""
    if len(block) < BLOCK or block[156] not in REGULAR:
        return False
    if (short_name(block), number(block[124:136])) == (name, size):
        return True  # nearly always: only an extended header can overrule a field that differs
    from wdsdist.shards.tar import reader

    return reader.is_described_as(read, offset, name, size)
