"""Entries of zip archives, decompressed piece by piece: what one claims to hold is all that it can take in memory.

`zipfile` decompresses what it reads at once, before it looks at the size that the archive's directory gives. Of 500
bytes that claim to be a text of 1,000 bytes, bzip2 makes gigabytes.

Source: PKWARE, "APPNOTE.TXT - .ZIP File Format Specification", sections 4.3, 4.4 and 5.8.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

METHODS = frozenset((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
"""What entries may be compressed by."""
DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, struct.error)
"""What `pieces` raises for an entry that is damaged or cut."""

_PIECE = 1 << 20  # bytes
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field
_LZMA_HEADER = struct.Struct("<2xHBI")  # length of the properties, three of them in a byte, size of the dictionary
_LEAST_DICTIONARY = 4096


def data_offset(stream: IO[bytes], entry: zipfile.ZipInfo) -> int:
    """Return where the data of an entry starts, which only its local header knows.

    Raises ``BadZipFile`` or ``struct.error`` where there is no such header.
    """
    stream.seek(entry.header_offset)
    signature, name, extra = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
    if signature != b"PK\3\4":
        raise zipfile.BadZipFile(f"no local header at byte {entry.header_offset:,}")
    return entry.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)


def content(stream: IO[bytes], entry: zipfile.ZipInfo) -> bytes:
    """Return the decompressed data of an entry. Raises one of `DAMAGE`, as `pieces` does."""
    return b"".join(pieces(stream, entry))


def pieces(stream: IO[bytes], entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the decompressed data of an entry in pieces of at most 1 MiB, and check its size and its CRC-32.

    Raises one of `DAMAGE`: for what does not decompress, and for an entry that holds more or fewer bytes than the
    directory of its archive says, or others.
    """
    stream.seek(data_offset(stream, entry))
    size = checksum = 0
    for piece in _decompressed(stream, entry):
        size += len(piece)
        if size > entry.file_size:
            raise zipfile.BadZipFile(f"it has more than the {entry.file_size:,} bytes in the directory")
        checksum = zlib.crc32(piece, checksum)
        yield piece
    if size != entry.file_size:
        raise zipfile.BadZipFile(f"it has {size:,} bytes, but {entry.file_size:,} in the directory")
    if checksum != entry.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {entry.filename!r}")


def _decompressed(stream: IO[bytes], entry: zipfile.ZipInfo) -> Iterator[bytes]:
    left = entry.compress_size
    if entry.compress_type not in METHODS:
        raise zipfile.BadZipFile(f"it is compressed by method {entry.compress_type}, which Python does not read")
    if entry.compress_type == zipfile.ZIP_STORED:
        while left:
            yield (piece := _read(stream, left))
            left -= len(piece)
        return
    if entry.compress_type == zipfile.ZIP_LZMA:
        decompressor = _lzma(stream, entry)
        left -= _LZMA_HEADER.size
    else:
        decompressor = _DECOMPRESSORS[entry.compress_type]()
    while not decompressor.eof:
        taken = b""
        if decompressor.needs_input and left > 0:
            taken = _read(stream, left)
            left -= len(taken)
        piece = decompressor.decompress(taken, _PIECE)
        if piece:
            yield piece
        elif not taken:
            break


def _read(stream: IO[bytes], most: int) -> bytes:
    found = stream.read(min(_PIECE, most))
    if not found:
        raise EOFError("the archive ends within it")
    return found


class _Inflate:
    """The decompressor of deflate, with the methods of those of bzip2 and LZMA."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(-zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, most)


def _lzma(stream: IO[bytes], entry: zipfile.ZipInfo) -> lzma.LZMADecompressor:
    """Return the decompressor that the start of an entry's data asks for."""
    _, settings, dictionary = _LZMA_HEADER.unpack(stream.read(_LZMA_HEADER.size))
    # A dictionary that is larger than all that comes out is not needed: one of 4 GiB takes two bytes to claim.
    wanted = min(dictionary, max(_LEAST_DICTIONARY, entry.file_size))
    rest, lc = divmod(settings, 9)
    pb, lp = divmod(rest, 5)
    return lzma.LZMADecompressor(
        lzma.FORMAT_RAW,
        filters=[{"id": lzma.FILTER_LZMA1, "dict_size": max(_LEAST_DICTIONARY, wanted), "lc": lc, "lp": lp, "pb": pb}],
    )


_DECOMPRESSORS: dict[int, Callable[[], Any]] = {
    zipfile.ZIP_DEFLATED: _Inflate,
    zipfile.ZIP_BZIP2: bz2.BZ2Decompressor,
}
