"""Read the headers of a tar in a buffer, without the data of its members.

A tar that cannot be read without losing samples is an error that names the shard and the offset, never a shorter list.
Sources: POSIX.1-2017 `pax`; the GNU tar manual, "Basic Tar Format" (long names, base-256 numbers).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Protocol
from zlib import adler32

from wdsdist.errors import ShardDamagedError

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

PAX, PAX_SOLARIS, PAX_GLOBAL, LONG_NAME, LONG_LINK, SPARSE = b"xXgLKS"
EXTENDED = frozenset((PAX, PAX_SOLARIS, PAX_GLOBAL, LONG_NAME, LONG_LINK))
"""Types of the headers that describe the entry after them."""
DATALESS = dict(zip(b"123456", ("hard link", "symbolic link", "device", "device", "directory", "device"), strict=True))

_LONGEST_HEADER = 32 << 20
"""Most bytes of one extended header that are read: it is in memory twice."""
_SPARSE_FILE = "a sparse file, which a shard cannot hold (unpack it by `tar xf`, and pack the files), starts"
_CHUNK = 1 << 20
_PRIME = 65521  # of Adler-32, whose lower half is a sum of bytes

Entry = tuple[str, str, int, int]
"""One entry of a tar: its kind, an empty string for a regular file; name; offset and bytes of its data."""


class Readable(Protocol):
    """Buffer protocol of the tar reader: ``bytes``, a mapped file, or a remote file that is fetched on access."""

    def __len__(self) -> int: ...

    def __getitem__(self, span: slice, /) -> bytes: ...


class _HeaderError(ValueError):
    """An entry cannot be read without losing samples."""


def entries(buffer: Readable, *, label: str, start: int = 0, stop: int | None = None) -> Iterator[Entry]:
    """Yield the entries of the tar in a buffer, or between ``start`` and ``stop`` in it, in file order.

    Raises `ShardDamagedError` for a tar that is cut short, lacks its two closing blocks of zeros, has data
    after them, or holds a header with a wrong checksum, an impossible size or a sparse file.

    >>> from wdsdist.shards.tar.writer import header, padding
    >>> list(entries(header("a.txt", 5) + b"hello" + padding(5) + END, label="a.tar"))
    [('', 'a.txt', 512, 5)]
    """
    end, offset = len(buffer) if stop is None else stop, start
    names, sizes = set[str](), set[int]()  # of the next entry, as the extended headers before it say
    extended = 0  # type of the last of these
    try:
        while offset + BLOCK <= end:
            block = buffer[offset : offset + BLOCK]
            if block == ZEROS:
                if extended not in (0, PAX_GLOBAL):
                    raise _HeaderError("an extended header is followed by no entry")
                if end - offset < 2 * BLOCK:
                    raise _HeaderError("the tar ends after one of its two closing blocks of zeros")
                if any(buffer[at : min(at + _CHUNK, end)].strip(b"\0") for at in range(offset, end, _CHUNK)):
                    raise _HeaderError("there is data after the closing blocks (two tars in one file?)")
                return
            total = (adler32(block[156:], adler32(block[:148], 0)) & 0xFFFF) + 8 * ord(" ")
            if block[148:156] != _spelled(total) and not _is_sum(block, total):
                raise _HeaderError("a header has a wrong checksum: the tar is damaged")
            kind, data = block[156], offset + BLOCK
            try:
                size = int(block[124:135], 8) if block[135] == 0 else number(block[124:136])  # mostly the first
            except ValueError:
                size = number(block[124:136])
            if kind == 48 and not extended and 0 <= size <= end - data:  # nearly always
                yield "", short_name(block) if block[345] else decode(block[:100]), data, size
                offset = data + size + -size % BLOCK
                continue
            if sizes and kind in REGULAR:
                size = next(iter(sizes))
            if size < 0:
                raise _HeaderError(f"a header has the impossible size {block[124:136]!r}")
            following = data + size + -size % BLOCK
            if kind in EXTENDED:
                _check_cut("extended header", size, data, end)
                if size > _LONGEST_HEADER:
                    raise _HeaderError(f"an extended header of {size:,} bytes, more than any file needs, starts")
                # As tarfile does, a long name is read up to its NUL, also beyond the size.
                _read_extended(kind, buffer[data : following if kind == LONG_NAME else data + size], names, sizes)
                extended, offset = kind, following
                continue
            if len(names) > 1 or len(sizes) > 1:
                raise _HeaderError("two extended headers disagree about the entry")  # and so do readers
            if kind in REGULAR:
                name = next(iter(names)) if names else short_name(block)  # whose field may be cut at a slash
                _check_cut(name, size, data, end)
                if name[-1:] != "/" or kind or names:
                    yield "", name, data, size
                else:  # as V7 tar spells directories
                    following = data
                    yield "directory", name, data, 0
            elif kind == SPARSE:
                raise _HeaderError(_SPARSE_FILE)
            else:
                following = data if kind in DATALESS else following
                yield DATALESS.get(kind, f"entry of unknown type {chr(kind)!r}"), "", data, size
            offset = following
            if extended:
                names, sizes, extended = set(), set(), 0
        raise _HeaderError("the tar ends without its two closing blocks of zeros")
    except _HeaderError as error:
        raise ShardDamagedError(f"{label}: {error} at byte {offset - start:,} of {end - start:,}") from None


@functools.lru_cache(1 << 13)
def _spelled(total: int) -> bytes:
    """Return a checksum as nearly all writers spell it."""
    return b"%06o\0 " % total


def _is_sum(block: bytes, total: int) -> bool:
    """Return whether the checksum of a tar header is right, though spelled in a rare way."""
    stated = octal(block[148:156])
    if stated < 0 or (stated - total) % _PRIME == 0:
        return stated >= 0
    summed = block[:148] + block[156:]  # some old writers summed the bytes as signed numbers
    return stated == sum(byte - 256 * (byte > 127) for byte in summed) + 8 * ord(" ")


def _read_extended(kind: int, body: bytes, names: set[str], sizes: set[int]) -> None:
    """Parse a PAX or GNU extended header: add the name and size that it gives the next entry."""
    if kind == LONG_NAME:
        names.add(decode(body))
    if kind in (LONG_NAME, LONG_LINK):
        return
    records = pax_records(body)
    if records is None:
        raise _HeaderError("a PAX header cannot be read")
    if any(keyword.startswith("GNU.sparse") for keyword in records):
        raise _HeaderError(_SPARSE_FILE)
    if kind == PAX_GLOBAL and records.keys() & {"path", "size"}:
        raise _HeaderError("a global PAX header sets one path or size for all entries")
    if "path" in records:
        if "\0" in records["path"]:
            raise _HeaderError(f"a PAX header has the impossible path {records['path']!r}")
        names.add(records["path"].rstrip("/"))
    if "size" in records:
        digits = records["size"]
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            raise _HeaderError(f"a PAX header has the impossible size {digits[:20]!r}")
        sizes.add(int(digits))


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


def _check_cut(name: str, size: int, data: int, end: int) -> None:
    if data + size > end:
        raise _HeaderError(f"member {name!r} has {size:,} bytes but the file holds {end - data:,} of them,")


def is_member_at(read: Read, offset: int, name: str, size: int) -> bool:
    """Check the tar headers before an offset: return whether a regular member of this name and size lies there.

    It is true for every member that `entries` yields, with its offset, name and size.

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
    first = start = offset - BLOCK
    while start >= BLOCK and offset - start < LONGEST_HEADERS:  # back to the first extended header
        start -= BLOCK
        block = read(start, start + BLOCK)
        length = number(block[124:136]) if len(block) == BLOCK and block[156] in EXTENDED else -1
        if length >= 0 and start + BLOCK + length + -length % BLOCK == first:
            first = start
    headers = read(first, offset)
    try:
        entry = next(entries(headers, label="", stop=len(headers) + size))
    except (ShardDamagedError, IndexError):  # or the bytes before the member are not there
        return False
    return entry == ("", name, len(headers), size)


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
