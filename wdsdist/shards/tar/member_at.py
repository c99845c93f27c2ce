"""Check that a member lies where an index says, from the headers before its data alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wdsdist.shards.tar.blocks import (
    BLOCK,
    EXTENDED,
    LONG_LINK,
    LONG_NAME,
    PAX_GLOBAL,
    REGULAR,
    decode,
    number,
    pax_records,
    short_name,
)

LONGEST_HEADERS = 1 << 20
"""Most bytes of the extended headers of one member: enough for any path, and the attributes of any file system."""


def is_member_at(read: Callable[[int, int], bytes], offset: int, name: str, size: int) -> bool:
    """Return whether the data at an offset of a tar is a regular file of this name and size, by its headers.

    It agrees with `scan` about every member of a tar that `scan` accepts.

    Args:
        read: returns the bytes of the tar from the first up to the second offset.
        offset: of the data.
        name: as `scan` returns it.
        size: bytes of the data.

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
    found, length = short_name(block), number(block[124:136])
    if (found, length) == (name, size):
        return True  # nearly always: only what differs may be overruled by an extended header
    for kind, body in _extended_headers(read, offset - BLOCK):
        if kind == LONG_NAME:
            found = decode(body)
        elif kind not in (LONG_LINK, PAX_GLOBAL):
            records = pax_records(body) or {}
            found = records["path"].rstrip("/") if "path" in records else found
            length = int(records["size"]) if records.get("size", "").isdecimal() else length
    return (found, length) == (name, size)


def _extended_headers(read: Callable[[int, int], bytes], offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield the type and content of the extended headers before the header at an offset, the nearest first."""
    end = start = offset
    while start >= BLOCK and offset - start < LONGEST_HEADERS:
        start -= BLOCK
        block = read(start, start + BLOCK)
        size = number(block[124:136]) if len(block) == BLOCK and block[156] in EXTENDED else -1
        if size >= 0 and start + BLOCK + size + -size % BLOCK == end:
            yield block[156], read(start + BLOCK, start + BLOCK + size)
            end = start
