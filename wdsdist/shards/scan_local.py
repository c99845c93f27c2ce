"""Scan a local tar and return its index; a compressed tar is decompressed into a temporary file first.

The index of a compressed tar says where the members lie in the tar, and of which compressed file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from wdsdist._util.files import atomic_write, sha256
from wdsdist._util.host import temporary_dir
from wdsdist.errors import DestinationError, ShardDamagedError
from wdsdist.shards.index import ShardIndex, Stored, checksums, dumps
from wdsdist.shards.index.build import from_entries
from wdsdist.shards.local_index import regular
from wdsdist.shards.tar.naming import FIRST_DOT, is_compressed
from wdsdist.shards.tar.reader import entries
from wdsdist.storage import compression


def scan_shard(
    path: Path, *, label: str = "", tar_size: int = -1, skip: bool = False, key_rule: str = FIRST_DOT
) -> ShardIndex:
    """Scan a whole tar and return its index, digest and checksums included.

    Args:
        path: the tar, compressed or not.
        label: its name in errors; by default its path.
        tar_size: bytes of the tar in a compressed one, if they are known.
        skip: leave out samples that readers would lose or mix.
        key_rule: the rule by which names are cut.
    """
    label = label or str(path)
    regular(path)
    with decompressed(path, label=label, tar_size=tar_size) as tar, _mapped(tar, label) as content:
        digest = hashlib.sha256(content).hexdigest()
        found = entries(content, label=label)
        try:
            index = from_entries(found, size=len(content), sha256=digest, label=label, skip=skip, key_rule=key_rule)
        except ShardDamagedError:
            if tar == path and (codec := compression.codec_of(path)):
                raise ShardDamagedError(
                    f"{label} is compressed by {codec}, which its name does not tell: rename it, as to .tar.gz for "
                    f"gzip or .tar.zst for zstd, or decompress it"
                ) from None
            raise
        with memoryview(content) as data:
            index = dataclasses.replace(index, checksums=checksums.of_data(data, index.offsets, index.sizes))
        return index if tar == path else dataclasses.replace(index, stored=stored(path))


def advised(error: ShardDamagedError) -> ShardDamagedError:
    """Return what a scan that leaves out nothing raised, with what to do next.

    >>> print(advised(ShardDamagedError("a.tar: a sparse file ...")))
    a.tar: a sparse file ...: unpack it by `tar xf`, and pack the files; or leave it out with on_error="skip"
    """
    if any(advice in str(error) for advice in ("on_error", "rename it", "key=")):
        return error
    remedy = ": unpack it by `tar xf`, and pack the files" if "a sparse file" in str(error) else ": fetch it again"
    remedy = "" if "fetch it again" in str(error) else remedy
    return ShardDamagedError(f'{error}{remedy}; or leave it out with on_error="skip"')


def stored(path: Path) -> Stored:
    """Return the size and the digest of a compressed tar."""
    return Stored(path.stat().st_size, sha256(path))


@contextlib.contextmanager
def decompressed(path: Path, *, label: str = "", tar_size: int = -1) -> Iterator[Path]:
    """Give the path of a tar; if it is compressed by its name, the path of a decompressed temporary file."""
    if not is_compressed(path.name):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        tar = Path(folder) / "shard.tar"
        compression.unpack(path, tar, size=tar_size, label=label)
        yield tar


def write_index(path: Path, place: Path, *, skip: bool = False, key_rule: str = FIRST_DOT) -> None:
    """Scan a tar and write its index to a file. Raises `DestinationError` if it cannot be written."""
    index = scan_shard(path, skip=skip, key_rule=key_rule)
    try:
        with atomic_write(place) as stream:
            stream.write(dumps(index))
    except OSError as error:
        raise DestinationError(
            f"the index {place} cannot be written ({error.strerror}): make its folder writable"
        ) from error


@contextlib.contextmanager
def _mapped(path: Path, label: str) -> Iterator[mmap.mmap]:
    with path.open("rb") as stream:
        if not os.fstat(stream.fileno()).st_size:
            raise ShardDamagedError(f"{label}: the file is empty, without the two closing blocks of a tar")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content
