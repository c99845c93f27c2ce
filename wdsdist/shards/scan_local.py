"""The index of a local tar: read from beside it or from the user's cache, or made by a scan of the tar.

A compressed tar is decompressed into a temporary file to be scanned. Its index says where the members lie in the tar,
and of which compressed file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import mmap
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from wdsdist import storage
from wdsdist._util.files import atomic_write, lies_in, open_files_remedy, sha256
from wdsdist._util.host import make_dirs, temporary_dir, user_cache_dir
from wdsdist._util.ownership import is_own_file
from wdsdist.errors import (
    ArgumentError,
    DestinationError,
    IndexFormatError,
    NotFoundError,
    ShardDamagedError,
    StorageError,
)
from wdsdist.shards.index import (
    STRICT,
    SUFFIX,
    ShardIndex,
    Stored,
    Tolerance,
    beside,
    checksums,
    dumps,
    from_members,
    load,
)
from wdsdist.shards.tar import FIRST_DOT, is_compressed, scan
from wdsdist.storage import compression


def shard_index(path: Path, *, listed_in: str | None = None, name: str = "", key_rule: str = FIRST_DOT) -> ShardIndex:
    """Return the index of a local tar: from beside it, from the user's cache, or by a scan, whose result is kept.

    Args:
        path: the tar.
        listed_in: the folder of the ``index.json`` that lists the tar: its index may stand there too.
        name: under which name; by default its own.
        key_rule: for a scan. Of ``"auto"``, an index with evidence is kept only by `keep`, once the rule is decided.

    Raises `NotFoundError` where there is no tar and `ShardDamagedError` where the tar disagrees with its index.
    """
    known = known_index(path, listed_in=listed_in, name=name)
    if known is None:
        try:
            known = scan_shard(path, key_rule=key_rule)
        except ShardDamagedError as error:
            raise advised(error) from None
        if not known.evidence:
            keep(path, known, listed_in)
    return known


def known_index(path: Path, *, listed_in: str | None = None, name: str = "") -> ShardIndex | None:
    """Return the stored index of a local tar, or ``None``. Raises what `shard_index` raises."""
    try:
        size = regular(path).st_size
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"shard {path} does not exist") from error
    except OSError as error:
        raise StorageError(f"shard {path} cannot be read: {error.strerror}") from error
    cached = _cached(path)
    places = [beside(path), *cached]
    if listed_in is not None and not storage.is_remote(listed_in):
        places.insert(1, storage.local_path(listed_in) / (name or places[0].name))
    for place in places:
        if place in cached and not is_own_file(place):
            continue  # another user's: it may be forged
        try:
            known = load(place)
        except OSError as error:  # there is none, or its name would be longer than the file system allows
            if remedy := open_files_remedy(error):
                raise StorageError(f"shard {path} cannot be opened ({error.strerror}){remedy}") from error
            continue
        except IndexFormatError:
            if place in cached:
                continue  # ours to make anew
            raise
        expected = known.file.size if is_compressed(path.name) else known.size
        if expected != size:
            if place in cached:
                continue  # the tar was written anew since; scan it again
            how = "short of" if size < expected else "longer than"
            raise ShardDamagedError(
                f"shard {path} is {abs(size - expected):,} bytes {how} its index ({expected:,}): fetch or pack it "
                f"again, or run `wdsdist index` if it was replaced on purpose"
            )
        return known
    return None


def scan_shard(
    path: Path, *, label: str = "", tar_size: int = -1, tolerance: Tolerance = STRICT, key_rule: str = FIRST_DOT
) -> ShardIndex:
    """Scan a whole tar and return its index, digest included.

    Args:
        path: the tar, compressed or not.
        label: its name in errors; by default its path.
        tar_size: bytes of the tar in a compressed one, where they are known.
        tolerance: what is left out rather than being damage.
        key_rule: as `from_members` takes it.
    """
    label = label or str(path)
    regular(path)
    with decompressed(path, label=label, tar_size=tar_size) as tar, _mapped(tar, label) as content:
        try:
            members = scan(content, label=label, salvage=tolerance.salvage)
        except ShardDamagedError:
            if tar == path:
                _refuse_unnamed(path, label)
            raise
        if tar == path and members.damage and not members.names:  # nothing was salvaged
            _refuse_unnamed(path, label)
        digest = hashlib.sha256(content).hexdigest()
        index = from_members(
            members, size=len(content), sha256=digest, label=label, tolerance=tolerance, key_rule=key_rule
        )
        with memoryview(content) as data:
            index = checksums.added(index, data)
        return index if tar == path else dataclasses.replace(index, stored=stored(path))


def _refuse_unnamed(path: Path, label: str) -> None:
    """Raise `ShardDamagedError` for a compressed tar whose name has no suffix of a compression."""
    if codec := compression.codec_of(path):
        raise ShardDamagedError(
            f"{label} is compressed by {codec}, which its name does not tell: rename it, as to .tar.gz for gzip or "
            f".tar.zst for zstd, or decompress it"
        ) from None


def advised(error: ShardDamagedError) -> ShardDamagedError:
    """Return what a scan without tolerance raised, with what to do next.

    >>> print(advised(ShardDamagedError("a.tar: a sparse file starts at byte 0 of 10,240")))
    a.tar: a sparse file starts at byte 0 of 10,240: unpack it by `tar xf`, and pack the files
    """
    if "--on-error" in str(error):
        return error
    if "a sparse file" in str(error):
        return ShardDamagedError(f"{error}: unpack it by `tar xf`, and pack the files")
    remedy = (
        "" if re.search("fetch it again|has no limit|rename it", str(error)) else ": fetch it again, or make it anew"
    )
    return ShardDamagedError(
        f"{error}{remedy}; or leave it out by `wdsdist index` or `wdsdist pack` with "
        f"`--on-error skip`, or with `--salvage` too, which keeps its samples before the damage"
    )


def regular(path: Path) -> os.stat_result:
    """Return the ``stat`` of a regular file, without opening it: opening a pipe could block indefinitely.

    Raises `ShardDamagedError` for other kinds of file, ``FileNotFoundError`` where there is none.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ShardDamagedError(f"shard {path} is a folder, pipe or device, not a file: remove it, and fetch it again")
    return found


def stored(path: Path) -> Stored:
    """Return the size and the digest of a compressed tar."""
    return Stored(path.stat().st_size, sha256(path))


@contextlib.contextmanager
def decompressed(path: Path, *, label: str = "", tar_size: int = -1) -> Iterator[Path]:
    """Give the path of a tar; of a compressed one, by its name, that of a decompressed temporary file."""
    if not is_compressed(path.name):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        tar = Path(folder) / "shard.tar"
        compression.unpack(path, tar, size=tar_size, label=label)
        yield tar


@contextlib.contextmanager
def _mapped(path: Path, label: str) -> Iterator[mmap.mmap]:
    with path.open("rb") as stream:
        if not os.fstat(stream.fileno()).st_size:
            raise ShardDamagedError(f"{label}: the file is empty, without the two closing blocks of a tar")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def keep(path: Path, index: ShardIndex, listed_in: str | None = None) -> None:
    """Write the index of a tar beside it, or else into the user's cache, or nowhere: then it is scanned again."""
    content = dumps(index)
    cached = _cached(path)
    places = [beside(path), *cached]
    if listed_in and not storage.is_remote(listed_in) and not lies_in(path, storage.local_path(listed_in)):
        places.pop(0)  # a link in a data set must not make us write outside it
    for place in places:
        try:
            make_dirs(place.parent)
            # An index in the cache is trusted where this user alone can write it.
            with atomic_write(place, 0o644 if place in cached else 0o666) as stream:
                stream.write(content)
            return
        except OSError:
            continue  # kept nowhere: the next process scans again


def write_index(path: Path, place: Path, tolerance: Tolerance = STRICT, *, key_rule: str = FIRST_DOT) -> None:
    """Scan a tar and write its index to a file. Raises `DestinationError` where it cannot be written."""
    index = scan_shard(path, tolerance=tolerance, key_rule=key_rule)
    try:
        with atomic_write(place) as stream:
            stream.write(dumps(index))
    except OSError as error:
        raise DestinationError(
            f"the index {place} cannot be written ({error.strerror}): make its folder writable"
        ) from error


def _cached(path: Path) -> list[Path]:
    """Return where the user's cache has the index of a tar: nowhere for a user without a home directory."""
    # The time of the last change is part of the name: a tar that is replaced must not keep its old index.
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0
    digest = hashlib.sha256(f"{path.absolute()}\0{changed}".encode("utf-8", "surrogateescape")).hexdigest()
    with contextlib.suppress(ArgumentError):
        return [user_cache_dir() / "indexes" / f"{digest[:32]}{SUFFIX}"]
    return []
