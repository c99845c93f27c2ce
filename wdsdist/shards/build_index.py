"""Index tars of other tools: `index` finds their samples and writes the shard indexes and ``index.json``."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wdsdist import storage
from wdsdist._util.files import lies_in
from wdsdist._util.pools import pool
from wdsdist._util.validation import check_integer
from wdsdist.errors import (
    ArgumentError,
    DestinationError,
    IndexFormatError,
    IndexNotFoundError,
    ShardNotFoundError,
    StorageError,
    printable,
)
from wdsdist.shards import index as shard_index
from wdsdist.shards import scan_local, scan_remote
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest, Shard, index_json, trusted_digests
from wdsdist.shards.open import Location, Shards, check_names, expand, refuse_folders, tars_in
from wdsdist.shards.tar import AUTO, FIRST_DOT, check_rule, decide, is_tar, merge

_REMOTE_WORKERS = 16
"""Shards that are read from a store at once: latency, not the CPU, limits the throughput there."""

_log = logging.getLogger("wdsdist")

_NAME_A_FOLDER = "name a local folder for the indexes with `--output`"


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """Progress of indexing."""

    shards_done: int
    shards: int
    bytes_done: int
    bytes: int
    samples_done: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where indexes are written, and how names are cut."""

    target: str
    options: storage.StorageOptions
    key_rule: str


def index(
    shards: Shards,
    *,
    output: Location | None = None,
    key: str = AUTO,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[IndexProgress], None] | None = None,
) -> Manifest:
    """Index tars of other tools: write an index beside each, and ``index.json`` in their folder.

    Remote tars whose members are large are indexed by reading their headers only, and have no digest then; others
    are streamed once. Compressed tars are decompressed into a temporary file, one for each worker.

    Args:
        shards: a folder or URL, one tar, a brace pattern or a list of tars, all in one folder.
        output: another local folder for the indexes and the ``index.json``, which then names the tars by their full
            paths or URLs: for shards in places that cannot be written. Open the data set by this folder.
        key: the key rule, where the base names of members are cut into keys and extensions: ``"first-dot"``, the
            convention; ``"last-dot"``; or a regular expression of the key, up to a dot. ``"auto"`` takes the first dot
            unless the names of all tars show that it would put samples together, as of ``v1.5_0001.jpg``; the rule of
            an index.json that is there already is kept. Another rule than the first dot is noted in the indexes.
        workers: how many shards are read at once; by default one for each core, or 16 of a remote store.
        storage_options: passed to fsspec for the stores that ``shards`` names, as `wdsdist.open` takes them.
        progress: called with an `IndexProgress` before the first shard and after each.

    Returns the manifest. Where anything is raised, no ``index.json`` is written.

    Raises:
        ShardDamagedError: a tar cannot be read without losing samples.
        ShardNotFoundError: a tar does not exist, or a folder holds none.
        IndexNotFoundError: a folder holds shards whose packing was cut off.
        ManifestError: a tar has a name that no index.json may hold, such as one with a control character.
        IndexFormatError: the tars lie in several folders, or have the same name in the folder for their indexes.
        DestinationError: the indexes cannot be written.
        StorageError: a store cannot be read.
        ArgumentError: an option has a value that cannot work, or names do not show where keys end.
    """
    check_rule(key)
    if workers is not None:
        check_integer("workers", workers, 1)
    named = shards.stores or () if isinstance(shards, Manifest) else expand(shards)
    options = storage.named(storage_options, named)
    locations = _tars(shards, options, together=output is None)
    target = storage.split(locations[0])[0] if output is None else storage.normalise(output)
    names = locations if output is not None else [storage.split(location)[1] for location in locations]
    check_names(target, names, elsewhere=output is not None)
    if output is not None:
        _prepare(target, locations)
    elif storage.is_read_only(target):
        raise DestinationError(f"{storage.shown(target)} cannot be written: {_NAME_A_FOLDER}")
    known = _known_notes(target, options)
    if key == AUTO:
        # What was packed is cut by the first dot; what was indexed, as its index.json says.
        key = known.get("key_rule", FIRST_DOT if "shuffle_seed" in known else AUTO)
    with _executor(locations, workers) as executor:
        sizes = list(executor.map(_size, locations, [options] * len(locations)))
        place = _Place(target, options, key)
        found = _index_all(executor, locations, sizes, place, progress)
        found, key = _by_one_rule(executor, locations, sizes, found, place)
    notes = _notes(found) | ({} if key == FIRST_DOT else {"key_rule": key})
    manifest = Manifest.of(
        target,
        (Shard.of(name, one) for name, one in zip(names, found, strict=True)),
        name=storage.split(target)[1],
        extra={**notes, **({"classes": known["classes"]} if "classes" in known else {})},
        storage_options=dict(options.given),
        stores=options.stores,
        is_named=output is not None,
        origin=storage.join(target, index_json.FILE_NAME),
    )
    if output is not None:
        _record(manifest)
    _save(manifest, target, options)
    return manifest


def _record(manifest: Manifest) -> None:
    """Record the manifest as trusted, because the user named its locations."""
    try:
        trusted_digests.record(index_json.dumps(manifest))
    except (DestinationError, ArgumentError, OSError) as error:
        _log.warning("%s cannot be recorded as named by you: open it with allow_elsewhere=True (%s)", manifest, error)


def _refuse_links(manifest: Manifest) -> None:
    """Raise `DestinationError` where indexes beside the shards would lie outside the folder of their data set."""
    for number in range(len(manifest.counts)):
        part, location = manifest.part(number)[0], manifest.location(number)
        if part.is_named or storage.is_remote(location):
            continue
        if storage.is_remote(part.base) or not lies_in(Path(location), storage.local_path(part.base)):
            raise DestinationError(f"{location} lies outside {storage.shown(part.base)}: {_NAME_A_FOLDER}")


def _executor(
    locations: list[str], workers: int | None
) -> contextlib.AbstractContextManager[concurrent.futures.Executor]:
    if any(map(storage.is_remote, locations)):
        return concurrent.futures.ThreadPoolExecutor(min(workers or _REMOTE_WORKERS, len(locations)))
    return pool(workers, len(locations))


def _index_all(
    executor: concurrent.futures.Executor,
    locations: list[str],
    sizes: list[int | None],
    place: _Place,
    progress: Callable[[IndexProgress], None] | None,
) -> list[ShardIndex]:
    """Index all tars concurrently; return the indexes in the order of the tars."""
    futures = {
        executor.submit(_index_one, location, size, place): number
        for number, (location, size) in enumerate(zip(locations, sizes, strict=True))
    }
    found: dict[int, ShardIndex] = {}
    total = sum(size or 0 for size in sizes)
    bytes_done = samples_done = 0
    if progress:
        progress(IndexProgress(0, len(locations), 0, total, 0))
    try:
        for future in concurrent.futures.as_completed(futures):
            one = found[futures[future]] = future.result()
            bytes_done += one.file.size
            samples_done += one.num_samples
            if progress:
                known = max(total, bytes_done)
                progress(IndexProgress(len(found), len(locations), bytes_done, known, samples_done))
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return [found[number] for number in range(len(locations))]


def _index_one(location: str, size: int | None, place: _Place) -> ShardIndex:
    """Index a tar; where the key rule is still to be decided, nothing is written."""
    if storage.is_remote(location):
        found = scan_remote.index_remote(location, size, place.options, key_rule=place.key_rule)
    else:
        found = scan_local.scan_shard(Path(location), key_rule=place.key_rule)
    if not found.evidence:
        _save_one(found, location, place)
    return found


def _save_one(found: ShardIndex, location: str, place: _Place) -> None:
    if not storage.is_remote(location):
        scan_local.save_index(found, Path(location), Path(place.target))
        return
    name = storage.split(location)[1] + shard_index.SUFFIX
    with _writable(place.target):
        storage.write(storage.join(place.target, name), shard_index.dumps(found), place.options)


def _by_one_rule(
    executor: concurrent.futures.Executor,
    locations: list[str],
    sizes: list[int | None],
    found: list[ShardIndex],
    place: _Place,
) -> tuple[list[ShardIndex], str]:
    """Decide on the key rule by the names of all tars; return the indexes that it gives, and the rule."""
    if place.key_rule != AUTO:
        return found, place.key_rule
    what = storage.shown(storage.split(locations[0])[0])
    rule = decide(merge(one.evidence for one in found), what)
    anew = [number for number, one in enumerate(found) if one.evidence and one.key_rule != rule]
    made = executor.map(
        _index_one,
        [locations[number] for number in anew],
        [sizes[number] for number in anew],
        [dataclasses.replace(place, key_rule=rule)] * len(anew),
    )
    settled = dict(zip(anew, made, strict=True))
    for number, one in enumerate(found):
        if one.evidence and number not in settled:
            _save_one(one, locations[number], place)
    return [settled.get(number, one) for number, one in enumerate(found)], rule


def _save(manifest: Manifest, target: str, options: storage.StorageOptions) -> None:
    if storage.is_remote(target):
        with _writable(target):
            storage.write(storage.join(target, index_json.FILE_NAME), index_json.dumps(manifest), options)
        return
    try:
        index_json.save(manifest, Path(target))
    except OSError as error:
        raise DestinationError(f"{target} cannot be written ({error.strerror}), so it gets no index.json") from error


@contextlib.contextmanager
def _writable(target: str) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise DestinationError(f"{error}: {_NAME_A_FOLDER}") from error


def _size(location: str, options: storage.StorageOptions) -> int | None:
    try:
        size = storage.entry(location, options).size
    except FileNotFoundError as error:
        raise ShardNotFoundError(f"shard {storage.shown(location)} does not exist") from error
    return None if size < 0 else size


def _prepare(folder: str, locations: list[str]) -> None:
    """Create the folder for the indexes of all these tars, after checks of their names."""
    if storage.is_remote(folder):
        raise ArgumentError(f"output is {storage.shown(folder)}: it must be a local folder")
    names = Counter(storage.split(location)[1] for location in locations)
    name, count = names.most_common(1)[0]
    if count > 1:
        raise IndexFormatError(f"{count} of the shards are named {name}: their indexes need folders of their own")
    for location in locations:
        if storage.shown(location) != printable(location):
            raise ArgumentError(
                f"the URL of {storage.shown(location)} holds a password or a query, which index.json would keep: pass "
                f"what the store needs as storage_options"
            )
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DestinationError(f"{folder} cannot be made ({error.strerror})") from error


def _known_notes(target: str, options: storage.StorageOptions) -> dict[str, Any]:
    """Return the notes of the folder's present index.json: a scan of the tars cannot find classes, for example."""
    try:
        return index_json.load(storage.join(target, index_json.FILE_NAME), options, allow_elsewhere=True).extra
    except (IndexNotFoundError, IndexFormatError, StorageError):
        return {}


def _notes(indexes: Iterable[ShardIndex]) -> dict[str, Any]:
    """Return the notes of index.json on the whole data set: fields, payload bytes, skipped entries."""
    fields: set[str] = set()
    payload = 0
    skipped: Counter[str] = Counter()
    for one in indexes:
        fields.update(extension.lower() for extension in one.extensions)
        payload += int(one.sizes.sum())
        skipped.update(one.skipped)
    notes: dict[str, Any] = {"source": {"kind": "tar"}, "fields": sorted(fields), "payload_bytes": payload}
    return {**notes, "skipped": dict(sorted(skipped.items()))} if skipped else notes


def _tars(shards: Shards, options: storage.StorageOptions, *, together: bool) -> list[str]:
    """Return the locations of the tars; ``together`` requires that all lie in one folder."""
    if isinstance(shards, Manifest):
        locations = [shards.location(number) for number in range(len(shards.counts))]
        if together:
            _refuse_links(shards)
    else:
        locations = expand(shards)
        if len(locations) == 1 and not is_tar(storage.split(locations[0])[1]):
            folder = locations[0]
            locations = tars_in(folder, options)
            if not locations:
                raise ShardNotFoundError(f"{storage.shown(folder)} holds no .tar files")
    refuse_folders(locations)
    for location in locations:
        if not storage.is_remote(location) and not Path(location).is_file():
            raise ShardNotFoundError(f"shard {location} does not exist")
    folders = sorted({storage.split(location)[0] for location in locations})
    if together and len(folders) > 1:
        raise IndexFormatError(
            f"the shards lie in {len(folders)} folders ({storage.shown(folders[0])}, {storage.shown(folders[1])}, "
            f"...): index one folder at a time, or name a folder for the indexes of all with `--output`"
        )
    return locations
