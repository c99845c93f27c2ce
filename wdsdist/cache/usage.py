"""Disk usage of a cache folder: the bytes of its copies, and the bytes reserved for its parts.

A scan of thousands of copies takes longer than the fetch of one, so a `Ledger` keeps their sum in the lock file. A
process that changes the folder empties the ledger first and writes the new sum afterwards: if it is killed in between,
the next process finds an empty ledger and scans the folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wdsdist._util.host import boot
from wdsdist.cache.copies import Stamp
from wdsdist.cache.folders import EXTENTS, PART, SPARSE, STAMP, CopyPaths, is_store
from wdsdist.cache.locks import LockableFile, is_free
from wdsdist.shards.index import SUFFIX

STAMP_BYTES = 512
"""Bytes counted for each stamp, which may be rewritten at any time; more than one takes."""


@dataclass(frozen=True, slots=True)
class Held:
    """A shard with files in the cache."""

    paths: CopyPaths
    size: int
    """Bytes of all its files, or those reserved for them where that is more; of a sparse copy the blocks in use."""
    is_whole: bool
    """Whether there is a copy or a sparse one, and no part."""
    last_use: int
    """Nanoseconds since 1970."""


def all_held(root: Path) -> list[Held]:
    """List all shards in a cache folder, and delete the files of dead processes; needs the folder's lock."""
    with os.scandir(root) as entries:
        stores = [entry for entry in entries if is_store(entry.name) and entry.is_dir(follow_symlinks=False)]
    return [held for store in stores for held in _held_in(Path(store))]


def size_of(paths: CopyPaths) -> int:
    """Return the bytes of one shard in the cache, counted as in `all_held`; 0 where it has no files."""
    found = {}
    for name in (paths.name + suffix for suffix in ("", SUFFIX, PART, STAMP, SPARSE, EXTENTS)):
        with contextlib.suppress(FileNotFoundError):
            found[name] = (paths.folder / name).lstat()
    if any(paths.name + suffix in found for suffix in (STAMP, PART, SPARSE)):
        return _held(paths, found).size
    return 0


def sparse_size(paths: CopyPaths) -> int:
    """Return the bytes of a sparse copy and its map; 0 where there is none."""
    try:
        return used(paths.sparse.lstat()) + paths.extents.lstat().st_size
    except FileNotFoundError:
        return 0


def used(found: os.stat_result) -> int:
    """Return the bytes that a file with holes takes."""
    return found.st_blocks * 512


def reserved_for(paths: CopyPaths) -> int:
    """Return the bytes that are reserved for a part and its files."""
    stamp = Stamp.read(paths.stamp)
    return 0 if stamp is None else stamp.reserved


def _held_in(folder: Path) -> Iterator[Held]:
    # There may be many thousands of copies, and the folder is locked: names are faster than paths.
    with os.scandir(folder) as entries:
        found = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
    # Only what has a stamp or is a part or sparse is the cache's own: other files may lie here too.
    stamped, parts, sparse, maps = (
        {name.removesuffix(suffix) for name in found if name.endswith(suffix)}
        for suffix in (STAMP, PART, SPARSE, EXTENTS)
    )
    for name in maps - sparse:
        CopyPaths(folder, name).extents.unlink()
    for name in stamped | parts | sparse:
        paths = CopyPaths(folder, name)
        if name in parts and is_free(paths.part):  # left by a dead process
            paths.part.unlink()
            del found[name + PART]
            parts.remove(name)
        if name not in parts | sparse and name not in found:
            paths.index.unlink(missing_ok=True)
            paths.stamp.unlink(missing_ok=True)
            continue
        yield _held(paths, found)


def _held(paths: CopyPaths, found: dict[str, os.stat_result]) -> Held:
    """Return the usage of a shard, from the files that were found."""
    name = paths.name
    stats = [found[one] for one in (name, name + SUFFIX, name + PART) if one in found]
    stamp = found.get(name + STAMP)
    size = sum([one.st_size for one in stats]) + (STAMP_BYTES if stamp else 0)
    is_whole = name + PART not in found
    if not is_whole:
        size = max(size, reserved_for(paths))
    extents = [found[name + EXTENTS]] if name + EXTENTS in found else []
    if name + SPARSE in found:
        size += used(found[name + SPARSE]) + sum(one.st_size for one in extents)
    times = [one.st_mtime_ns for one in (*extents, stamp) if one is not None]
    return Held(paths, size, is_whole, max(times, default=0) or (stats or [found[name + SPARSE]])[-1].st_mtime_ns)


class Ledger:
    """The sum of the bytes in use, valid while the folder is locked.

    Args:
        file: the lock file, locked.
        is_kept: whether this process updates the sum.
    """

    def __init__(self, file: LockableFile, *, is_kept: bool) -> None:
        self._file = file
        self._is_kept = is_kept and bool(boot())

    def read(self) -> int | None:
        """Return the bytes in use; ``None`` where they are unknown, or were written before the last boot."""
        used, _, since = os.pread(self._file.fileno(), 100, 0).decode().partition(" ")
        return int(used) if since == f"{boot()}\n" and self._is_kept else None

    def write(self, used: int) -> None:
        if self._is_kept:
            os.pwrite(self._file.fileno(), f"{used} {boot()}\n".encode(), 0)

    def forget(self) -> None:
        """Empty the ledger, so that the next process scans the folder."""
        os.ftruncate(self._file.fileno(), 0)

    @contextlib.contextmanager
    def changing(self, paths: CopyPaths) -> Iterator[None]:
        """Update the sum by the change of one shard within a block; after an error the ledger stays empty."""
        used, before = self.read(), size_of(paths) if self._is_kept else 0
        self.forget()
        yield
        if used is not None:
            self.write(used + size_of(paths) - before)
