"""What is in a cache folder: copies, and parts at the size that is reserved for them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wdsdist.cache import paths as places
from wdsdist.cache import stamps
from wdsdist.cache.locks import LockableFile, PlantedError
from wdsdist.cache.paths import Place
from wdsdist.shards.index import SUFFIX

STAMP_BYTES = 512
"""More than a stamp takes, which is written anew at any time: each counts as this."""


@dataclass(frozen=True, slots=True)
class Held:
    """A shard of which something is in the cache."""

    place: Place
    size: int
    """Bytes of all its files, or the bytes that are reserved for them where that is more."""
    is_whole: bool
    """Whether there is a copy, and no part."""
    last_use: int
    """Nanoseconds since 1970."""


def all_held(root: Path) -> list[Held]:
    """List all that is in a cache folder, after removing what processes that died have left; only under its lock."""
    with os.scandir(root) as entries:
        stores = [entry for entry in entries if places.is_store(entry.name) and entry.is_dir(follow_symlinks=False)]
    return [held for store in stores for held in _held_in(Path(store))]


def size_of(place: Place) -> int:
    """Return the bytes of one shard in the cache, as `all_held` tells them; 0 where nothing of it is there."""
    found = {}
    for name in (place.name, place.name + SUFFIX, place.name + places.PART, place.name + places.STAMP):
        with contextlib.suppress(FileNotFoundError):
            found[name] = (place.folder / name).lstat()
    if place.name + places.STAMP in found or place.name + places.PART in found:
        return _held(place, found).size
    return 0


def reserved_for(place: Place) -> int:
    """Return how many bytes are reserved for a part and what belongs to it."""
    stamp = stamps.read(place.stamp)
    return 0 if stamp is None else stamp.reserved


def _held_in(folder: Path) -> Iterator[Held]:
    # There may be many thousands of copies, and the folder is locked meanwhile: no paths where names will do.
    with os.scandir(folder) as entries:
        found = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
    # Only what has a stamp or is a part is the cache's own: other files may lie here too.
    stamped = {name.removesuffix(places.STAMP) for name in found if name.endswith(places.STAMP)}
    parts = {name.removesuffix(places.PART) for name in found if name.endswith(places.PART)}
    for name in stamped | parts:
        place = Place(folder, name)
        if name in parts and _was_left(place):
            place.part.unlink()
            del found[name + places.PART]
            parts.remove(name)
        if name not in parts and name not in found:
            place.index.unlink(missing_ok=True)
            place.stamp.unlink(missing_ok=True)
            continue
        yield _held(place, found)


def _held(place: Place, found: dict[str, os.stat_result]) -> Held:
    """Return what there is of a shard, of the files that were found."""
    name = place.name
    stats = [found[one] for one in (name, name + SUFFIX, name + places.PART) if one in found]
    stamp = found.get(name + places.STAMP)
    size = sum([one.st_size for one in stats]) + (STAMP_BYTES if stamp else 0)
    is_whole = name + places.PART not in found
    if not is_whole:
        size = max(size, reserved_for(place))
    return Held(place, size, is_whole, (stamp or stats[-1]).st_mtime_ns)


def _was_left(place: Place) -> bool:
    """Say whether nobody is fetching a part any more."""
    try:
        file = LockableFile(place.part, writable=True)
    except PlantedError:
        return True
    with contextlib.closing(file):
        return file.lock(alone=True)
