"""Parse extended headers in bulk: common kinds with numpy, others one by one.

Common are a PAX header with one record, the time (which webdataset writes before every member) or a path, and a GNU
long name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.shards.tar.blocks import BLOCK, Blocks, Readable, decode, gather, pax_records

_SETS_A_SIZE = re.compile(r"size|GNU\.sparse.*", re.DOTALL)
_SLASH, _NEWLINE, _DIGIT = b"/\n0"

Rows = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Notes:
    """The names that extended headers set for the entries after them."""

    count: int
    """Number of extended headers before the first one that has to be parsed together with its entry."""
    named: Int64s
    """Which of them set a name, by number."""
    names: list[str]


def read_notes(buffer: Readable, data: Int64s, sizes: Int64s, is_long_name: Rows) -> Notes:
    """Parse PAX headers and long names, given the offset and the size of each one's content."""
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
    return Notes(count, named, names[named].tolist())


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
