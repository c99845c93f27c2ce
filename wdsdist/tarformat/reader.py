"""Find every member of a tar in a buffer, without reading the members' data.

One pass in plain Python follows the headers; the checksums of all headers are then compared at once with numpy.
What cannot be read without losing samples is an error that names the shard and the offset, never a shorter list.

Sources: POSIX.1-2017 `pax`; the GNU tar manual, "Basic Tar Format" (long names, base-256 numbers).
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsdist.errors import ShardDamagedError

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_CHUNK = 1 << 20
_REGULAR = frozenset(b"0\x007")
_DATALESS = dict(zip(b"123456", ("hard link", "symbolic link", "device", "device", "directory", "device"), strict=True))
_PAX, _PAX_SOLARIS, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK, _SPARSE = b"xXgLKS"
_EXTENDED = frozenset((_PAX, _PAX_SOLARIS, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK))

Buffer = bytes | mmap.mmap


@dataclass(frozen=True, slots=True)
class Members:
    """The regular files of one tar, in file order."""

    names: list[str]
    """Paths as stored."""
    headers: npt.NDArray[np.int64]
    """Offset of each member's first header block, long-name and PAX headers included."""
    offsets: npt.NDArray[np.int64]
    """Offset of each member's data."""
    sizes: npt.NDArray[np.int64]
    """Bytes of each member's data."""
    skipped: dict[str, int]
    """How many entries were passed over, by what they were."""


def scan(buffer: Buffer, *, label: str) -> Members:
    """Return the members of the tar that ``buffer`` holds; ``label`` names it in errors.

    Raises ``ShardDamagedError`` for a tar that is cut short, lacks its two closing blocks of zeros, has data
    after them, or holds a header with a wrong checksum, an impossible size or a sparse file.

    >>> from wdsdist.tarformat.writer import END, header, padding
    >>> tar = header("a.txt", 5) + b"hello" + padding(5) + END
    >>> members = scan(tar, label="a.tar")
    >>> members.names, members.offsets.tolist(), members.sizes.tolist()
    (['a.txt'], [512], [5])
    """
    walk = _Walk(buffer, label)
    try:
        walk.run()
    except ShardDamagedError:
        # A garbled header sends the walk astray: report the header, not the place where it led.
        walk.check_headers()
        raise
    walk.check_headers()
    return Members(
        names=walk.names,
        headers=np.array(walk.headers, np.int64),
        offsets=np.array(walk.offsets, np.int64),
        sizes=np.array(walk.sizes, np.int64),
        skipped=walk.skipped,
    )


def is_header_of(name: str, block: bytes) -> bool:
    """Say whether a header block can be that of a member with this name.

    >>> from wdsdist.tarformat.writer import header
    >>> is_header_of("a.txt", header("a.txt", 5)), is_header_of("b.txt", header("a.txt", 5))
    (True, False)
    """
    if not name.isascii() or len(name) >= 100:
        return True  # it stands in an extended header before this one, or is split in two
    return _decode(block[:100]) == name


class _Walk:
    """One pass over the headers of a tar; keeps what it found so that a failure can be explained."""

    def __init__(self, buffer: Buffer, label: str) -> None:
        self.buffer = buffer
        self.end = len(buffer)
        self.label = label
        self.names: list[str] = []
        self.headers: list[int] = []
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.skipped: dict[str, int] = {}
        self.blocks: list[int] = []  # every header block met, for the checksums

    def damaged(self, offset: int, problem: str) -> ShardDamagedError:
        return ShardDamagedError(f"{self.label}: {problem} at byte {offset:,} of {self.end:,}")

    def run(self) -> None:
        buffer, end, blocks = self.buffer, self.end, self.blocks
        offset = 0
        while offset + _BLOCK <= end:
            if buffer[offset] == 0 and buffer[offset : offset + _BLOCK] == _ZEROS:
                return self._check_end(offset)
            blocks.append(offset)
            kind = buffer[offset + 156]
            if kind in _REGULAR:
                offset = self._add(offset, offset, None, None)
            elif kind in _EXTENDED:
                offset = self._extended(offset)
            else:
                offset = self._pass_over(offset)
        raise self.damaged(offset, "the tar ends without its two closing blocks of zeros")

    def check_headers(self) -> None:
        """Raise for the first header met whose checksum is wrong."""
        # The search returns before this raises: a traceback that holds its views would keep a map from closing.
        bad = _wrong_checksum(self.buffer, self.blocks)
        if bad is not None:
            raise self.damaged(bad, "a header has a wrong checksum: the tar is damaged")

    def _check_end(self, offset: int) -> None:
        """The first block of zeros must be followed by another, and by nothing else."""
        if self.end - offset < 2 * _BLOCK:
            raise self.damaged(offset, "the tar ends after one of its two closing blocks of zeros")
        for start in range(offset, self.end, _CHUNK):
            if self.buffer[start : start + _CHUNK].strip(b"\0"):
                raise self.damaged(offset, "there is data after the closing blocks (two tars in one file?)")

    def _add(self, first: int, offset: int, name: str | None, size: int | None) -> int:
        """Add the regular file at ``offset``; return the offset of the next entry."""
        buffer = self.buffer
        data = offset + _BLOCK
        if name is None:
            block = buffer[offset:data]
            name = _decode(block[:100])
            # Only POSIX headers have a prefix: GNU's keep times in its place.
            if block[345] and block[257:263] == b"ustar\0":
                name = f"{_decode(block[345:500])}/{name}"
        if size is None:
            size = self._number(offset)
        stop = data + size
        if stop > self.end:
            raise self._cut(offset, name, size)
        if name[-1:] == "/" and buffer[offset + 156] == 0:  # how V7 tar spelled a directory
            self._skip("directory")
            return data
        self.names.append(name)
        self.headers.append(first)
        self.offsets.append(data)
        self.sizes.append(size)
        return stop + -size % _BLOCK

    def _pass_over(self, offset: int) -> int:
        """Count an entry that is no file; return the offset of the next one."""
        kind = self.buffer[offset + 156]
        size = self._number(offset)
        if kind in _DATALESS:
            self._skip(_DATALESS[kind])
            return offset + _BLOCK
        if kind == _SPARSE:
            raise self.damaged(offset, "a sparse file, which a shard cannot hold, starts")
        self._skip(f"entry of unknown type {chr(kind)!r}")
        return offset + _BLOCK + size + -size % _BLOCK

    def _skip(self, what: str) -> None:
        self.skipped[what] = self.skipped.get(what, 0) + 1

    def _extended(self, first: int) -> int:
        """Follow PAX and long-name headers to the entry that they describe, and take that entry."""
        buffer = self.buffer
        names: set[str] = set()
        sizes: set[int] = set()
        offset = first
        while (kind := buffer[offset + 156]) in _EXTENDED:
            length = self._number(offset)
            data = offset + _BLOCK
            if data + length > self.end:
                raise self._cut(offset, "extended header", length)
            if kind == _LONG_NAME:
                names.add(_decode(buffer[data : data + length + -length % _BLOCK]))
            elif kind != _LONG_LINK:
                records = self._pax_records(offset, buffer[data : data + length])
                if kind == _PAX_GLOBAL and records.keys() & {"path", "size"}:
                    raise self.damaged(offset, "a global PAX header sets one path or size for all entries")
                if "path" in records:
                    names.add(self._pax_path(offset, records["path"]))
                if "size" in records:
                    sizes.add(self._pax_size(offset, records["size"]))
            offset = data + length + -length % _BLOCK
            if offset + _BLOCK > self.end or buffer[offset : offset + _BLOCK] == _ZEROS:
                if kind == _PAX_GLOBAL:
                    return offset  # notes on the whole archive may stand last
                raise self.damaged(offset, "an extended header is followed by no entry")
            self.blocks.append(offset)
        if len(names) > 1 or len(sizes) > 1:
            raise self.damaged(offset, "two extended headers disagree about the entry")  # and so do readers
        if kind in _REGULAR:
            return self._add(first, offset, next(iter(names), None), next(iter(sizes), None))
        return self._pass_over(offset)

    def _pax_records(self, offset: int, body: bytes) -> dict[str, str]:
        """Read the ``length keyword=value`` lines of a PAX header."""
        records = {}
        start = 0
        while start < len(body) and body[start]:
            digits, _, _ = body[start : start + 20].partition(b" ")
            stop = start + int(digits) if digits.isdigit() else start
            keyword, equals, value = body[start + len(digits) + 1 : stop - 1].partition(b"=")
            if not equals or stop > len(body) or body[stop - 1 : stop] != b"\n":
                raise self.damaged(offset, "a PAX header cannot be read")
            records[_decode(keyword)] = value.decode("utf-8", "surrogateescape")
            start = stop
        if any(keyword.startswith("GNU.sparse") for keyword in records):
            raise self.damaged(offset, "a sparse file, which a shard cannot hold, starts")
        return records

    def _pax_path(self, offset: int, path: str) -> str:
        if "\0" in path:
            raise self.damaged(offset, f"a PAX header has the impossible path {path!r}")
        return path.rstrip("/")

    def _pax_size(self, offset: int, digits: str) -> int:
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            raise self.damaged(offset, f"a PAX header has the impossible size {digits[:20]!r}")
        return int(digits)

    def _number(self, offset: int) -> int:
        """Read a header's size field: octal digits, or base-256 where the first byte says so."""
        field = self.buffer[offset + 124 : offset + 136]
        size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else _octal(field)
        if size < 0:
            raise self.damaged(offset, f"a header has the impossible size {field!r}")
        return size

    def _cut(self, offset: int, name: str, size: int) -> ShardDamagedError:
        left = self.end - offset - _BLOCK
        return self.damaged(offset, f"member {name!r} has {size:,} bytes but the file holds {left:,} of them,")


def _decode(field: bytes) -> str:
    """Read a NUL-terminated name; bytes that are not UTF-8 survive as surrogates, as in ``tarfile``."""
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _octal(field: bytes) -> int:
    """Read octal digits between optional spaces and NULs; -1 where there is anything else."""
    try:
        return int(field.rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        return -1


def _wrong_checksum(buffer: Buffer, headers: list[int]) -> int | None:
    """Return the first of the given header blocks that has a wrong checksum."""
    if not headers:
        return None
    blocks = np.array(headers, np.int64)
    views = np.lib.stride_tricks.sliding_window_view(np.frombuffer(buffer, np.uint8), _BLOCK)
    for start in range(0, len(blocks), 1024):  # a few at a time, which stay in the processor's cache
        part = blocks[start : start + 1024]
        fields = views[part]
        stored = fields[:, 148:156].copy()
        fields[:, 148:156] = ord(" ")
        sums = fields.sum(axis=1, dtype=np.uint32)
        for row in np.flatnonzero(_spelled(sums).view(np.uint64) != stored.view(np.uint64)):
            # There are other spellings, and some old writers summed the bytes as signed numbers.
            if _octal(stored[row].tobytes()) not in (sums[row], fields[row].view(np.int8).sum(dtype=np.int64)):
                return int(part[row])
    return None


def _spelled(sums: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Spell checksums as nearly all writers do: six octal digits, a NUL and a space."""
    text = np.zeros((len(sums), 8), np.uint8)
    text[:, :6] = (sums[:, None] >> np.arange(15, -1, -3, dtype=np.uint32) & 7) + ord("0")
    text[:, 7] = ord(" ")
    return text
