"""Archives of files as samples, read in place: tars, compressed tars, and zips.

The files of a plain tar, and large files that a zip stores uncompressed, are parts of the archive; other files of a zip
are read when they are written. A tar that holds nothing but tars, as ImageNet's does, is read one level deep: each
inner tar is a folder.

A compressed tar can only be read from its start, and a shuffled shard holds samples from all over it: it is
decompressed once, into a temporary file, which costs the disk space of the tar while it is packed. Nothing is unpacked
under the names in the archive.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from wdsdist.errors import ShardDamagedError, SourceError, StorageError
from wdsdist.packing.payloads import BrokenPayload, FilePayload, Payload, Sample
from wdsdist.packing.sources.listed_source import FileWalk, Taken
from wdsdist.packing.sources.listing import CLUTTER_FOLDERS, Folder, list_samples, shown
from wdsdist.packing.sources.source import Candidate, FileStamp, LeftOut, OnError, Source, SourceOptions, deferred
from wdsdist.shards.tar.fields import BLOCK
from wdsdist.shards.tar.member_names import split_name, why_skipped
from wdsdist.shards.tar.naming import is_tar
from wdsdist.shards.tar.reader import Members, scan_parts
from wdsdist.storage import compression

_MOST_BYTES = 2**60  # so that sizes can be added up

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of a zip entry: signature, lengths of the name and of the extra field
_ENCRYPTED = 0x41  # flags: by a password, or strongly
_UTF8 = 0x800
_UNIX = 3  # the system that an archive was made on
_MOST_EXPANSION = 1032  # of deflate: 258 bytes by two bits
_SMALL = 1 << 20  # bytes of a stored file that is read into memory
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, IndexError,
           OverflowError, struct.error, zlib.error)  # fmt: skip
"""What `zipfile` raises for an archive or an entry that is damaged or cut."""


class Tree(FileWalk):
    """The files of an archive or a store, by folder. Hidden ones are counted and passed over, as in a folder.

    Names are only strings: nothing is made under them. ``./`` and leading slashes are left out of them, as ``tar``
    and ``unzip`` do.
    """

    def __init__(self, label: str, on_error: OnError, *, keep_root: bool = False) -> None:
        super().__init__(label, on_error)
        self.keep_root = keep_root  # a folder that the user named, rather than one that an archiver put around
        self._folders: dict[bytes, Folder] = {b"": Folder()}  # by path, with a slash at its end
        self._filled: set[bytes] = set()  # folders that hold a file, however deep

    def add(self, name: str, size: int, place: int, problem: str = "") -> None:
        """Add a file, as `FileWalk.add_file` does, by its name in the archive."""
        path = self._path(name)
        if path is None:
            return
        if split_name(path) is None:
            self.skipped[why_skipped(path)] += 1
            self.add_folder(path.rpartition("/")[0])
            return
        full = path.encode("utf-8", "surrogateescape")
        cut = full.rfind(b"/") + 1
        folder = self._enter(full[:cut], holds_file=True)
        if size > _MOST_BYTES:
            size, problem = 0, f"has the impossible size {size:,}: fetch the archive again"
        self.add_file(folder, full[:cut], full[cut:], size, problem, place=place)

    def add_folder(self, name: str) -> None:
        """Add a folder, which may be empty."""
        path = self._path(name)
        if path and split_name(f"{path}/a.a"):
            self._enter(f"{path}/".encode("utf-8", "surrogateescape"), holds_file=False)

    def source(
        self, kind: str, options: SourceOptions, samples: Callable[[Taken], Iterable[Sample]], *, state: str
    ) -> Source:
        """Return the source of all samples.

        A folder around everything, as ``tar cf photos.tar photos`` writes it, is left out of the keys: the samples
        are those of the folder ``photos``.
        """
        root = self._root(single_class=bool(options.class_folders or options.classes))
        if options.split is not None:
            root += f"{options.split}/".encode()
            if root not in self._folders:
                raise SourceError(f"{self.label} holds no folder {options.split!r}: name one that lies directly in it")
        folders = [name.decode("utf-8", "surrogateescape") for name in self._folders[root].folders]
        listing = list_samples(lambda path: self._folders.pop(root + path))
        return self.source_of(kind, listing, folders, options, samples, state=state)

    def _root(self, *, single_class: bool) -> bytes:
        """Return the folder around everything, however deep, with a slash at its end; empty where there is none."""
        root = b""
        while not self.keep_root and self._folders[root].is_empty:
            filled = self._filled_folders(root)
            if len(filled) != 1 or (single_class and not self._filled_folders(filled[0])):
                break
            root = filled[0]
        return root

    def _filled_folders(self, root: bytes) -> list[bytes]:
        inside = [root + name + b"/" for name in self._folders[root].folders]
        return [path for path in inside if path in self._filled]

    def _path(self, name: str) -> str | None:
        """Return a path without ``./`` and leading slashes; nothing for a file that is passed over."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in name and ".." in re.split(r"[/\\]", name):
            problem = f"{shown(name)} leads out of the archive: make the archive again"
            if self.on_error == "raise":
                raise SourceError(f"{self.label}: {problem}")
            self.left_out.append(LeftOut(shown(name), problem))
            return None
        if clutter := CLUTTER_FOLDERS.intersection(parts[:-1]):
            self.skipped[f"file in {min(clutter)}"] += 1
            return None
        if any(part[0] == "." for part in parts):
            self.skipped["hidden file"] += 1
            return None
        return "/".join(parts)

    def _enter(self, path: bytes, *, holds_file: bool) -> Folder:
        """Return a folder, made with those around it where it is new."""
        if path not in self._folders:
            parent, _, name = path[:-1].rpartition(b"/")
            self._enter(parent + b"/" if parent else b"", holds_file=False).folders.append(name)
            self._folders[path] = Folder()
        above = path
        while holds_file and above and above not in self._filled:
            self._filled.add(above)
            above = above[: above.rfind(b"/", 0, -1) + 1]
        return self._folders[path]


@dataclass(frozen=True, slots=True)
class TarSamples:
    """Some samples of a tar archive."""

    file: FileStamp
    taken: Taken

    def __iter__(self) -> Iterator[Sample]:
        self.file.check()
        return self.taken.samples(lambda _, size, place: FilePayload(self.file.path, size, place))


def find_tar(candidate: Candidate, options: SourceOptions) -> Source | None:
    """Return the source of a tar archive, plain or compressed; ``None`` if the candidate is no tar."""
    path = candidate.path
    if path is None or not path.is_file() or not (is_tar(path.name) or options.kind == "tar"):
        return None
    with _as_source_errors():
        codec = compression.codec_of(path)
    if codec is not None:
        state = "\0".join([codec, str(FileStamp.of(path)[1:]), options.state()])
        return deferred("tar", str(path), state, options.scratch, lambda scratch: _unpacked(path, scratch, options))
    if is_tar(path.name) and path.suffix.lower() != ".tar":
        raise SourceError(f"{path} is not compressed by gzip or zstd: fetch it again, or unpack it to a plain .tar")
    return _tar_source(path, str(path), options)


def _unpacked(path: Path, scratch: Path, options: SourceOptions) -> Source:
    """Decompress a tar into a temporary file, and return its source."""
    with _as_source_errors():
        compression.unpack(path, scratch / "unpacked.tar")
    return _tar_source(scratch / "unpacked.tar", str(path), options)


@contextlib.contextmanager
def _as_source_errors() -> Iterator[None]:
    try:
        yield
    except (ShardDamagedError, StorageError) as error:
        raise SourceError(str(error)) from error


def _tar_source(path: Path, label: str, options: SourceOptions) -> Source:
    file = FileStamp.of(path)
    tree = Tree(label, options.on_error)
    try:
        _list(path, label, tree)
    except ShardDamagedError as error:
        raise SourceError(f"{error}: fetch it again, or make it again") from error
    except OSError as error:
        raise SourceError(f"{label} cannot be read: {error.strerror}") from error
    return tree.source("tar", options, functools.partial(TarSamples, file), state=f"tar\0{file[1:]}")


def _list(path: Path, label: str, tree: Tree) -> None:
    if path.stat().st_size < BLOCK:
        raise SourceError(f"{label} is empty or no tar: fetch it again")
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        nested = _are_tars(scan_parts(content, label=label))
        for part in scan_parts(content, label=label):
            tree.skipped.update(part.skipped)
            for name, offset, size in _files(part):
                if not nested:
                    tree.add(name, size, offset)
                    continue
                folder = name[: -len(".tar")] + "/"
                for inner in scan_parts(content, label=f"{label}/{name}", start=offset, stop=offset + size):
                    for one, place, length in _files(inner):
                        tree.add(folder + one, length, place)


def _are_tars(parts: Iterable[Members]) -> bool:
    """Return whether there are members, and each is a tar by its name."""
    found = False
    for part in parts:
        if not all(name.lower().endswith(".tar") for name in part.names):
            return False
        found = found or bool(part.names)
    return found


def _files(part: Members) -> Iterator[tuple[str, int, int]]:
    return zip(part.names, part.offsets.tolist(), part.sizes.tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class ZipSamples:
    """Some samples of a zip archive; a file's place is the number of its entry in the archive's directory."""

    file: FileStamp
    taken: Taken

    def __iter__(self) -> Iterator[Sample]:
        self.file.check()
        archive = _archive(self.file, os.getpid())
        infos = archive.infolist()
        return self.taken.samples(lambda _, __, place: self._payload(archive, infos[place]))

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
                f"{self.file.path}/{_name(info)} is damaged ({error}): leave such samples out with "
                f"on_error='skip', or fetch the archive again",
                size,
            )


@functools.lru_cache(maxsize=2)
def _archive(file: FileStamp, process: int) -> zipfile.ZipFile:
    """Return an archive, open; each process has its own, for forked ones would share a position in the file."""
    return zipfile.ZipFile(file.path)


def find_zip(candidate: Candidate, options: SourceOptions) -> Source | None:
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
    for place, info in enumerate(infos):
        name = _name(info)
        if name.endswith("/"):
            tree.add_folder(name)
        elif info.create_system == _UNIX and stat.S_ISLNK(info.external_attr >> 16):
            tree.skipped["symbolic link"] += 1
        else:
            tree.add(name, info.file_size, place, _problem(info))
    return tree.source("zip", options, functools.partial(ZipSamples, file), state=f"zip\0{file[1:]}")


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
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed by method {info.compress_type}, which is not read here: unpack the archive"
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        return f"has {info.compress_size:,} stored bytes, but {info.file_size:,} in the directory: fetch it again"
    if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > _MOST_EXPANSION * (info.compress_size + 1):
        return f"has {info.file_size:,} bytes in the directory, more than can be in {info.compress_size:,}"
    return ""
