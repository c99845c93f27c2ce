"""Zip archives as samples, read in place: stored files as parts of the archive, others decompressed when written.

Source: PKWARE, "APPNOTE.TXT - .ZIP File Format Specification", sections 4.3 and 4.4; Python's `zipfile` reads it.
"""

from __future__ import annotations

import contextlib
import functools
import lzma
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from wdsdist.errors import SourceError
from wdsdist.packing.sources.archive import ArchiveSource, Stamp, Tree, check_stamp, stamp
from wdsdist.packing.sources.base import BrokenPayload, Payload, RangePayload, Sample
from wdsdist.packing.sources.kinds import SourceOptions
from wdsdist.packing.sources.listed import Taken
from wdsdist.packing.sources.zipdirectory import Directory, end_of, shared_bytes
from wdsdist.storage.compression import most_expanded

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field
_ENCRYPTED = 0x41  # flags: by a password, or strongly
_UTF8 = 0x800
_UNIX = 3  # the system that an archive was made on
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA}
_MOST_EXPANSION = 1032  # of deflate: 258 bytes by two bits
_SMALL = 1 << 20  # bytes of a stored file that are kept once they have been read for their checksum
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, NotImplementedError, struct.error
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ZipSamples:
    """Some samples of a zip archive."""

    path: str
    state: Stamp
    taken: Taken
    """A file's place is that of its entry in the directory of the archive."""

    def __len__(self) -> int:
        return len(self.taken)

    def __iter__(self) -> Iterator[Sample]:
        check_stamp(self.path, self.state)
        places = self.taken.places or []
        with Path(self.path).open("rb") as stream, Directory(self.path) as directory:
            entries = dict(zip(places, directory.at(places), strict=True))
            yield from self.taken.samples(lambda name, size, place: self._payload(stream, entries[place], name, size))

    def _payload(self, stream: IO[bytes], entry: zipfile.ZipInfo, name: str, size: int) -> Payload:
        try:
            start = _data_offset(stream, entry.header_offset)
            stream.seek(start)
            if entry.compress_type != zipfile.ZIP_STORED:
                return _decompressed(stream, entry, size)
            if size <= _SMALL:
                data = stream.read(size)
                crc, found = zlib.crc32(data), len(data)
            else:
                data, (crc, found) = b"", _checksum(stream, size)
            if found != size or crc != entry.CRC:
                raise zipfile.BadZipFile("its checksum is wrong")
            return data or RangePayload(self.path, start, size)
        except _DAMAGE as error:
            return BrokenPayload(f"{self.path}/{name} is damaged ({error}): fetch the archive again", size)


def find(path: Path, options: SourceOptions) -> ArchiveSource | None:
    """List the samples of a zip archive; return ``None`` for what is none."""
    if not path.is_file() or (path.suffix.lower() != ".zip" and options.kind != "zip"):
        return None
    state = stamp(path)
    tree = Tree(str(path), options.on_error)
    expanded, most = 0, most_expanded(state[0])
    for place, info in _directory(path):
        name, problem = _name(info), _problem(info)
        expanded += 0 if problem else info.file_size
        if name.endswith("/"):
            tree.add_folder(name)
        elif info.create_system == _UNIX and stat.S_ISLNK(info.external_attr >> 16):
            tree.skipped["symbolic link"] += 1
        else:
            tree.add(name, info.file_size, place, problem)
    if expanded > most:
        raise SourceError(
            f"{path} expands to {expanded:,} bytes, more than the {most:,} that {state[0]:,} may be, as a bomb does: "
            f"if it is not one, unpack it and pack the folder"
        )
    return ArchiveSource("zip", str(path), tree.listed(options), state, functools.partial(ZipSamples, str(path), state))


def _directory(path: Path) -> Iterator[tuple[int, zipfile.ZipInfo]]:
    try:
        with Directory(str(path)) as directory:
            end, in_order = 0, True
            for place, info in directory:
                in_order = in_order and info.header_offset >= end
                end = end_of(info)
                yield place, info
            # Nearly always in the order of the data, which takes no memory to see.
            shared = None if in_order and end <= directory.start else shared_bytes(directory)
    except PermissionError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    except (*_DAMAGE, OverflowError, IndexError) as error:
        raise SourceError(f"{path} is not a zip archive, or is cut or damaged ({error}): fetch it again") from error
    if shared is not None:
        raise SourceError(
            f"{path} holds entries that share their bytes, at byte {shared:,}, as a bomb does to expand without end: "
            f"make the archive anew"
        )


def _name(info: zipfile.ZipInfo) -> str:
    """Return the path of an entry: without a flag for UTF-8, `zipfile` reads all as MS-DOS wrote them."""
    name = info.filename
    if info.create_system == _UNIX and not (info.flag_bits & _UTF8 or name.isascii()):
        # Such as Info-ZIP where no locale is set: it stores the bytes of the file system.
        with contextlib.suppress(UnicodeDecodeError):
            return name.encode("cp437").decode()
    return name


def _problem(info: zipfile.ZipInfo) -> str:
    if info.flag_bits & _ENCRYPTED:
        return "is encrypted: decrypt the archive first"
    if info.compress_type not in _METHODS:
        return f"is compressed by method {info.compress_type}, which Python's zipfile does not read: unpack the archive"
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        return (
            f"has {info.compress_size:,} stored bytes, but {info.file_size:,} in the directory: fetch the archive again"
        )
    if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > _MOST_EXPANSION * (info.compress_size + 1):
        return f"has {info.file_size:,} bytes in the directory, more than can be in {info.compress_size:,}"
    return ""


def _data_offset(stream: IO[bytes], header: int) -> int:
    """Return where the data of an entry starts: only its local header knows."""
    stream.seek(header)
    signature, name, extra = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
    if signature != b"PK\3\4":
        raise zipfile.BadZipFile(f"no local header at byte {header:,}")
    return header + _LOCAL_HEADER.size + int(name) + int(extra)


def _decompressed(stream: IO[bytes], entry: zipfile.ZipInfo, size: int) -> bytes:
    with zipfile.ZipExtFile(stream, "r", entry) as file:  # checks the CRC, and gives no more than the size
        data = file.read()
    if len(data) != size:
        raise zipfile.BadZipFile(f"it has {len(data):,} bytes, but {size:,} in the directory")
    return data


def _checksum(stream: IO[bytes], size: int) -> tuple[int, int]:
    """Return the CRC-32 of the next bytes, and how many there are."""
    crc = found = 0
    while piece := stream.read(min(size - found, _SMALL)):
        crc, found = zlib.crc32(piece, crc), found + len(piece)
    return crc, found
