"""The contents of a cache folder by data set, and the removal of copies that nobody uses: `usage` and `clean`."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from wdsdist import storage
from wdsdist._util.host import user_cache_dir
from wdsdist._util.ownership import read_own
from wdsdist.cache.folders import SOURCE, check_root
from wdsdist.cache.space import CacheSpace
from wdsdist.cache.usage import Held
from wdsdist.errors import ArgumentError, CacheError, WdsdistError

_TIMEOUT = 60.0
"""Seconds to wait for the lock of the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Disk use of the cached copies of one data set: those of one folder or URL."""

    source: str
    """The folder or URL, without credentials; empty where an earlier version did not note it."""
    shards: int
    bytes: int
    """Of the copies, with their indexes."""
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
    """That they took."""
    in_use: int
    """Shards that were kept because live processes read, fetch or need them."""


def usage(folder: Path | None = None) -> list[Usage]:
    """Return what a cache keeps, by data set, the last used first.

    Args:
        folder: by default ``shards`` in the user's cache folder.

    Raises `CacheError` where the folder is not safe, or cannot be read.
    """
    stores: dict[Path, list[tuple[Held, bool]]] = {}
    with _space(folder) as space:
        for held, in_use in space.held(storage.Deadline(_TIMEOUT)) if space else ():
            stores.setdefault(held.paths.folder, []).append((held, in_use))
    found = [
        Usage(
            source=_source(store),
            shards=len(shards),
            bytes=sum(held.size for held, _ in shards),
            last_use=max(held.last_use for held, _ in shards) / 1e9,
            in_use=sum(in_use for _, in_use in shards),
        )
        for store, shards in stores.items()
    ]
    return sorted(found, key=lambda one: -one.last_use)


def clean(
    folder: Path | None = None, *, sources: Collection[str] = (), older_than: float = 0.0, everything: bool = False
) -> Cleaned:
    """Remove copies from a cache, but none that a live process reads, fetches or needs.

    Args:
        folder: as `usage` takes it.
        sources: the folders or URLs of data sets; what lies below one is meant too. By default all.
        older_than: only copies that were not used for so many seconds.
        everything: remove all copies, where neither sources nor an age say which.

    Raises `ArgumentError` where nothing says which copies, or a source has no copy; and what `usage` raises.
    """
    if not (sources or older_than > 0 or everything):
        raise ArgumentError(
            "say which copies to remove: those of a SOURCE, --older-than (older_than=), or --all (everything=)"
        )
    with _space(folder) as space:
        held = space.held(storage.Deadline(_TIMEOUT)) if space else []
        for source in sources:
            if not any(_is_of(one.paths.folder, source) for one, _ in held):
                raise ArgumentError(f"nothing is kept of {storage.shown(source)}: `wdsdist cache info` lists what is")
        before = (time.time() - older_than) * 1e9
        chosen = [
            one
            for one, _ in held
            if one.last_use <= before and (not sources or any(_is_of(one.paths.folder, source) for source in sources))
        ]
        removed = space.remove(chosen, storage.Deadline(_TIMEOUT)) if space else []
    taken = sum(one.size for one in removed)
    return Cleaned(removed=len(removed), bytes=taken, in_use=len(chosen) - len(removed))


@contextlib.contextmanager
def _space(folder: Path | None) -> Iterator[CacheSpace | None]:
    """Give the space of a cache folder, ``None`` where there is none; a fault of the folder is a `CacheError`."""
    root = folder or user_cache_dir() / "shards"
    try:
        if root.exists():
            check_root(root)
        yield CacheSpace(root, None) if root.exists() else None
    except WdsdistError:
        raise
    except OSError as error:  # as of a read-only disk, where nothing can be locked
        raise CacheError(f"{root} cannot be looked at or changed: {error.strerror or error}") from error


def _source(store: Path) -> str:
    return (read_own(store / SOURCE) or b"").decode("utf-8", "surrogateescape")


def _is_of(store: Path, source: str) -> bool:
    """Return whether the copies in a folder of the cache are those of a data set, or lie below it."""
    source = storage.normalise(source)
    named, shown = _source(store), storage.shown(source)
    is_below = named == shown or named.startswith(f"{shown}/")
    return is_below or store.name == hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:24]
