"""Parse the headers of one entry of a tar, with the extended headers before it.

Sources: POSIX.1-2017 `pax`; the GNU tar manual, "Basic Tar Format" (long names, base-256 numbers).
"""

from __future__ import annotations

from dataclasses import dataclass

from wdsdist.shards.tar.fields import BLOCK, REGULAR, ZEROS, Read, decode, number, short_name

PAX, PAX_SOLARIS, PAX_GLOBAL, LONG_NAME, LONG_LINK, SPARSE = b"xXgLKS"
EXTENDED = frozenset((PAX, PAX_SOLARIS, PAX_GLOBAL, LONG_NAME, LONG_LINK))
"""Types of the headers that describe the entry after them."""
DATALESS = dict(zip(b"123456", ("hard link", "symbolic link", "device", "device", "directory", "device"), strict=True))

_DIRECTORY = ord("5")
LONGEST_HEADERS = 1 << 20
"""Most bytes of the extended headers of one member: enough for any path, and the attributes of any file system."""
_LONGEST_HEADER = 32 << 20
"""Most bytes of one extended header that are read: it is in memory twice."""


class HeaderError(ValueError):
    """An entry cannot be read without losing samples; ``offset`` is where its header starts."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.offset = offset


@dataclass(slots=True)
class Entry:
    """One entry of a tar."""

    kind: int
    """Its type; `PAX_GLOBAL` for a global header behind which the tar ends."""
    name: str
    data: int
    """Offset of its data."""
    size: int
    next: int
    """Offset of the entry after it."""
    headers: list[int]
    """Offsets of its header blocks, the extended ones first."""

    @property
    def skipped(self) -> str:
        """The kind of an entry that is not a regular file, for counts; empty for a file."""
        return "" if self.kind in REGULAR else DATALESS.get(self.kind, f"entry of unknown type {chr(self.kind)!r}")


def pax_records(body: bytes) -> dict[str, str] | None:
    """Parse the ``length keyword=value`` records of a PAX header; ``None`` if they are malformed.

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


def entry_at(read: Read, offset: int, end: int) -> Entry:
    """Parse the entry whose first header lies at an offset of a tar that ends at ``end``.

    Checksums of headers are not checked. Raises `HeaderError`.
    """
    headers, names, sizes = [offset], set[str](), set[int]()
    block = read(offset, offset + BLOCK)
    while (kind := block[156]) in EXTENDED:
        offset = _read_extended(read, block, offset, end, names, sizes)
        block = read(offset, offset + BLOCK) if offset + BLOCK <= end else ZEROS
        if block == ZEROS:
            if kind == PAX_GLOBAL:
                return Entry(kind, "", offset, 0, offset, headers)  # a global header may come last
            raise HeaderError(offset, "an extended header is followed by no entry")
        headers.append(offset)
    if len(names) > 1 or len(sizes) > 1:
        raise HeaderError(offset, "two extended headers disagree about the entry")  # and so do readers
    data = offset + BLOCK
    if kind not in REGULAR:
        size = _size(block, offset)
        if kind == SPARSE:
            raise HeaderError(offset, "a sparse file, which a shard cannot hold, starts")
        return Entry(kind, "", data, size, data if kind in DATALESS else data + size + -size % BLOCK, headers)
    name = next(iter(names)) if names else short_name(block)  # whose field may be cut at a slash
    size = next(iter(sizes)) if sizes else _size(block, offset)
    if data + size > end:
        raise _cut(offset, name, size, end)
    if not names and name[-1:] == "/" and not kind:
        return Entry(_DIRECTORY, name, data, 0, data, headers)  # as V7 tar spells directories
    return Entry(kind, name, data, size, data + size + -size % BLOCK, headers)


def _read_extended(read: Read, block: bytes, offset: int, end: int, names: set[str], sizes: set[int]) -> int:
    """Add what an extended header says of its entry; return the offset of the header after it."""
    kind, length, data = block[156], _size(block, offset), offset + BLOCK
    if data + length > end:
        raise _cut(offset, "extended header", length, end)
    if length > _LONGEST_HEADER:
        raise HeaderError(offset, f"an extended header of {length:,} bytes, more than any file needs, starts")
    stop = data + length + -length % BLOCK
    if kind == LONG_NAME:
        names.add(decode(read(data, stop)))
        return stop
    if kind == LONG_LINK:
        return stop
    records = pax_records(read(data, data + length))
    if records is None:
        raise HeaderError(offset, "a PAX header cannot be read")
    if any(keyword.startswith("GNU.sparse") for keyword in records):
        raise HeaderError(offset, "a sparse file, which a shard cannot hold, starts")
    if kind == PAX_GLOBAL and records.keys() & {"path", "size"}:
        raise HeaderError(offset, "a global PAX header sets one path or size for all entries")
    if "path" in records:
        if "\0" in records["path"]:
            raise HeaderError(offset, f"a PAX header has the impossible path {records['path']!r}")
        names.add(records["path"].rstrip("/"))
    if "size" in records:
        digits = records["size"]
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            raise HeaderError(offset, f"a PAX header has the impossible size {digits[:20]!r}")
        sizes.add(int(digits))
    return stop


def _size(block: bytes, offset: int) -> int:
    size = number(block[124:136])
    if size < 0:
        raise HeaderError(offset, f"a header has the impossible size {block[124:136]!r}")
    return size


def _cut(offset: int, name: str, size: int, end: int) -> HeaderError:
    left = end - offset - BLOCK
    return HeaderError(offset, f"member {name!r} has {size:,} bytes but the file holds {left:,} of them,")


def is_described_as(read: Read, offset: int, name: str, size: int) -> bool:
    """Return whether the headers before the data at an offset, the extended ones too, give this name and size."""
    try:
        entry = entry_at(read, _first_header(read, offset - BLOCK), offset + size)
    except (HeaderError, IndexError):  # or the bytes before the member are not there
        return False
    return (entry.data, entry.name, entry.size) == (offset, name, size)


def _first_header(read: Read, offset: int) -> int:
    """Return the offset of the first extended header before the header at an offset; this offset without any."""
    first = start = offset
    while start >= BLOCK and offset - start < LONGEST_HEADERS:
        start -= BLOCK
        block = read(start, start + BLOCK)
        size = number(block[124:136]) if len(block) == BLOCK and block[156] in EXTENDED else -1
        if size >= 0 and start + BLOCK + size + -size % BLOCK == first:
            first = start
    return first
