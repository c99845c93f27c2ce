"""The contents of a cache folder by data set, and the removal of copies that nobody uses: `usage` and `clean`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from wdsdist import storage
from wdsdist.cache.catalog import Copy
from wdsdist.cache.chunk_cache import ChunkCache
from wdsdist.cache.folder import check_root, store_key
from wdsdist.cache.locks import LockableFile, PlantedError
from wdsdist.errors import ArgumentError, CacheError, WdsdistError
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """Result of cleaning a cache: the shards removed, their bytes, and the shards in use."""

    removed: int
    """Shards."""
    bytes: int
    """Disk space that is free now."""
    in_use: int
    """Shards that were kept because live processes read, fetch or need them."""


def usage(folder: Path | None = None) -> list[Usage]:
    """Return what a cache keeps, by data set, the last used first.

    Args:
        folder: by default ``shards`` in the user's cache folder.

    Raises `CacheError` if the folder is not safe, or cannot be read.
    """
    stores: dict[str, list[Copy]] = {}
    with _cache(folder) as cache:
        for copy in cache.catalog.copies() if cache else ():
            stores.setdefault(copy.source, []).append(copy)
        return [
            Usage(
                source=source,
                shards=len(copies),
                bytes=sum(_disk_bytes(cache, copy) for copy in copies),
                last_use=max(copy.used for copy in copies),
                in_use=sum(_is_in_use(cache, copy) for copy in copies),
            )
            for source, copies in stores.items()
            if cache is not None
        ]


def clean(
    folder: Path | None = None, *, sources: Collection[str] = (), older_than: float = 0.0, everything: bool = False
) -> Cleaned:
    """Remove copies from a cache, but none that a live process reads, fetches or needs.

    Args:
        folder: as `usage` takes it.
        sources: the folders or URLs of data sets; what lies below one is meant too. By default all.
        older_than: only copies that were not used for so many seconds.
        everything: remove all copies, if neither sources nor an age say which.

    Raises `ArgumentError` if nothing says which copies, or a source has no copy; and what `usage` raises.
    """
    if not (sources or older_than > 0 or everything):
        raise ArgumentError("pass sources=, older_than= or everything=True: which copies are to be removed?")
    with _cache(folder) as cache:
        copies = cache.catalog.copies() if cache else []
        for source in sources:
            if not any(_is_of(copy, source) for copy in copies):
                raise ArgumentError(
                    f"the cache holds nothing of {storage.shown(source)}: `wdsdist cache info` lists its data sets",
                    argument="sources",
                )
        chosen = [
            copy
            for copy in copies
            if copy.used <= time.time() - older_than
            and (not sources or any(_is_of(copy, source) for source in sources))
        ]
        removed = freed = 0
        for copy in chosen:
            assert cache is not None
            size = _disk_bytes(cache, copy)
            if copy.next_use is None and cache.evict(copy.key):
                cache.catalog.remove(copy.key)
                removed, freed = removed + 1, freed + size
    return Cleaned(removed=removed, bytes=freed, in_use=len(chosen) - removed)


@contextlib.contextmanager
def _cache(folder: Path | None) -> Iterator[ChunkCache | None]:
    """Yield the cache in a folder, ``None`` if there is none; a fault of the folder is a `CacheError`."""
    cache = ChunkCache(CacheOptions(folder))
    try:
        if cache.root.exists():
            check_root(cache.root)
        yield cache if cache.root.exists() else None
    except WdsdistError:
        raise
    except OSError as error:  # as of a read-only disk, where nothing can be locked
        raise CacheError(f"{cache.root} cannot be read or changed: {error.strerror or error}") from error


def _disk_bytes(cache: ChunkCache, copy: Copy) -> int:
    """Return the bytes that a copy takes on disk, with its index."""
    path, total = cache.root / copy.key, 0
    for file in (path, beside(path)):
        with contextlib.suppress(FileNotFoundError):
            total += file.lstat().st_blocks * 512
    return total


def _is_in_use(cache: ChunkCache, copy: Copy) -> bool:
    if copy.next_use is not None:
        return True
    try:
        with LockableFile(cache.root / copy.key) as file:
            return not file.lock(alone=True)
    except (FileNotFoundError, PlantedError):
        return False


def _is_of(copy: Copy, source: str) -> bool:
    """Return whether a copy is one of a data set, or lies below it."""
    source = storage.normalise(source)
    shown = storage.shown(source)
    is_below = copy.source == shown or copy.source.startswith(f"{shown}/")
    return is_below or copy.key.startswith(f"{store_key(source)}/")
