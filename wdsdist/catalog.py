"""Find data sets and make their indexes: `open` what is indexed, `index` what others wrote.

A tar without an index is scanned once; its index is kept beside it, or in the user's cache where that folder cannot
be written.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wdsdist import manifest as manifests
from wdsdist import storage, tarindex
from wdsdist.errors import (
    ArgumentError,
    ArgumentTypeError,
    DestinationError,
    IndexFormatError,
    IndexNotFoundError,
    ShardNotFoundError,
    StorageError,
)
from wdsdist.manifest import Manifest, Shard
from wdsdist.processes import pool
from wdsdist.shardindex import ShardIndex
from wdsdist.tarformat import is_compressed

Location = str | os.PathLike[str]
Shards = Location | Iterable[Location] | Manifest


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """How far indexing has come."""

    shards_done: int
    shards: int
    bytes_done: int
    bytes: int
    samples_done: int


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
    progress: Callable[[IndexProgress], None] | None = None,
) -> Manifest:
    """Index tars that someone else made: write an index beside each, and ``index.json`` in their folder.

    Args:
        shards: a folder, one tar, a brace pattern or a list of tars, all in one local folder.
        workers: processes that scan; by default one for each core, and at most one for each shard.
        progress: called with an `IndexProgress` after each shard.

    Returns the manifest. Raises `ShardDamagedError` for a tar that cannot be read without losing samples; no
    ``index.json`` is written then.
    """
    paths = _local_tars(shards)
    folder = paths[0].parent
    found: dict[Path, ShardIndex] = {}
    total = sum(path.stat().st_size for path in paths)
    bytes_done = samples_done = 0
    with pool(workers, len(paths)) as executor:
        futures = {executor.submit(tarindex.write_index, path): path for path in paths}
        for future in concurrent.futures.as_completed(futures):
            one = found[futures[future]] = future.result()
            bytes_done += one.size
            samples_done += one.num_samples
            if progress:
                progress(IndexProgress(len(found), len(paths), bytes_done, total, samples_done))
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


def _classes(folder: Path) -> dict[str, Any]:
    """Return the classes that the folder's present index.json names: no scan of the tars could find them again."""
    try:
        known = manifests.load(str(folder / manifests.FILE_NAME)).extra
    except (IndexNotFoundError, IndexFormatError, StorageError):
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
    return _whole_tars([storage.normalise(item) for item in expanded])


def _whole_tars(locations: list[str]) -> list[str]:
    """Return the locations, unless one is a compressed tar, which would be passed over or taken for a damaged one."""
    for location in locations:
        if is_compressed(storage.split(location)[1]):
            raise ArgumentError(f"{storage.shown(location)} is compressed: unpack it to a plain .tar first")
    return locations


def _refuse_folders(locations: list[str]) -> None:
    for location in locations:
        if not storage.is_remote(location) and Path(location).is_dir():
            raise ArgumentError(f"{location} is a folder, named together with others: name one folder, or tars only")


def _open_tars(locations: list[str], options: Mapping[str, Any] | None) -> Manifest:
    """Open tars that are named one by one: from the ``index.json`` of their folder, or else each for itself."""
    _refuse_folders(locations)
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
        found = list(executor.map(tarindex.shard_index, paths))
    shards = (_shard(str(path), one) for path, one in zip(paths, found, strict=True))
    return Manifest.of(folder, shards, name=Path(folder).name)


def _local_tars(shards: Shards) -> list[Path]:
    if isinstance(shards, Manifest):
        locations = [shards.location(number) for number in range(len(shards.counts))]
    else:
        locations = _expand(shards)
        if len(locations) == 1 and not locations[0].endswith(".tar"):
            folder = locations[0]
            locations = _whole_tars([storage.join(folder, name) for name in _tars_in(folder)])
            if not locations:
                raise ShardNotFoundError(f"{storage.shown(folder)} holds no .tar files")
    _refuse_folders(locations)
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


def _tars_in(folder: str) -> list[str]:
    """Return the names of the tars in a folder, compressed ones included so that they are not passed over."""
    return [name for name in storage.names(folder, "") if name.endswith(".tar") or is_compressed(name)]


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
