"""The directory of a zip archive, read some entries at a time: `zipfile` would make objects of all of them together.

Source: PKWARE, "APPNOTE.TXT - .ZIP File Format Specification", sections 4.3.12 to 4.3.16. Where the directory lies is
found here, as `zipfile` finds it; what its entries say is read by `zipfile` itself, from archives of directories alone.
"""

from __future__ import annotations

import io
import mmap
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

_END = struct.Struct("<4s4H2LH")  # signature, disks and counts, size and offset of the directory, length of the comment
_END64 = struct.Struct("<4sQ2H2L4Q")  # the last two: size and offset of the directory
_LOCATOR = struct.Struct("<4sLQL")
_LONGEST_COMMENT = 2**16 - 1
_ENTRY = 46  # bytes, and then the name, the extra field and the comment, whose lengths stand at 28
_LENGTHS = struct.Struct("<3H")
_TOGETHER = 4096  # entries


def entries(path: Path) -> Iterator[zipfile.ZipInfo]:
    """Yield the entries of an archive in the order of its directory.

    Raises what `zipfile` raises for an archive that is none, cut or damaged, if only after the entries before that.
    """
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start, stop, shift = _bounds(content)
        place = first = start
        number = 0
        while place < stop:
            if content[place : place + 4] == b"PK\1\2" and place + _ENTRY <= stop:
                place += _ENTRY + sum(_LENGTHS.unpack_from(content, place + 28))
            else:
                place = stop  # zipfile says what is wrong with it
            number += 1
            if number % _TOGETHER == 0 or place >= stop:
                for info in _read(content[first : min(place, stop)]):
                    info.header_offset += shift
                    yield info
                first = place


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
        if content[end64 : end64 + 4] == b"PK\6\6":
            *_, size, offset = _END64.unpack_from(content, end64)
            stop = end64
    if size > stop:
        raise zipfile.BadZipFile("its central directory starts before the archive does")
    return stop - size, stop, stop - size - offset


def _read(directory: bytes) -> list[zipfile.ZipInfo]:
    archive = directory + _END.pack(b"PK\5\6", 0, 0, 0, 0, len(directory), 0, 0)
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return opened.infolist()
