"""The contents of a cache folder by data set, and the removal of copies that nobody uses: `usage` and `clean`."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from wdsdist import storage
from wdsdist.cache.catalog import Copy
from wdsdist.cache.chunk_cache import ChunkCache
from wdsdist.cache.folder import check_root, clear_errors, store_key
from wdsdist.cache.locks import LockableFile
from wdsdist.errors import ArgumentError, given
from wdsdist.shards.index import beside
from wdsdist.shards.source import CacheOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Disk use of the cached copies of one data set: one folder or URL."""

    source: str
    """The folder or URL, without credentials."""
    shards: int
    bytes: int
    """On disk, with the indexes."""
    last_use: float
    """Seconds since 1970."""
    in_use: int
    """Shards that live processes read, fetch or need."""


def usage(folder: Path | None = None) -> list[Usage]:
    """Return the contents of a cache by data set, the last used first; by default of the user's cache.

    Raises `CacheError` if the folder is not safe, or cannot be read.
    """
    cache, copies = _copies(folder)
    stores: dict[str, list[Copy]] = {}
    for copy in copies:
        stores.setdefault(copy.source, []).append(copy)
    return [
        Usage(
            source=source,
            shards=len(copies),
            bytes=sum(_disk_bytes(cache.root / copy.key) for copy in copies),
            last_use=max(copy.used for copy in copies),
            in_use=sum(copy.next_use is not None or _is_locked(cache.root / copy.key) for copy in copies),
        )
        for source, copies in stores.items()
    ]


def clean(
    folder: Path | None = None, *, sources: Collection[str] = (), everything: bool = False
) -> tuple[int, int, int]:
    """Remove copies from a cache, but none that a live process reads, fetches or needs.

    Returns the number of removed shards, the bytes of disk that are free now, and the number of chosen shards that
    live processes keep.

    Args:
        folder: by default the user's cache.
        sources: the folders or URLs of data sets, with all that lies below them.
        everything: remove all copies, if no sources are given.

    Raises `ArgumentError` if no argument chooses copies, or a source has no copy; and what `usage` raises.
    """
    if not (sources or everything):
        raise ArgumentError(f"which copies are to be removed? Name data sets, or pass {given('everything', True)}")
    cache, copies = _copies(folder)
    for source in sources:
        if not any(_is_of(copy, source) for copy in copies):
            raise ArgumentError(
                f"the cache holds nothing of {storage.shown(source)}: `wdsdist cache info` lists its data sets",
                argument="sources",
            )
    removed = freed = kept = 0
    for copy in copies:
        if not sources or any(_is_of(copy, source) for source in sources):
            size = _disk_bytes(cache.root / copy.key)
            with clear_errors(cache.root, "the catalog"):
                is_gone = copy.next_use is None and cache.catalog.remove(copy.key)
            removed, freed, kept = removed + is_gone, freed + size * is_gone, kept + (not is_gone)
    return removed, freed, kept


def _copies(folder: Path | None) -> tuple[ChunkCache, list[Copy]]:
    """Return the cache in a folder, which need not exist, and its copies."""
    cache = ChunkCache(CacheOptions(folder))
    if not cache.root.exists():
        return cache, []
    with clear_errors(cache.root, "the catalog"):
        check_root(cache.root)
        return cache, cache.catalog.copies()


def _disk_bytes(path: Path) -> int:
    """Return the bytes that a copy takes on disk, with its index."""
    return sum(file.lstat().st_blocks * 512 for file in (path, beside(path)) if file.exists())


def _is_locked(path: Path) -> bool:
    """Return whether a live process reads or fetches a copy."""
    with contextlib.suppress(OSError), LockableFile(path) as file:
        return not file.lock(alone=True)
    return False


def _is_of(copy: Copy, source: str) -> bool:
    """Return whether a copy is one of a data set, or lies below it."""
    source = storage.normalise(source)
    is_below = f"{copy.source}/".startswith(f"{storage.shown(source)}/")
    return is_below or copy.key.startswith(f"{store_key(source)}/")
