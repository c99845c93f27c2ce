"""The stored index of a local tar: beside the tar, in the folder of its ``index.json``, or in the user's cache.

A tar without an index is scanned once, and its index is kept in the first of these places that can be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from wdsdist import storage
from wdsdist._util.files import atomic_write, lies_in, open_files_remedy
from wdsdist._util.host import is_own_file, make_dirs, user_cache_dir
from wdsdist.errors import ArgumentError, IndexFormatError, NotFoundError, ShardDamagedError, StorageError
from wdsdist.shards.index import SUFFIX, ShardIndex, beside, dumps, index_name, load
from wdsdist.shards.tar.naming import FIRST_DOT


def shard_index(path: Path, *, listed_in: str | None = None, key_rule: str = FIRST_DOT) -> ShardIndex:
    """Return the index of a local tar: the stored one, or one made by a scan, which is kept.

    Args:
        path: the tar.
        listed_in: the folder of the ``index.json`` that lists the tar: its index may lie there too.
        key_rule: for a scan.

    Raises `NotFoundError` if the tar does not exist, and `ShardDamagedError` if it disagrees with its index.
    """
    try:
        status = regular(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"shard {path} does not exist") from error
    except OSError as error:
        raise StorageError(f"shard {path} cannot be read: {error.strerror}") from error
    folder = None if listed_in is None or storage.is_remote(listed_in) else storage.local_path(listed_in)
    places = [beside(path), *([] if folder is None else [folder / index_name(str(path), str(listed_in))])]
    for place in dict.fromkeys(places):
        try:
            index = load(place)
        except OSError as error:  # it does not exist, or its name is longer than the file system allows
            if remedy := open_files_remedy(error):
                raise StorageError(f"shard {path} cannot be opened ({error.strerror}){remedy}") from error
            continue
        if index.file.size == status.st_size:
            return index
        how = "short of" if status.st_size < index.file.size else "longer than"
        raise ShardDamagedError(
            f"shard {path} is {abs(status.st_size - index.file.size):,} bytes {how} its index ({index.file.size:,}): "
            f"fetch or pack it again, or run `wdsdist index` if it was replaced on purpose"
        )
    cached = _in_cache(path, status)
    if cached is not None and is_own_file(cached):  # an index in the cache is trusted if this user alone can write it
        with contextlib.suppress(OSError, IndexFormatError):
            if (index := load(cached)).file.size == status.st_size:
                return index
    from wdsdist.shards import scan_local

    try:
        index = scan_local.scan_shard(path, key_rule=key_rule)
    except ShardDamagedError as error:
        raise scan_local.advised(error) from None
    # A link in a data set must not make us write outside it.
    is_inside = not listed_in or folder is None or lies_in(path, folder)
    for target, mode in ((beside(path) if is_inside else None, 0o666), (cached, 0o644)):
        with contextlib.suppress(OSError):
            if target is not None:
                make_dirs(target.parent)
                with atomic_write(target, mode) as stream:
                    stream.write(dumps(index))
                break
    return index


def regular(path: Path) -> os.stat_result:
    """Return the ``stat`` of a regular file, without opening it: opening a pipe could block indefinitely.

    Raises `ShardDamagedError` for other kinds of file, and ``FileNotFoundError``.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ShardDamagedError(f"shard {path} is a folder, pipe or device, not a file: remove it, and fetch it again")
    return found


def _in_cache(path: Path, status: os.stat_result) -> Path | None:
    """Return the path of a tar's index in the user's cache; ``None`` for a user without a home directory."""
    # The time of the last change is part of the name: a tar that is replaced must not keep its old index.
    identity = f"{path.absolute()}\0{status.st_mtime_ns}".encode("utf-8", "surrogateescape")
    with contextlib.suppress(ArgumentError):
        return user_cache_dir() / "indexes" / f"{hashlib.sha256(identity).hexdigest()[:32]}{SUFFIX}"
    return None
