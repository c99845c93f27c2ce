"""Index tars of other tools: `index` finds their samples and writes the shard indexes and ``index.json``."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
from wdsdist.shards.tar import is_tar

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


def index(
    shards: Shards,
    *,
    output: Location | None = None,
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
        ArgumentError: an option has a value that cannot work.
    """
    if workers is not None:
        check_integer("workers", workers, 1)
    named = shards.stores or () if isinstance(shards, Manifest) else expand(shards)
    options = storage.named(storage_options, named)
    locations = _tars(shards, options, together=output is None)
    target = storage.split(locations[0])[0] if output is None else storage.normalise(output)
    names = locations if output is not None else [storage.split(location)[1] for location in locations]
    known = _known(target, options)
    _refuse_unfinished(known, target, len(names), options)
    check_names(target, names, elsewhere=output is not None)
    if output is not None:
        _prepare(target, locations)
    elif storage.is_read_only(target):
        raise DestinationError(f"{storage.shown(target)} cannot be written: {_NAME_A_FOLDER}")
    with _executor(locations, workers) as executor:
        sizes = list(executor.map(_size, locations, [options] * len(locations)))
        found = _index_all(executor, locations, sizes, (target, options), progress)
    manifest = Manifest.of(
        target,
        (Shard.of(name, one) for name, one in zip(names, found, strict=True)),
        name=storage.split(target)[1],
        extra={**_notes(found), **_kept_notes(known)},
        storage_options=dict(options.given),
        stores=options.stores,
        is_named=output is not None,
        origin=storage.join(target, index_json.FILE_NAME),
    )
    manifest = replace(manifest, extra={**manifest.extra, **_generations(known, manifest)})
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
    place: tuple[str, storage.StorageOptions],
    progress: Callable[[IndexProgress], None] | None,
) -> list[ShardIndex]:
    """Index all tars concurrently; return the indexes in the order of the tars."""
    futures = {
        executor.submit(_index_one, location, size, *place): number
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


def _index_one(location: str, size: int | None, target: str, options: storage.StorageOptions) -> ShardIndex:
    if not storage.is_remote(location):
        return scan_local.write_index(Path(location), Path(target))
    found = scan_remote.index_remote(location, size, options)
    name = storage.split(location)[1] + shard_index.SUFFIX
    with _writable(target):
        storage.write(storage.join(target, name), shard_index.dumps(found), options)
    return found


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


def _known(target: str, options: storage.StorageOptions) -> Manifest | None:
    """Return the manifest in the folder's present index.json, if there is one that can be read."""
    try:
        return index_json.load(storage.join(target, index_json.FILE_NAME), options, allow_elsewhere=True)
    except (IndexNotFoundError, IndexFormatError, StorageError):
        return None


def _kept_notes(known: Manifest | None) -> dict[str, Any]:
    """Return the notes of the present index.json that a scan of the tars cannot find."""
    return {name: known.extra[name] for name in ("classes",) if name in known.extra} if known else {}


def _generations(known: Manifest | None, manifest: Manifest) -> dict[str, Any]:
    """Return the notes on how a data set has grown, where the shards that were indexed before are the first still."""
    before = 0 if known is None else len(known.counts)
    if known is None or not 0 < before <= len(manifest.counts):
        return {}
    if manifest.fingerprints([before]) != [known.fingerprint]:
        return {}
    notes = {"appended": known.extra["appended"]} if "appended" in known.extra else {}
    lengths = sorted({*known.generations, len(manifest.counts)})
    return {**notes, "generations": lengths} if len(lengths) > 1 else notes


def _refuse_unfinished(known: Manifest | None, target: str, shards: int, options: storage.StorageOptions) -> None:
    """Raise `IndexNotFoundError` where some of the tars are those of an append that was not finished."""
    if known is None or shards <= len(known.counts):
        return
    try:
        before = json.loads(storage.read(storage.join(target, index_json.APPEND_RECORD), options))["shards"]
    except (FileNotFoundError, StorageError, ValueError, KeyError, TypeError):
        return
    if before == len(known.counts):
        raise IndexNotFoundError(
            f"{storage.shown(target)} has not been appended to to the end: run the same `wdsdist pack --append` again, "
            f"or delete {index_json.APPEND_RECORD} there if all tars are to be indexed as they are"
        )


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
