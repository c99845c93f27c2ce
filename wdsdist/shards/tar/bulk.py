"""Parse the header blocks of tars: the fields of one, and a run of ordinary entries in bulk.

In bulk, sizes are parsed in a tight loop, everything else with numpy. Ordinary entries are regular files with a plain
octal size, entries without data, and single extended headers that set no size: PAX headers with a time, which
webdataset writes before every member, and long names. The run ends at the first entry of another kind, which the reader
parses on its own.

Sources: POSIX.1-2017 `pax`; the GNU tar manual, "Basic Tar Format" (base-256 numbers).
"""

from __future__ import annotations

import mmap
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s

BLOCK = 512
ZEROS = bytes(BLOCK)

REGULAR = b"0\x007"
"""Types of regular files."""
PAX, PAX_SOLARIS, PAX_GLOBAL, LONG_NAME, LONG_LINK, SPARSE = b"xXgLKS"
EXTENDED = frozenset((PAX, PAX_SOLARIS, PAX_GLOBAL, LONG_NAME, LONG_LINK))
"""Types of the headers that describe the entry after them."""

Blocks = npt.NDArray[np.uint8]
"""uint8 [headers, 512]."""
Rows = npt.NDArray[np.bool_]

DATALESS = dict(zip(b"123456", ("hard link", "symbolic link", "device", "device", "directory", "device"), strict=True))

_OPAQUE, _FILE, _EMPTY, _NOTES = range(4)
_KINDS = np.zeros(256, np.uint8)
_KINDS[list(REGULAR)] = _FILE
_KINDS[list(DATALESS)] = _EMPTY
_KINDS[[PAX, LONG_NAME]] = _NOTES
_SAMPLED, _DENSE = 16, 6 * BLOCK
"""After this many headers that are at most this far apart on average, all blocks are parsed as headers."""
_PLACES = 8.0 ** np.arange(10, -1, -1)
_SETS_A_SIZE = re.compile(r"size|GNU\.sparse.*", re.DOTALL)
_SLASH, _NEWLINE, _DIGIT = b"/\n0"


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


@dataclass(frozen=True, slots=True)
class Run:
    """A run of consecutive entries."""

    names: list[str]
    offsets: Int64s
    """Offset of each regular file's data."""
    sizes: Int64s
    skipped: Counter[str]
    blocks: int
    """Header blocks parsed; 0 where the first entry is not ordinary."""
    is_cut: bool
    """Whether the next entry is not ordinary."""
    next: int
    """Offset of the entry after the run."""


def read_run(buffer: Readable, start: int, end: int, most: int) -> Run:
    """Parse ordinary entries between two offsets, up to about ``most`` header blocks."""
    chain, sizes = _follow(buffer, start, end, most)
    heads = gather(buffer, chain)
    kinds = _KINDS[heads[:, 156]]
    ordinary = (chain + BLOCK + sizes <= end) & (kinds != _OPAQUE) & _has_plain_size(heads)
    ordinary &= ((kinds != _EMPTY) | (sizes == 0)) & ~_may_be_old_directory(heads)
    ordinary[wrong_checksums(heads)] = False
    taken = len(ordinary) if ordinary.all() else int(ordinary.argmin())
    taken, long_named, long_names = _read_notes(buffer, chain, sizes, heads[:taken, 156])
    kinds, ends = kinds[:taken], chain[:taken] + BLOCK + sizes[:taken]
    files = np.flatnonzero(kinds == _FILE)
    skipped: Counter[str] = Counter()
    for kind, count in Counter(heads[np.flatnonzero(kinds == _EMPTY), 156].tolist()).items():
        skipped[DATALESS[kind]] += count
    return Run(
        names=_names(heads, files, long_named, long_names),
        offsets=chain[files] + BLOCK,
        sizes=sizes[files],
        skipped=skipped,
        blocks=taken,
        is_cut=taken == 0 or taken < len(chain) - 1,  # the last may be a PAX header whose entry was not parsed
        next=int(ends[-1] + -ends[-1] % BLOCK) if taken else start,
    )


def _follow(buffer: Readable, start: int, end: int, most: int) -> tuple[Int64s, Int64s]:
    """Follow the chain of headers by their size fields alone; sizes and headers are checked afterwards."""
    chain: list[int] = []
    sizes: list[int] = []
    offset, last = start, end - BLOCK
    try:
        while 0 <= offset <= last and len(chain) < most:
            if len(chain) == _SAMPLED and offset - start < _SAMPLED * _DENSE:
                blocks = (most - _SAMPLED) * (offset - start) // _SAMPLED // BLOCK
                more, more_sizes = _follow_dense(buffer, offset, end, blocks)
                return np.append(chain, more), np.append(sizes, more_sizes)
            size = int(buffer[offset + 124 : offset + 135], 8)
            chain.append(offset)
            sizes.append(size)
            offset += BLOCK + (size + BLOCK - 1 & -BLOCK)
    except ValueError:  # a block of zeros, or another spelling of a size
        pass
    return np.array(chain, np.int64), np.array(sizes, np.int64)


def _follow_dense(buffer: Readable, start: int, end: int, most: int) -> tuple[Int64s, Int64s]:
    """Parse each of ``most`` blocks as a header and follow the sizes: faster where most blocks are headers."""
    count = min((end - start) // BLOCK, most)
    blocks = np.frombuffer(buffer, np.uint8, count * BLOCK, start).reshape(count, BLOCK)  # type: ignore[call-overload]
    sizes = ((blocks[:, 124:135] - ord("0")).astype(np.float64) @ _PLACES).astype(np.int64)
    following = (np.arange(1, count + 1) + (sizes + BLOCK - 1) // BLOCK).tolist()
    chain = []
    block = 0
    while block < count:
        chain.append(block)
        block = following[block]
    headers = np.array(chain, np.int64)
    return start + headers * BLOCK, sizes[headers]


def _has_plain_size(heads: Blocks) -> Rows:
    # int() takes signs, underscores and spaces too.
    digits = heads[:, 124:135]
    plain: Rows = ((digits & 0xF8) == ord("0")).all(axis=1) & ((heads[:, 135] == 0) | (heads[:, 135] == ord(" ")))
    return plain


def _may_be_old_directory(heads: Blocks) -> Rows:
    """Return which headers may be directories of V7 tar: regular files with a slash at the end of the name."""
    found: Rows = heads[:, 156] == 0
    rows = np.flatnonzero(found)
    if len(rows):
        names = heads[rows, :101]
        names[:, 100] = 0
        found[rows] = ((names[:, :100] == ord("/")) & (names[:, 1:] == 0)).any(axis=1) | (names[:, 0] == 0)
    return found


def _read_notes(
    buffer: Readable, chain: Int64s, sizes: Int64s, types: npt.NDArray[np.uint8]
) -> tuple[int, Int64s, list[str]]:
    """Parse the extended headers among some entries.

    Returns the number of entries before the first one that has to be parsed on its own, the rows of entries whose name
    is in an extended header, and these names.
    """
    is_notes = _KINDS[types] == _NOTES
    rows = np.flatnonzero(is_notes)
    followed = ~np.append(is_notes, True)[rows + 1]  # by an entry that was looked at
    count = len(rows) if followed.all() else int(followed.argmin())
    is_long_name = types[rows[:count]] == LONG_NAME
    count, named, names = _read_bodies(buffer, chain[rows[:count]] + BLOCK, sizes[rows[:count]], is_long_name)
    return len(types) if count == len(rows) else int(rows[count]), rows[named] + 1, names


def _names(heads: Blocks, files: Int64s, long_named: Int64s, long_names: list[str]) -> list[str]:
    """Return the names of files, some from extended headers."""
    if not len(long_named):
        return _short_names(heads[files])
    is_long = np.zeros(len(heads), np.bool_)
    is_long[long_named] = True
    short = files[~is_long[files]]
    names = np.empty(len(heads), object)
    names[long_named], names[short] = long_names, _short_names(heads[short])
    found: list[str] = names[files].tolist()
    return found


def _short_names(heads: Blocks) -> list[str]:
    """Decode the name fields of headers in bulk."""
    fields = np.ascontiguousarray(heads[:, :100]).view("S100")[:, 0].tolist()  # without the NULs at their ends
    text = b"\0".join(fields)
    if text.count(0) != len(fields) - 1:
        text = b"\0".join(field.partition(b"\0")[0] for field in fields)
    names = text.decode("utf-8", "surrogateescape").split("\0") if fields else []
    for row in np.flatnonzero(heads[:, 345]).tolist():
        names[row] = short_name(heads[row].tobytes())
    return names


def _read_bodies(buffer: Readable, data: Int64s, sizes: Int64s, is_long_name: Rows) -> tuple[int, Int64s, list[str]]:
    """Parse PAX headers and long names, given the offset and the size of each one's content.

    Common kinds are parsed with numpy, others one by one: a PAX header with one record, the time or a path, and a GNU
    long name. Returns how many precede the first that has to be parsed together with its entry, which of them set a
    name, by number, and these names.
    """
    count = len(data)
    near = np.flatnonzero((sizes > 1) & (sizes < BLOCK) & (data + BLOCK <= len(buffer)))
    is_pax = ~is_long_name[near]
    lengths = sizes[near]
    bodies = gather(buffer, data[near], int(lengths.max(initial=0)))
    is_named = np.zeros(count, np.bool_)
    is_read = np.zeros(count, np.bool_)
    names = np.empty(count, object)
    for _, rows in _single_records(bodies, lengths, is_pax, b"mtime"):
        is_read[near[rows]] = True
    long_names = np.flatnonzero(~is_pax & (bodies[np.arange(len(near)), lengths - 1] == 0))
    for column, rows in (0, long_names), *_single_records(bodies, lengths, is_pax, b"path"):
        plain, texts = _texts(bodies, lengths, rows, column)
        names[near[plain]] = texts
        is_named[near[plain]] = is_read[near[plain]] = True
    for number in np.flatnonzero(~is_read).tolist():
        start, size = int(data[number]), int(sizes[number])
        name = _long_name(buffer, start, size) if is_long_name[number] else _path(buffer[start : start + size])
        if name is None:
            count = number
            break
        if name:
            names[number], is_named[number] = name, True
    named = np.flatnonzero(is_named[:count])
    return count, named, names[named].tolist()


def _single_records(bodies: Blocks, sizes: Int64s, is_pax: Rows, keyword: bytes) -> Iterator[tuple[int, Int64s]]:
    """Find the PAX headers with one ``length keyword=value`` record; yield the columns of values, and their rows."""
    frame = np.frombuffer(b" %s=" % keyword, np.uint8)
    ends_well = is_pax & (bodies[np.arange(len(bodies)), sizes - 1] == _NEWLINE)
    for digits in range(1, len(str(BLOCK)) + 1):
        powers = 10 ** np.arange(digits - 1, -1, -1)
        column = digits + len(frame)
        rows = np.flatnonzero(ends_well & (sizes >= powers[0]) & (sizes < 10 * powers[0]) & (sizes > column))
        if len(rows):
            rows = rows[(bodies[rows, digits:column] == frame).all(axis=1)]
            yield column, rows[(bodies[rows, :digits] == sizes[rows, None] // powers % 10 + _DIGIT).all(axis=1)]


def _texts(bodies: Blocks, sizes: Int64s, rows: Int64s, column: int) -> tuple[Int64s, list[str]]:
    """Decode names that start in a column and end before the last byte; return the rows of plain ones and the names."""
    ends = bodies[rows, sizes[rows] - 2]
    rows = rows[(sizes[rows] > column + 1) & (ends != 0) & (ends != _SLASH)]
    if not len(rows):
        return rows, []
    letters = np.ascontiguousarray(bodies[rows, column:])
    letters[np.arange(len(rows)), sizes[rows] - 1 - column] = 0
    text = b"\0".join(letters.view(f"S{letters.shape[1]}")[:, 0].tolist())  # without the NULs at their ends
    if text.count(0) != len(rows) - 1:  # one has a NUL within, or something stands behind it
        return rows[:0], []
    return rows, text.decode("utf-8", "surrogateescape").split("\0")


def _long_name(buffer: Readable, start: int, size: int) -> str | None:
    """Decode a long name; ``None`` where no file can have it."""
    name = decode(buffer[start : start + size + -size % BLOCK])
    return None if not name or name[-1] == "/" else name


def _path(body: bytes) -> str | None:
    """Return the path that a PAX header sets, or an empty text; ``None`` where it sets more than name and times."""
    records = pax_records(body)
    if records is None or any(map(_SETS_A_SIZE.fullmatch, records)):
        return None
    name = records.get("path", "")
    return None if "path" in records and (not name or name[-1] == "/" or "\0" in name) else name
