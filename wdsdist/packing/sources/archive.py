"""Archives of files as samples, read in place: tars, compressed tars, and zips.

The files of a plain tar are parts of the archive; the files of a zip are read when they are written. A tar in a tar, as
ImageNet has them, is a folder.

A compressed tar can only be read from its start, and a shuffled shard holds samples from all over it: it is
decompressed once, into a temporary file, which costs the disk space of the tar while it is packed. Nothing is unpacked
under the names in the archive.
"""

from __future__ import annotations

import functools
import mmap
import os
import stat
import struct
import zipfile
import zlib
from pathlib import Path

from wdsdist.errors import ShardDamagedError, SourceError
from wdsdist.packing.members import FilePayload, Payload, or_skip
from wdsdist.packing.options import Options
from wdsdist.packing.sources.files import Files, file_samples
from wdsdist.packing.sources.source import Candidate, FileStamp, Source, deferred
from wdsdist.shards.tar import is_tar
from wdsdist.shards.tar.reader import BLOCK, entries
from wdsdist.storage import compression

_ENCRYPTED = 0x41  # flags: by a password, or strongly
_UNIX = 3  # the system that an archive was made on
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, IndexError,
           OverflowError, struct.error, zlib.error)  # fmt: skip
"""What `zipfile` raises for an archive or an entry that is damaged or cut."""


def find_tar(candidate: Candidate, options: Options) -> Source | None:
    """Return the source of a tar archive, plain or compressed; ``None`` if the candidate is not a tar.

    Raises `SourceError` for an archive that is damaged or cut.
    """
    path = candidate.path
    if not path.is_file() or not (is_tar(path.name) or options.kind == "tar"):
        return None
    label = str(path)

    def unpacked(scratch: Path) -> Source:
        try:
            compression.unpack(path, scratch / "unpacked.tar")
        except ShardDamagedError as error:
            raise SourceError(str(error)) from error
        return _tar_source(scratch / "unpacked.tar", label, options)

    codec = compression.codec_of(path)
    if codec is None and (path.suffix.lower() == ".tar" or not is_tar(path.name)):
        return _tar_source(path, label, options)
    state = "\0".join([str(codec), str(FileStamp.of(path)[1:]), options.state()])
    return deferred("tar", label, state, options.scratch, unpacked)


def _tar_source(path: Path, label: str, options: Options) -> Source:
    file = FileStamp.of(path)
    if file.size < BLOCK:
        raise SourceError(f"{label} is empty or no tar: fetch it again")
    files = Files(label)
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for kind, name, offset, size in entries(content, label=label):
                if kind:
                    files.skipped[kind] += 1
                    continue
                if not name.lower().endswith(".tar"):
                    files.add_name(name, size, offset)
                    continue
                inner = entries(content, label=f"{label}/{name}", start=offset, stop=offset + size)
                for other, member, position, length in inner:
                    if not other:
                        files.add_name(f"{name[: -len('.tar')]}/{member}", length, position)
    except ShardDamagedError as error:
        raise SourceError(f"{error}: fetch it again, or make it again") from error
    except OSError as error:
        raise SourceError(f"{label} cannot be read: {error.strerror}") from error
    read = functools.partial(_part, file.path)
    state, root = f"tar\0{file[1:]}", files.root(options)
    return files.source("tar", options, file_samples, read, file, state=state, root=root)


def _part(archive: str, _: str, size: int, position: int) -> FilePayload:
    return FilePayload(archive, size, position)


def _zipped(file: FileStamp, _: str, size: int, position: int) -> Payload:
    """Return the data of the entry with a number in an archive's directory; its checksum is right."""
    archive = _archive(file, os.getpid())
    info = archive.infolist()[position]
    try:
        with archive.open(info) as stream:
            data = stream.read(size + 1)
        if len(data) != size:
            raise zipfile.BadZipFile(f"it has {len(data):,} bytes, but {size:,} in the directory")
    except _DAMAGE as error:
        return SourceError(f"{file.path}/{info.filename} is damaged ({error}): {or_skip()}fetch the archive again")
    return data


@functools.lru_cache(maxsize=2)
def _archive(file: FileStamp, process: int) -> zipfile.ZipFile:
    """Return an archive, open; each process has its own, for forked ones would share a position in the file."""
    return zipfile.ZipFile(file.path)


def find_zip(candidate: Candidate, options: Options) -> Source | None:
    """List the samples of a zip archive; return ``None`` if the candidate is not a zip."""
    path = candidate.path
    if not path.is_file() or (path.suffix.lower() != ".zip" and options.kind != "zip"):
        return None
    file = FileStamp.of(path)
    files = Files(str(path))
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except _DAMAGE as error:
        raise SourceError(f"{path} is not a zip archive, or is cut or damaged ({error}): fetch it again") from error
    # Entries may share bytes: 42 KB stand for 5 GB then (Fifield, "A better zip bomb", WOOT 2019).
    size, expanded = path.stat().st_size, sum(info.file_size for info in infos if not _problem(info))
    if expanded > (most := compression.most_expanded(size)):
        problem = f"{path} expands to {expanded:,} bytes, more than the {most:,} that {size:,} may be, as a bomb does"
        raise SourceError(f"{problem}: if it is not one, unpack it and pack the folder")
    for position, info in enumerate(infos):
        if info.create_system == _UNIX and stat.S_ISLNK(info.external_attr >> 16):
            files.skipped["symbolic link"] += 1
        else:
            files.add_name(info.filename, info.file_size, position, _problem(info))
    read = functools.partial(_zipped, file)
    state, root = f"zip\0{file[1:]}", files.root(options)
    return files.source("zip", options, file_samples, read, file, state=state, root=root)


def _problem(info: zipfile.ZipInfo) -> str:
    if info.flag_bits & _ENCRYPTED:
        return "is encrypted: decrypt the archive first"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed by method {info.compress_type}, which is not read here: unpack the archive"
    return ""
