"""Find data sets and make their indexes: `open` what is indexed, `index` what others wrote.

A tar without an index is scanned once; its index is kept beside it, or in the user's cache where that folder cannot
be written.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from wdsdist import manifest as manifests
from wdsdist import shardindex, storage, tarformat
from wdsdist.errors import (
    ArgumentTypeError,
    DestinationError,
    IndexFormatError,
    IndexNotFoundError,
    ShardDamagedError,
    ShardNotFoundError,
    StorageError,
)
from wdsdist.manifest import Manifest, Shard
from wdsdist.node import user_cache_dir
from wdsdist.processes import pool
from wdsdist.shardindex import ShardIndex

Location = str | os.PathLike[str]
Shards = Location | Iterable[Location] | Manifest


def open(shards: Shards, *, storage_options: Mapping[str, Any] | None = None) -> Manifest:  # noqa: A001
    """Open a data set: find its shards and how many samples each holds.

    Args:
        shards: a folder or URL with an ``index.json``; the path or URL of an ``index.json``; one tar; a brace pattern
            such as ``train-{000..127}.tar``; a list of tars; or a `Manifest`, which is returned as it is. Tars named
            one by one need no ``index.json``: those without an index are scanned once.
        storage_options: passed to fsspec for URLs.

    Raises:
        IndexNotFoundError: a folder without ``index.json``.
        IndexFormatError: an index that is damaged.
        ShardNotFoundError: a tar that does not exist.
        ShardDamagedError: a tar without an index that cannot be read without losing samples.
    """
    if isinstance(shards, Manifest):
        return shards
    locations = _expand(shards)
    if len(locations) != 1 or locations[0].endswith(".tar"):
        return _open_tars(locations, storage_options)
    location = locations[0]
    if location.endswith(".json"):
        return manifests.load(location, storage_options)
    try:
        return manifests.load(storage.join(location, manifests.FILE_NAME), storage_options)
    except IndexNotFoundError:
        raise _no_index(location, storage_options) from None


def index(
    shards: Shards,
    *,
    workers: int | None = None,
    progress: Callable[[int, int, ShardIndex], None] | None = None,
) -> Manifest:
    """Index tars that someone else made: write an index beside each, and ``index.json`` in their folder.

    Args:
        shards: a folder, one tar, a brace pattern or a list of tars, all in one local folder.
        workers: processes that scan; by default one for each core, and at most one for each shard.
        progress: called after each shard with (shards done, shards in all, the shard's index).

    Returns the manifest. Raises `ShardDamagedError` for a tar that cannot be read without losing samples; no
    ``index.json`` is written then.
    """
    paths = _local_tars(shards)
    folder = paths[0].parent
    found: dict[Path, ShardIndex] = {}
    with pool(workers, len(paths)) as executor:
        futures = {executor.submit(_write_index, path): path for path in paths}
        for future in concurrent.futures.as_completed(futures):
            found[futures[future]] = future.result()
            if progress:
                progress(len(found), len(paths), found[futures[future]])
    manifest = Manifest.of(
        str(folder),
        (_shard(path.name, found[path]) for path in paths),
        name=folder.name,
        extra={**_notes(found.values()), **_classes(folder)},
    )
    try:
        manifests.save(manifest, folder)
    except OSError as error:
        raise DestinationError(f"{folder} cannot be written ({error.strerror}), so it gets no index.json") from error
    return manifest


def shard_index(path: Path) -> ShardIndex:
    """Return the index of a local tar: from beside it, from the user's cache, or by scanning the tar and keeping it.

    Raises `ShardNotFoundError` where there is no tar and `ShardDamagedError` where the tar is not as its index says.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise ShardNotFoundError(f"shard {path} does not exist") from error
    for place in (_beside(path), _cached(path)):
        try:
            known = shardindex.load(place)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except IndexFormatError:
            if place == _cached(path):
                continue  # ours to make anew
            raise
        if known.size != size:
            if place == _cached(path):
                continue  # the tar was written anew since; scan it again
            raise ShardDamagedError(_sizes_differ(path, size, known.size))
        return known
    return _scan_and_keep(path)


def scan_shard(path: Path) -> ShardIndex:
    """Read a whole tar and return its index, digest included."""
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if not size:
            raise ShardDamagedError(f"{path}: the file is empty, without the two closing blocks of a tar")
        # Left to be closed with its last reference: closing it here would raise BufferError in place of the error that
        # `scan` raises, whose traceback still holds views of it.
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    members = tarformat.scan(content, label=str(path))
    digest = hashlib.sha256(content).hexdigest()
    return shardindex.from_members(members, size=size, sha256=digest, label=str(path))


def _sizes_differ(path: Path, size: int, expected: int) -> str:
    how = "short of" if size < expected else "longer than"
    return (
        f"shard {path} is {abs(size - expected):,} bytes {how} its index ({expected:,}): fetch or pack it again, "
        f"or run `wdsdist index` if it was replaced on purpose"
    )


def _scan_and_keep(path: Path) -> ShardIndex:
    found = scan_shard(path)
    content = shardindex.dumps(found)
    for place in (_beside(path), _cached(path)):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with storage.atomic_write(place) as stream:
                stream.write(content)
            break
        except OSError:
            continue  # kept nowhere: the next process scans again
    return found


def _write_index(path: Path) -> ShardIndex:
    found = scan_shard(path)
    try:
        with storage.atomic_write(_beside(path)) as stream:
            stream.write(shardindex.dumps(found))
    except OSError as error:
        raise DestinationError(f"{path.parent} cannot be written ({error.strerror}): copy the shards first") from error
    return found


def _beside(path: Path) -> Path:
    return path.with_name(path.name + shardindex.SUFFIX)


def _cached(path: Path) -> Path:
    # The time of the last change is part of the name: a tar that is replaced must not keep its old index.
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        changed = 0
    digest = hashlib.sha256(f"{path.absolute()}\0{changed}".encode("utf-8", "surrogateescape")).hexdigest()
    return user_cache_dir() / "indexes" / f"{digest[:32]}{shardindex.SUFFIX}"


def _classes(folder: Path) -> dict[str, Any]:
    """Return the classes that the folder's present index.json names: no scan of the tars could find them again."""
    try:
        known = manifests.load(str(folder / manifests.FILE_NAME)).extra
    except (IndexNotFoundError, IndexFormatError):
        return {}
    return {"classes": known["classes"]} if "classes" in known else {}


def _notes(indexes: Iterable[ShardIndex]) -> dict[str, Any]:
    """Return what index.json says of the data set beside the list of its shards."""
    fields: set[str] = set()
    payload = 0
    skipped: Counter[str] = Counter()
    for one in indexes:
        fields.update(extension.lower() for extension in one.extensions)
        payload += int(one.sizes.sum())
        skipped.update(one.skipped)
    notes: dict[str, Any] = {"source": {"kind": "tar"}, "fields": sorted(fields), "payload_bytes": payload}
    return {**notes, "skipped": dict(sorted(skipped.items()))} if skipped else notes


def _shard(name: str, found: ShardIndex) -> Shard:
    return Shard(name, found.num_samples, found.size, found.sha256)


def _expand(shards: Location | Iterable[Location]) -> list[str]:
    if not isinstance(shards, (str, os.PathLike, Iterable)):
        raise ArgumentTypeError(f"shards is {shards!r}: it must be a path, a URL or a list of them")
    listed = [shards] if isinstance(shards, (str, os.PathLike)) else list(shards)
    expanded: list[str] = []
    for item in listed:
        if not isinstance(item, (str, os.PathLike)):
            raise ArgumentTypeError(f"shards holds {item!r}: it must be a path, a URL or a list of them")
        text = os.fspath(item)
        if "{" in text and not Path(text).exists():
            import braceexpand

            try:
                expanded += braceexpand.braceexpand(text)
            except ValueError:
                expanded.append(text)  # no pattern: a name, most likely of nothing, which is an error that shows it
        else:
            expanded.append(text)
    if not expanded:
        raise IndexNotFoundError("the list of shards is empty: name a folder, a brace pattern or some tars")
    return [storage.normalise(item) for item in expanded]


def _open_tars(locations: list[str], options: Mapping[str, Any] | None) -> Manifest:
    """Open tars that are named one by one: from the ``index.json`` of their folder, or else each for itself."""
    folder = storage.split(locations[0])[0]
    try:
        known = manifests.load(storage.join(folder, manifests.FILE_NAME), options)
        numbers = {known.location(number): number for number in range(len(known.counts))}
        return known.select(numbers[location] for location in locations)
    except (IndexNotFoundError, KeyError):
        pass  # no index.json, or one that does not know these tars
    remote = next((location for location in locations if storage.is_remote(location)), None)
    if remote is not None:
        raise IndexNotFoundError(
            f"{storage.shown(folder)} has no {manifests.FILE_NAME} that lists {storage.split(remote)[1]}: "
            f"index the shards with `wdsdist index` before they are uploaded"
        )
    paths = [Path(location) for location in locations]
    with pool(None, len(paths)) as executor:
        found = list(executor.map(shard_index, paths))
    shards = (_shard(str(path), one) for path, one in zip(paths, found, strict=True))
    return Manifest.of(folder, shards, name=Path(folder).name)


def _local_tars(shards: Shards) -> list[Path]:
    if isinstance(shards, Manifest):
        locations = [shards.location(number) for number in range(len(shards.counts))]
    else:
        locations = _expand(shards)
        if len(locations) == 1 and not locations[0].endswith(".tar"):
            folder = locations[0]
            locations = [storage.join(folder, name) for name in storage.names(folder, ".tar")]
            if not locations:
                raise ShardNotFoundError(f"{storage.shown(folder)} holds no .tar files")
    for location in locations:
        if storage.is_remote(location):
            raise StorageError(f"{storage.shown(location)} is remote: index shards where they lie on a local disk")
        if not Path(location).is_file():
            raise ShardNotFoundError(f"shard {location} does not exist")
    folders = sorted({storage.split(location)[0] for location in locations})
    if len(folders) > 1:
        raise IndexFormatError(
            f"the shards lie in {len(folders)} folders ({folders[0]}, {folders[1]}, ...): index one folder at a time"
        )
    return [Path(location) for location in locations]


def _no_index(location: str, options: Mapping[str, Any] | None) -> IndexNotFoundError:
    where = storage.shown(location)
    if not storage.exists(location, options):
        return IndexNotFoundError(f"{where} does not exist")
    if not storage.is_remote(location) and not Path(location).is_dir():
        return IndexNotFoundError(f"{where} is neither a folder, an index.json nor a .tar file")
    tars = len(storage.names(location, ".tar", options))
    if tars:
        return IndexNotFoundError(
            f"{where} holds {tars:,} tar files but no index.json: run `wdsdist index {where}`, or pack again if "
            f"packing was interrupted"
        )
    return IndexNotFoundError(f"{where} holds no index.json and no tar files: it is not a data set")
