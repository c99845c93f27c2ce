"""Archives of files as samples, read in place: tars, compressed tars, and zips.

The files of a plain tar, and large files that a zip stores uncompressed, are parts of the archive; other files of a zip
are read when they are written. A tar that holds nothing but tars, as ImageNet's does, is read one level deep: each
inner tar is a folder.

A compressed tar can only be read from its start, and a shuffled shard holds samples from all over it: it is
decompressed once, into a temporary file, which costs the disk space of the tar while it is packed. Nothing is unpacked
under the names in the archive.
"""

from __future__ import annotations

import functools
import mmap
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from wdsdist.errors import ShardDamagedError, SourceError, StorageError
from wdsdist.packing.options import Options
from wdsdist.packing.payloads import BrokenPayload, FilePayload, Payload, Sample
from wdsdist.packing.sources.listed_source import Files, Taken
from wdsdist.packing.sources.listing import CLUTTER_FOLDERS, Folder
from wdsdist.packing.sources.source import Candidate, FileStamp, Source, deferred
from wdsdist.shards.tar.fields import BLOCK
from wdsdist.shards.tar.member_names import split_name, why_skipped
from wdsdist.shards.tar.naming import is_tar
from wdsdist.shards.tar.reader import Entry, entries
from wdsdist.storage import compression

_MOST_BYTES = 2**60  # so that sizes can be added up

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip entry: signature, lengths of the name and of the extra field
_ENCRYPTED = 0x41  # flags: by a password, or strongly
_UNIX = 3  # the system that an archive was made on
_MOST_EXPANSION = 1032  # of deflate: 258 bytes by two bits
_SMALL = 1 << 20  # bytes of a stored file that is read into memory
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, IndexError,
           OverflowError, struct.error, zlib.error)  # fmt: skip
"""What `zipfile` raises for an archive or an entry that is damaged or cut."""


class Tree(Files):
    """The files of an archive or a store, by name. Hidden ones are counted and passed over, as in a folder.

    Names are only strings: nothing is made under them. ``./`` and leading slashes are left out of them, as ``tar``
    and ``unzip`` do.
    """

    def add_name(self, name: str, size: int, position: int, problem: str = "") -> None:
        """Add a file, as `Files.add` does, by its name in the archive; a folder has a slash at its end."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        is_folder = name.endswith("/")
        path = "/".join((*parts, "")) if is_folder else "/".join(parts)
        if ".." in name and ".." in re.split(r"[/\\]", name):
            self.leave_out(name, "leads out of the archive: make the archive again")
        elif clutter := CLUTTER_FOLDERS.intersection(path.split("/")[:-1]):
            self.skipped[f"file in {min(clutter)}"] += not is_folder
        elif any(part[0] == "." for part in parts):
            self.skipped["hidden file"] += not is_folder
        elif is_folder:
            if parts and split_name(f"{path}a.a"):
                self._folder(path)
        elif split_name(path) is None:
            self.skipped[why_skipped(path)] += 1
            self._folder(path[: path.rfind("/") + 1])
        else:
            cut = path.rfind("/") + 1
            if size > _MOST_BYTES:
                size, problem = 0, f"has the impossible size {size:,}: fetch the archive again"
            self.add(
                self._folder(path[:cut]),
                path[cut:].encode("utf-8", "surrogateescape"),
                size,
                problem,
                position=position,
            )

    def _folder(self, name: str) -> bytes:
        """Return the path of a folder, which is made if it is new."""
        path = name.encode("utf-8", "surrogateescape")
        if path not in self.folders:
            self.folders[path] = Folder()
        return path

    def root(self, options: Options) -> bytes:
        """Return the folder that keys start from: the one around everything, or a split in it.

        What ``tar cf photos.tar photos`` writes has the samples of the folder ``photos``. A single class
        folder is not around everything.
        """
        filled = [path for path, folder in self.folders.items() if not folder.is_empty]
        common = os.path.commonprefix(filled) or b""  # noqa: RUF071 - cut at a slash below
        root = common[: common.rfind(b"/") + 1]
        if options.has_classes and filled == [root]:
            root = root[: root.rfind(b"/", 0, -1) + 1]
        if options.split is not None:
            root += f"{options.split}/".encode()
            if not any(path.startswith(root) for path in self.folders):
                raise SourceError(f"{self.label} holds no folder {options.split!r}: name one that lies directly in it")
        return root


@dataclass(frozen=True, slots=True)
class TarSamples:
    """Some samples of a tar archive."""

    file: FileStamp
    taken: Taken

    def __iter__(self) -> Iterator[Sample]:
        self.file.check()
        return self.taken.samples(lambda _, size, position: FilePayload(self.file.path, size, position))


def find_tar(candidate: Candidate, options: Options) -> Source | None:
    """Return the source of a tar archive, plain or compressed; ``None`` if the candidate is no tar.

    Raises `SourceError` for an archive that is damaged or cut.
    """
    path = candidate.path
    if path is None or not path.is_file() or not (is_tar(path.name) or options.kind == "tar"):
        return None
    label = str(path)

    def unpacked(scratch: Path) -> Source:
        try:
            compression.unpack(path, scratch / "unpacked.tar")
        except (ShardDamagedError, StorageError) as error:
            raise SourceError(str(error)) from error
        return _tar_source(scratch / "unpacked.tar", label, options)

    try:
        codec = compression.codec_of(path)
    except (ShardDamagedError, StorageError) as error:
        raise SourceError(str(error)) from error
    if codec is not None:
        state = "\0".join([codec, str(FileStamp.of(path)[1:]), options.state()])
        return deferred("tar", label, state, options.scratch, unpacked)
    if is_tar(path.name) and path.suffix.lower() != ".tar":
        raise SourceError(f"{path} is not compressed by gzip or zstd: fetch it again, or unpack it to a plain .tar")
    return _tar_source(path, label, options)


def _tar_source(path: Path, label: str, options: Options) -> Source:
    file = FileStamp.of(path)
    if file.size < BLOCK:
        raise SourceError(f"{label} is empty or no tar: fetch it again")
    tree = Tree(label, options.on_error)
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            is_nested = _are_tars(entries(content, label=label))
            for kind, name, offset, size in entries(content, label=label):
                if kind:
                    tree.skipped[kind] += 1
                    continue
                if not is_nested:
                    tree.add_name(name, size, offset)
                    continue
                stop, folder = offset + size, name[: -len(".tar")] + "/"
                for of_inner, member, position, length in entries(
                    content, label=f"{label}/{name}", start=offset, stop=stop
                ):
                    if not of_inner:
                        tree.add_name(folder + member, length, position)
    except ShardDamagedError as error:
        raise SourceError(f"{error}: fetch it again, or make it again") from error
    except OSError as error:
        raise SourceError(f"{label} cannot be read: {error.strerror}") from error
    samples = functools.partial(TarSamples, file)
    return tree.source("tar", options, samples, state=f"tar\0{file[1:]}", root=tree.root(options))


def _are_tars(found: Iterable[Entry]) -> bool:
    """Return whether there are members, and each is a tar by its name."""
    is_filled = False
    for kind, name, _, _ in found:
        if not kind and not name.lower().endswith(".tar"):
            return False
        is_filled = is_filled or not kind
    return is_filled


@dataclass(frozen=True, slots=True)
class ZipSamples:
    """Some samples of a zip archive; a file's position is the number of its entry in the archive's directory."""

    file: FileStamp
    taken: Taken

    def __iter__(self) -> Iterator[Sample]:
        self.file.check()
        archive = _archive(self.file, os.getpid())
        infos = archive.infolist()
        return self.taken.samples(lambda _, __, position: self._payload(archive, infos[position]))

    def _payload(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Payload:
        """Return the data of a file, or the range of a large stored file; its checksum is right."""
        size, is_part = info.file_size, info.compress_type == zipfile.ZIP_STORED and info.file_size > _SMALL
        try:
            with archive.open(info) as stream:
                if not is_part:
                    data = stream.read(size + 1)
                    if len(data) != size:
                        raise zipfile.BadZipFile(f"it has {len(data):,} bytes, but {size:,} in the directory")
                    return data
                while stream.read(_SMALL):
                    pass  # `zipfile` compares the checksum at the end
            with Path(self.file.path).open("rb") as file:
                file.seek(info.header_offset)
                _, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            return FilePayload(self.file.path, size, info.header_offset + _LOCAL_HEADER.size + name + extra)
        except _DAMAGE as error:
            return BrokenPayload(
                f"{self.file.path}/{info.filename} is damaged ({error}): leave such samples out with "
                f"on_error='skip', or fetch the archive again",
                size,
            )


@functools.lru_cache(maxsize=2)
def _archive(file: FileStamp, process: int) -> zipfile.ZipFile:
    """Return an archive, open; each process has its own, for forked ones would share a position in the file."""
    return zipfile.ZipFile(file.path)


def find_zip(candidate: Candidate, options: Options) -> Source | None:
    """List the samples of a zip archive; return ``None`` if the candidate is no zip."""
    path = candidate.path
    if path is None or not path.is_file() or (path.suffix.lower() != ".zip" and options.kind != "zip"):
        return None
    file = FileStamp.of(path)
    tree = Tree(str(path), options.on_error)
    try:
        with zipfile.ZipFile(path) as archive:
            infos, start = archive.infolist(), archive.start_dir
    except PermissionError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    except _DAMAGE as error:
        raise SourceError(f"{path} is not a zip archive, or is cut or damaged ({error}): fetch it again") from error
    _check_zip(path, infos, start)
    for position, info in enumerate(infos):
        if info.create_system == _UNIX and stat.S_ISLNK(info.external_attr >> 16):
            tree.skipped["symbolic link"] += 1
        else:
            tree.add_name(info.filename, info.file_size, position, _problem(info))
    samples = functools.partial(ZipSamples, file)
    return tree.source("zip", options, samples, state=f"zip\0{file[1:]}", root=tree.root(options))


def _check_zip(path: Path, infos: list[zipfile.ZipInfo], start: int) -> None:
    """Raise `SourceError` for entries that share bytes or expand without end; the directory starts at a byte.

    Source: Fifield, "A better zip bomb" (WOOT 2019): one run of compressed bytes stands for thousands of files.
    """
    following = start
    for info in sorted(infos, key=lambda info: info.header_offset, reverse=True):
        # At the earliest: a local header may have names and notes of any length.
        if info.header_offset + _LOCAL_HEADER.size + info.compress_size > following:
            raise SourceError(f"{path} holds entries that share bytes at byte {following:,}, as a bomb does: unpack it")
        following = info.header_offset
    size = path.stat().st_size
    expanded, most = sum(info.file_size for info in infos if not _problem(info)), compression.most_expanded(size)
    if expanded > most:
        raise SourceError(
            f"{path} expands to {expanded:,} bytes, more than the {most:,} that {size:,} may be, as a bomb does: if it "
            f"is not one, unpack it and pack the folder"
        )


def _problem(info: zipfile.ZipInfo) -> str:
    if info.flag_bits & _ENCRYPTED:
        return "is encrypted: decrypt the archive first"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed by method {info.compress_type}, which is not read here: unpack the archive"
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        return f"has {info.compress_size:,} stored bytes, but {info.file_size:,} in the directory: fetch it again"
    if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > _MOST_EXPANSION * (info.compress_size + 1):
        return f"has {info.file_size:,} bytes in the directory, more than can be in {info.compress_size:,}"
    return ""
