"""The directory of a zip archive, read some entries at a time: `zipfile` would make objects of all of them together.

Source: PKWARE, "APPNOTE.TXT - .ZIP File Format Specification", sections 4.3.12 to 4.3.16. Where the directory lies is
found here, as `zipfile` finds it; what its entries say is read by `zipfile` itself, from archives of directories alone.
"""

from __future__ import annotations

import io
import mmap
import struct
import zipfile
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

_END = struct.Struct("<4s4H2LH")  # signature, disks and counts, size and offset of the directory, length of the comment
_END64 = struct.Struct("<4sQ2H2L4Q")  # the last two: size and offset of the directory
_LOCATOR = struct.Struct("<4sLQL")
_LONGEST_COMMENT = 2**16 - 1
_ENTRY = 46  # bytes, and then the name, the extra field and the comment, whose lengths stand at 28
_LOCAL = 30  # bytes of an entry's own header, before its name
_LENGTHS = struct.Struct("<3H")
_TOGETHER = 4096  # entries


class Directory:
    """The directory of one archive, open."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as stream:  # noqa: PTH123 - a worker has the path as text
            self._content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.start, self._stop, self._shift = _bounds(self._content)
        except BaseException:
            self._content.close()
            raise

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self._content.close()

    def __iter__(self) -> Iterator[tuple[int, zipfile.ZipInfo]]:
        """Yield the entries in the order of the directory, each with its place there.

        Raises what `zipfile` raises for a damaged directory, if only after the entries before the damage.
        """
        place = self.start
        while place < self._stop:
            places: list[int] = []
            while place < self._stop and len(places) < _TOGETHER:
                places.append(place)
                place = self._next(place)
            yield from zip(places, self._read(self._content[places[0] : place]), strict=True)

    def at(self, places: Sequence[int]) -> list[zipfile.ZipInfo]:
        """Return the entries at some places."""
        return self._read(b"".join([self._content[place : self._next(place)] for place in places]))

    def _read(self, directory: bytes) -> list[zipfile.ZipInfo]:
        archive = directory + _END.pack(b"PK\5\6", 0, 0, 0, 0, len(directory), 0, 0)
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            found = opened.infolist()
        for info in found:
            info.header_offset += self._shift
        return found

    def _next(self, place: int) -> int:
        following = place + _ENTRY
        if following <= self._stop and self._content[place : place + 4] == b"PK\1\2":
            name, extra, comment = _LENGTHS.unpack_from(self._content, place + 28)
            following += int(name) + int(extra) + int(comment)
            if following <= self._stop:
                return following
        raise zipfile.BadZipFile(f"no whole entry of its directory at byte {place:,}")


def shared_bytes(directory: Directory) -> int | None:
    """Return where the bytes of two entries, or of one and the directory, overlap; ``None`` where none do.

    Source: Fifield, "A better zip bomb" (WOOT 2019): one run of compressed bytes stands for thousands of files.
    """
    bounds = array("q")
    for _, info in directory:
        bounds.extend((info.header_offset, end_of(info)))
    starts, ends = np.frombuffer(bounds, np.int64).reshape(-1, 2).T
    order = np.argsort(starts, kind="stable")
    following = np.append(starts[order[1:]], directory.start)
    wrong = np.flatnonzero(ends[order] > following)
    return int(following[wrong[0]]) if len(wrong) else None


def end_of(info: zipfile.ZipInfo) -> int:
    """Return where an entry ends at the earliest: its local header may have names and notes of any length."""
    return info.header_offset + _LOCAL + info.compress_size


def _bounds(content: mmap.mmap) -> tuple[int, int, int]:
    """Return where the directory starts and stops, and by how much all offsets are wrong: what precedes the archive."""
    end = len(content) - _END.size
    if end < 0 or content[end : end + 4] != b"PK\5\6" or content[-2:] != b"\0\0":
        end = content.rfind(b"PK\5\6", max(0, end - _LONGEST_COMMENT))
    if end < 0 or end + _END.size > len(content):
        raise zipfile.BadZipFile("it has no end of a central directory")
    *_, size, offset, _ = _END.unpack_from(content, end)
    stop, locator = end, end - _LOCATOR.size
    if locator >= _END64.size and content[locator : locator + 4] == b"PK\6\7":
        end64 = locator - _END64.size
        _, disk, _, disks = _LOCATOR.unpack_from(content, locator)
        if disk != 0 or disks > 1:
            raise zipfile.BadZipFile("it is one of several parts")
        if content[end64 : end64 + 4] == b"PK\6\6":
            *_, size, offset = _END64.unpack_from(content, end64)
            stop = end64
    if size > stop:
        raise zipfile.BadZipFile("its central directory starts before the archive does")
    return stop - size, stop, stop - size - offset
