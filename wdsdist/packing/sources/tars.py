"""Tar archives of files as samples, read in place: each file is a part of the archive.

A tar that holds nothing but tars, as ImageNet's does, is read one level deep: each inner tar is a folder.

A compressed one can only be read from its start, and a shuffled shard holds samples from all over it: it is
decompressed once, into a temporary file, which costs the disk space of the tar while it is packed. Nothing is unpacked
under the names in the archive.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from wdsdist.errors import ShardDamagedError, SourceError, StorageError
from wdsdist.packing.sources.archive import ArchiveSource, Stamp, Tree, check_stamp, stamp
from wdsdist.packing.sources.base import RangePayload, Sample, Source
from wdsdist.packing.sources.deferred import DeferredSource
from wdsdist.packing.sources.kinds import SourceOptions
from wdsdist.packing.sources.listed import Taken
from wdsdist.shards import tar as tarformat
from wdsdist.shards.tar import BLOCK, Members, is_tar
from wdsdist.storage import compression


@dataclass(frozen=True, slots=True)
class TarSamples:
    """Some samples of a tar archive."""

    path: str
    state: Stamp
    taken: Taken

    def __len__(self) -> int:
        return len(self.taken)

    def __iter__(self) -> Iterator[Sample]:
        check_stamp(self.path, self.state)
        return self.taken.samples(lambda _, size, place: RangePayload(self.path, place, size))


def find(path: Path, options: SourceOptions) -> Source | None:
    """List the samples of a tar archive, compressed or not; return ``None`` for what is none."""
    if not path.is_file() or not (is_tar(path.name) or options.kind == "tar"):
        return None
    with _as_source_errors():
        codec = compression.codec_of(path)
    if codec is None:
        if is_tar(path.name) and path.suffix.lower() != ".tar":
            raise SourceError(
                f"{path} is not compressed by gzip, bzip2, xz or zstd: fetch it again, or unpack it to a plain .tar"
            )
        return _source(path, str(path), options)
    state = f"{codec}\0{stamp(path)}\0{options.class_folders}"

    def make(scratch: Path) -> Source:
        target = scratch / "unpacked.tar"
        with _as_source_errors():
            compression.unpack(path, target)
        return _source(target, str(path), options)

    return DeferredSource("tar", str(path), state, options.scratch, make)


@contextlib.contextmanager
def _as_source_errors() -> Iterator[None]:
    try:
        yield
    except (ShardDamagedError, StorageError) as error:
        raise SourceError(str(error)) from error


def _source(path: Path, label: str, options: SourceOptions) -> ArchiveSource:
    state = stamp(path)
    tree = Tree(label, options.on_error)
    try:
        _list(path, label, tree)
    except ShardDamagedError as error:
        raise SourceError(f"{error}: fetch it again, or make it anew") from error
    except OSError as error:
        raise SourceError(f"{label} cannot be read: {error.strerror}") from error
    return ArchiveSource("tar", label, tree.listed(options), state, functools.partial(TarSamples, str(path), state))


def _list(path: Path, label: str, tree: Tree) -> None:
    with _mapped(path, label) as content:
        nested = _are_tars(tarformat.scan_parts(content, label=label))
        for part in tarformat.scan_parts(content, label=label):
            tree.skipped.update(part.skipped)
            for name, offset, size in _files(part):
                if not nested:
                    tree.add(name, size, offset)
                    continue
                folder = name[: -len(".tar")] + "/"
                for inner in tarformat.scan_parts(content, label=f"{label}/{name}", start=offset, stop=offset + size):
                    for one, place, length in _files(inner):
                        tree.add(folder + one, length, place)


def _are_tars(parts: Iterable[Members]) -> bool:
    """Say whether there are members, and each is a tar by its name."""
    found = False
    for part in parts:
        if not all(name.lower().endswith(".tar") for name in part.names):
            return False
        found = found or bool(part.names)
    return found


def _files(part: Members) -> Iterator[tuple[str, int, int]]:
    return zip(part.names, part.offsets.tolist(), part.sizes.tolist(), strict=True)


@contextlib.contextmanager
def _mapped(path: Path, label: str) -> Iterator[mmap.mmap]:
    with path.open("rb") as stream:
        if stamp(path)[0] < BLOCK:
            raise SourceError(f"{label} is empty or no tar: fetch it again")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content
