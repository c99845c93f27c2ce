"""Scan the headers of a tar in a buffer and return all members, without reading their data; check a single one.

Runs of ordinary entries are parsed in bulk (`bulk`), others one by one in plain Python. A tar that cannot be read
without losing samples is an error that names the shard and the offset, never a shorter list.

Sources: POSIX.1-2017 `pax`; the GNU tar manual, "Basic Tar Format" (long names, base-256 numbers).
"""

from __future__ import annotations

import mmap
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from wdsdist.errors import ShardDamagedError
from wdsdist.shards.tar.bulk import (
    BLOCK,
    DATALESS,
    EXTENDED,
    LONG_LINK,
    LONG_NAME,
    PAX_GLOBAL,
    REGULAR,
    SPARSE,
    ZEROS,
    Readable,
    Run,
    decode,
    gather,
    number,
    pax_records,
    read_run,
    short_name,
    wrong_checksums,
)

_CHUNK = 1 << 20
_FEWEST, _MOST = 64, 4096
"""Header blocks per run: few where runs are short, and no more than fit the processor's cache."""
_PART = 1 << 16  # members whose names are held as Python objects together
_LONGEST_PAUSE = 256
"""Most entries to parse one by one, where none are ordinary, before the next attempt at a run."""
_LONGEST_HEADER = 32 << 20
"""Most bytes of one extended header that are read: it is in memory twice."""
LONGEST_HEADERS = 1 << 20
"""Most bytes of the extended headers of one member: enough for any path, and the attributes of any file system."""


@dataclass(frozen=True, slots=True)
class Members:
    """The regular files of one tar, in file order."""

    names: list[str]
    """Paths as stored."""
    offsets: npt.NDArray[np.int64]
    """Offset of each member's data."""
    sizes: npt.NDArray[np.int64]
    """Bytes of each member's data."""
    skipped: dict[str, int]
    """Number of skipped entries, by kind."""
    damage: str = ""
    """What is wrong with the tar behind these members, which were salvaged."""


def scan(buffer: Readable, *, label: str, salvage: bool = False) -> Members:
    """Return the members of the tar in ``buffer``; ``label`` is its name in errors.

    With ``salvage``, the members before the first damage are returned, with the reason.

    Raises ``ShardDamagedError`` for a tar that is cut short, lacks its two closing blocks of zeros, has data
    after them, or holds a header with a wrong checksum, an impossible size or a sparse file.

    >>> from wdsdist.shards.tar.writer import END, header, padding
    >>> tar = header("a.txt", 5) + b"hello" + padding(5) + END
    >>> members = scan(tar, label="a.tar")
    >>> members.names, members.offsets.tolist(), members.sizes.tolist()
    (['a.txt'], [512], [5])
    """
    if salvage:
        return _Walk(buffer, label, 0, len(buffer)).salvage()
    (members,) = scan_parts(buffer, label=label, most=len(buffer))
    return members


def scan_parts(
    buffer: Readable, *, label: str, start: int = 0, stop: int | None = None, most: int = _PART
) -> Iterator[Members]:
    """Yield the members of a tar in parts, because the names of millions of members take too much memory at once.

    The tar may be a part of the buffer, between ``start`` and ``stop``; offsets are those in the buffer. A part has
    about ``most`` members. Raises what `scan` does, if only after the parts before the damage.
    """
    walk = _Walk(buffer, label, start, len(buffer) if stop is None else stop)
    try:
        for _ in walk.run(most):
            walk.check_headers()
            yield walk.take()
    except ShardDamagedError:
        # A garbled header leads the scan to a wrong offset: report the header, not that offset.
        walk.check_headers()
        raise
    walk.check_headers()
    yield walk.take()


class _Walk:
    """The state of one scan over the headers of a tar."""

    def __init__(self, buffer: Readable, label: str, start: int, end: int) -> None:
        self.buffer = buffer
        self.start = start
        self.end = end
        self.label = label
        self.wrong = 0
        """Offset of the first header with a wrong checksum, once `check_headers` has raised."""
        self._begin()

    def _begin(self) -> None:
        self.names: list[str] = []
        self.offsets = array("q")
        self.sizes = array("q")
        self.skipped: Counter[str] = Counter()
        self.blocks: list[int] = []  # every header block that no run has checked

    def damaged(self, offset: int, problem: str) -> ShardDamagedError:
        start = self.start
        return ShardDamagedError(f"{self.label}: {problem} at byte {offset - start:,} of {self.end - start:,}")

    def take(self) -> Members:
        """Return the members found since the last call."""
        found = Members(
            names=self.names,
            offsets=np.array(self.offsets),
            sizes=np.array(self.sizes),
            skipped=dict(self.skipped),
        )
        self._begin()
        return found

    def salvage(self) -> Members:
        """Scan the tar up to its first damage."""
        damage = ""
        try:
            for _ in self.run(self.end):
                pass
        except ShardDamagedError as error:
            damage = str(error)
        first_wrong = self.end
        try:
            self.check_headers()
        except ShardDamagedError as error:
            damage, first_wrong = str(error), self.wrong
        found = self.take()
        # A garbled header led the scan to a wrong offset: what came after it is no member.
        count = int(np.searchsorted(found.offsets, first_wrong, side="right"))
        return replace(
            found,
            names=found.names[:count],
            offsets=found.offsets[:count],
            sizes=found.sizes[:count],
            damage=damage.removeprefix(f"{self.label}: "),
        )

    def run(self, most: int) -> Iterator[None]:
        """Scan the tar; yield whenever ``most`` members or more have been found since `take`."""
        buffer, end = self.buffer, self.end
        offset = self.start
        ahead, pause = _FEWEST, 1
        alone = 0 if isinstance(buffer, (bytes, mmap.mmap)) else end  # a remote buffer is read only where it must be
        while offset + BLOCK <= end:
            if len(self.names) >= most:
                yield
            if not alone:
                run = read_run(buffer, offset, end, ahead)
                offset = self._take(run)
                is_short = 4 * run.blocks < _FEWEST
                ahead = max(ahead // 2, _FEWEST) if run.is_cut else min(2 * ahead, _MOST)
                pause = min(2 * pause, _LONGEST_PAUSE) if is_short else 1
                alone = pause if run.is_cut else 0
                continue
            block = buffer[offset : offset + BLOCK]
            if block == ZEROS:
                self._check_end(offset)
                return
            alone -= 1
            self.blocks.append(offset)
            if block[156] in REGULAR:
                offset = self._add(offset, None, None)
            elif block[156] in EXTENDED:
                offset = self._extended(offset)
            else:
                offset = self._pass_over(offset)
        raise self.damaged(offset, "the tar ends without its two closing blocks of zeros")

    def check_headers(self) -> None:
        """Raise `ShardDamagedError` for the first header with a wrong checksum."""
        blocks = np.array(self.blocks, np.int64)
        for start in range(0, len(blocks), _MOST):
            part = blocks[start : start + _MOST]
            # The search returns before this raises: a traceback that holds its views would keep a map from closing.
            wrong = wrong_checksums(gather(self.buffer, part))
            if len(wrong):
                problem = "a header has a wrong checksum: the tar is damaged"
                self.wrong = int(part[wrong[0]])
                raise self.damaged(self.wrong, problem)

    def _take(self, run: Run) -> int:
        """Add the entries of a run; return the offset of the next one."""
        self.names += run.names
        self.offsets.frombytes(run.offsets.tobytes())
        self.sizes.frombytes(run.sizes.tobytes())
        self.skipped.update(run.skipped)
        return run.next

    def _check_end(self, offset: int) -> None:
        """Raise unless the first block of zeros is followed by another, and by zeros only."""
        if self.end - offset < 2 * BLOCK:
            raise self.damaged(offset, "the tar ends after one of its two closing blocks of zeros")
        for start in range(offset, self.end, _CHUNK):
            if self.buffer[start : min(start + _CHUNK, self.end)].strip(b"\0"):
                raise self.damaged(offset, "there is data after the closing blocks (two tars in one file?)")

    def _add(self, offset: int, name: str | None, size: int | None) -> int:
        """Add the regular file at ``offset``; return the offset of the next entry."""
        buffer = self.buffer
        data = offset + BLOCK
        block = buffer[offset:data]
        is_directory = False
        if name is None:  # where an extended header has the name, this one may be cut at a slash
            name = short_name(block)
            is_directory = name[-1:] == "/" and block[156] == 0  # as V7 tar spelled it
        if size is None:
            size = self._number(offset)
        stop = data + size
        if stop > self.end:
            raise self._cut(offset, name, size)
        if is_directory:
            self.skipped["directory"] += 1
            return data
        self.names.append(name)
        self.offsets.append(data)
        self.sizes.append(size)
        return stop + -size % BLOCK

    def _pass_over(self, offset: int) -> int:
        """Skip and count an entry that is no regular file; return the offset of the next one."""
        kind = self.buffer[offset : offset + BLOCK][156]
        size = self._number(offset)
        if kind in DATALESS:
            self.skipped[DATALESS[kind]] += 1
            return offset + BLOCK
        if kind == SPARSE:
            raise self.damaged(offset, "a sparse file, which a shard cannot hold, starts")
        self.skipped[f"entry of unknown type {chr(kind)!r}"] += 1
        return offset + BLOCK + size + -size % BLOCK

    def _extended(self, offset: int) -> int:
        """Parse PAX and long-name headers up to the entry that they describe, and add that entry."""
        buffer = self.buffer
        names: set[str] = set()
        sizes: set[int] = set()
        while (kind := buffer[offset : offset + BLOCK][156]) in EXTENDED:
            length = self._number(offset)
            data = offset + BLOCK
            if data + length > self.end:
                raise self._cut(offset, "extended header", length)
            if length > _LONGEST_HEADER:
                raise self.damaged(offset, f"an extended header of {length:,} bytes, more than any file needs, starts")
            if kind == LONG_NAME:
                names.add(decode(buffer[data : data + length + -length % BLOCK]))
            elif kind != LONG_LINK:
                records = self._pax_records(offset, buffer[data : data + length])
                if kind == PAX_GLOBAL and records.keys() & {"path", "size"}:
                    raise self.damaged(offset, "a global PAX header sets one path or size for all entries")
                if "path" in records:
                    names.add(self._pax_path(offset, records["path"]))
                if "size" in records:
                    sizes.add(self._pax_size(offset, records["size"]))
            offset = data + length + -length % BLOCK
            if offset + BLOCK > self.end or buffer[offset : offset + BLOCK] == ZEROS:
                if kind == PAX_GLOBAL:
                    return offset  # a global header may come last
                raise self.damaged(offset, "an extended header is followed by no entry")
            self.blocks.append(offset)
        if len(names) > 1 or len(sizes) > 1:
            raise self.damaged(offset, "two extended headers disagree about the entry")  # and so do readers
        if kind in REGULAR:
            return self._add(offset, next(iter(names), None), next(iter(sizes), None))
        return self._pass_over(offset)

    def _pax_records(self, offset: int, body: bytes) -> dict[str, str]:
        records = pax_records(body)
        if records is None:
            raise self.damaged(offset, "a PAX header cannot be read")
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
        """Parse a header's size field. Raises `ShardDamagedError` for an impossible size."""
        field = self.buffer[offset : offset + BLOCK][124:136]
        size = number(field)
        if size < 0:
            raise self.damaged(offset, f"a header has the impossible size {field!r}")
        return size

    def _cut(self, offset: int, name: str, size: int) -> ShardDamagedError:
        left = self.end - offset - BLOCK
        return self.damaged(offset, f"member {name!r} has {size:,} bytes but the file holds {left:,} of them,")


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
