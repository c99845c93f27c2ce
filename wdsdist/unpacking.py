"""Decompressed copies of compressed shards: readers map those.

A copy stands in the cache with an index beside it, and a note of what it was made of, which comes last: a copy without
its note counts for nothing. So none outlives the file that it was made of, whether that was replaced or uploaded anew.
"""

from __future__ import annotations

import functools
import logging
import tempfile
from dataclasses import replace
from pathlib import Path

from wdsdist import compression, shardindex, storage, tarindex
from wdsdist.errors import IndexFormatError, ShardDamagedError, ShardNotFoundError
from wdsdist.manifest import Shard
from wdsdist.shardindex import ShardIndex, Stored

_NOTE = ".made-of"

_log = logging.getLogger("wdsdist")


def copy_name(name: str) -> str:
    """Return the name of the copy of a shard's file; that of no other shard, as ``x.tar`` might be.

    >>> copy_name("x.tar.zst")
    'x.tar.zst.tar'
    """
    return f"{name}.tar"


def is_copy(copy: Path, location: str, listed: Shard) -> bool:
    """Say whether there is a whole copy of a shard as it is now.

    Args:
        copy: where it would be.
        location: where the shard lies, local or remote.
        listed: what the manifest says of it.
    """
    try:
        index = shardindex.load(shardindex.beside(copy))
        note = _note_beside(copy).read_text(encoding="utf-8")
        return note == _made_of(location, listed) and copy.stat().st_size == index.size and index.stored is not None
    except (FileNotFoundError, IndexFormatError, UnicodeDecodeError):
        return False


def make_copy(file: Path, copy: Path, location: str, listed: Shard, *, listed_in: str) -> None:
    """Decompress a shard, whole or not at all; the caller keeps other processes from doing the same.

    Args:
        file: the shard, here; its index may stand beside it.
        copy: where to.
        location: where the shard lies.
        listed: what the manifest says of it.
        listed_in: the folder of the ``index.json`` that lists it.

    Raises `ShardDamagedError` for a file that is not what the manifest and its index say, or is cut or damaged, and
    `DestinationError` where the copy cannot be written.
    """
    label = storage.shown(location)
    made_of = _made_of(location, listed)
    known = tarindex.known_index(file, listed_in=listed_in)
    found = _checked(file, listed, known, label)
    size = listed.tar_size if known is None else known.size
    _say(copy.parent.parent)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=copy.parent) as folder:
        tar = Path(folder) / copy.name
        compression.unpack(file, tar, size=size, label=label)
        if _made_of(location, listed) != made_of:
            raise ShardDamagedError(f"{label} has changed while it was read: try again once it is at rest")
        index = replace(known or tarindex.scan_shard(tar, label=label), stored=found)
        shardindex.beside(tar).write_bytes(shardindex.dumps(index))
        _note_beside(tar).write_text(made_of, encoding="utf-8")
        _note_beside(copy).unlink(missing_ok=True)
        tar.replace(copy)
        shardindex.beside(tar).replace(shardindex.beside(copy))
        _note_beside(tar).replace(_note_beside(copy))


def _checked(file: Path, listed: Shard, known: ShardIndex | None, label: str) -> Stored:
    """Return the size and digest of a shard's file, once they have proved to be those that are promised."""
    found = tarindex.stored(file)
    for where, promised in (("index.json", Stored(listed.size, listed.sha256)), ("its index", known and known.file)):
        if promised and promised.size not in (-1, found.size):
            raise ShardDamagedError(
                f"{label} has {found.size:,} bytes but {where} says {promised.size:,}: fetch or pack it again"
            )
        if promised and promised.sha256 not in ("", found.sha256):
            raise ShardDamagedError(f"{label} does not have the digest that {where} gives: fetch or pack it again")
    return found


def _made_of(location: str, listed: Shard) -> str:
    """Return what tells one content of a shard's file from another; of a local one, the digest would take too long."""
    if storage.is_remote(location):
        return f"{listed.size} {listed.sha256}"
    try:
        status = storage.local_path(location).stat()
    except FileNotFoundError as error:
        raise ShardNotFoundError(f"shard {location} does not exist") from error
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def _note_beside(copy: Path) -> Path:
    return copy.with_name(copy.name + _NOTE)


@functools.cache
def _say(cache_dir: Path) -> None:
    """Say once in each process what takes the time and the room."""
    _log.warning("some shards are compressed: each is decompressed once on this node, into %s", cache_dir)
