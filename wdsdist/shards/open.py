"""Open data sets: `open` finds indexed shards, and single tars without an index."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from wdsdist import storage
from wdsdist._util.validation import check_flag, check_seconds
from wdsdist.errors import ArgumentError, NotFoundError, ShardDamagedError, StorageError
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest, Shard, index_json
from wdsdist.shards.spellings import Shards, expand
from wdsdist.shards.tar.member_names import check_rule
from wdsdist.shards.tar.naming import FIRST_DOT, is_tar


class OpenOptions(TypedDict, total=False):
    """The arguments of `open` that a `StreamingDataset` takes as well."""

    storage_options: Mapping[str, Any] | None
    download_timeout: float | None
    stage: bool
    allow_elsewhere: bool
    generation: int | None


def open(  # noqa: A001
    shards: Shards,
    *,
    storage_options: Mapping[str, Any] | None = None,
    download_timeout: float | None = None,
    stage: bool = False,
    allow_elsewhere: bool = False,
    generation: int | None = None,
    key: str = FIRST_DOT,
) -> Manifest:
    """Open a data set and return its manifest: the shards, with the number of samples in each.

    Args:
        shards: a folder or URL with an ``index.json``, or with the counts of timm (``_info.json``), Megatron-Energon
            (``.nv-meta``) or wids (``wids-meta.json``), which are checked when shards are opened; the path or URL of an
            ``index.json``; one tar; a brace pattern such as ``train-{000..127}.tar``, or a glob; ``a.tar::b.tar``;
            ``@list.txt``, a file of names; a list of these; a view that `Manifest.save` wrote; or a `Manifest`. Local
            tars named one by one need no ``index.json``: those without an index are scanned once.
        storage_options: passed to fsspec for the stores that ``shards`` names. Shards that the index lists at another
            host, bucket or scheme are read without. A mapping from stores to options, such as
            ``{"s3://bucket": {"anon": True}}``, says of each store what it gets.
        download_timeout: deadline in seconds for a remote ``index.json``, all retries included; by default it is
            retried until 30 seconds after the first failure.
        stage: copy local shards into the cache too, as for a slow mount.
        allow_elsewhere: let the ``index.json`` or a list name shards outside its own folder: on other hosts, in other
            buckets, by absolute paths or ``..``. Look at what it names before. What `wdsdist.index` wrote with
            ``output=`` names such shards.
        generation: of a data set that has grown: 1 is what was packed first, the last one what it is now.
        key: the key rule of tars without an index, as `wdsdist.index` takes it.

    Raises:
        NotFoundError: a folder without ``index.json``, or a tar that does not exist.
        IndexFormatError: an index that is damaged, or an ``index.json`` with an entry that cannot be right or lies
            elsewhere.
        ShardDamagedError: a tar without an index that cannot be read without losing samples.
        ArgumentError: the names in tars without an index do not fit the key rule.
    """
    check_rule(key)
    check_flag("allow_elsewhere", allow_elsewhere)
    deadline = (
        None if download_timeout is None else storage.Deadline(check_seconds("download_timeout", download_timeout))
    )
    found = open_tolerant(shards, storage_options, deadline, allow_elsewhere=allow_elsewhere, key=key)
    found = found if generation is None else found.at_generation(generation)
    return found.staged() if check_flag("stage", stage) else found


def open_tolerant(
    shards: Shards,
    storage_options: Mapping[str, Any] | None = None,
    deadline: storage.Deadline | None = None,
    *,
    allow_elsewhere: bool = False,
    skip: bool = False,
    key: str = FIRST_DOT,
) -> Manifest:
    """Open a data set as `open` does; with ``skip``, damaged tars without an index are listed without a sample."""
    if isinstance(shards, Manifest):
        return shards
    locations = expand(shards, storage_options, allow_elsewhere=allow_elsewhere)
    load = functools.partial(index_json.load, deadline=deadline, allow_elsewhere=allow_elsewhere)
    if len(locations) != 1 or is_tar(storage.split(locations[0])[1]):
        return _open_tars(locations, storage_options, load, skip=skip, key=key)
    if storage.split(locations[0])[1].endswith(".json"):
        return load(locations[0], storage_options)
    return _open_folder(locations[0], storage_options, load, allow_elsewhere=allow_elsewhere)


def _open_folder(
    location: str, given: Mapping[str, Any] | None, load: Callable[..., Manifest], *, allow_elsewhere: bool
) -> Manifest:
    """Open a folder with an index.json or the counts of another tool, or a view: the name does not tell which."""
    is_signed = storage.is_read_only(location) and "?" in location
    refused = None
    try:
        if not is_signed:
            return load(storage.join(location, index_json.FILE_NAME), given)
    except NotFoundError:
        pass
    except StorageError as error:  # a bucket that may not be listed refuses what does not exist, as below a view
        refused = error
    from wdsdist.curation import view_file
    from wdsdist.shards import interop, tar_folders

    options = storage.named(given, [location])
    if view_file.is_view(location, options):

        def open_index(place: str) -> Manifest:
            return load(place, storage.named(given, [location, place]) if allow_elsewhere else options)

        return view_file.load(location, options, open_index, allow_elsewhere=allow_elsewhere)
    if refused is not None:
        raise refused
    if is_signed:
        raise ArgumentError(
            f"{storage.shown(location)} has a query, and is not a view: a signature is for one file, so name the "
            f"index.json with one of its own, in which shards have theirs"
        )
    found = interop.by_foreign_counts(location, options)
    if found is None:
        raise tar_folders.no_index(location, options)
    return found


def _open_tars(
    locations: list[str], given: Mapping[str, Any] | None, load: Callable[..., Manifest], *, skip: bool, key: str
) -> Manifest:
    """Open single tars: from the ``index.json`` of their folder, the counts of another tool, or the index of each."""
    from wdsdist.shards import interop, tar_folders

    tar_folders.refuse_data_sets(locations)
    folder = storage.split(locations[0])[0]
    try:
        known = load(storage.join(folder, index_json.FILE_NAME), given, named=locations)
        numbers = {known.location(number): number for number in range(len(known.counts))}
        return known.of_shards(numbers[location] for location in locations)
    except (NotFoundError, KeyError):
        pass  # no index.json, or one that does not know these tars
    with contextlib.suppress(NotFoundError):
        if {storage.split(location)[0] for location in locations} == {folder}:
            counted = interop.by_foreign_counts(folder, storage.named(given, locations), locations)
            if counted is not None:
                return counted
    remote = next((location for location in locations if storage.is_remote(location)), None)
    if remote is not None:
        raise NotFoundError(
            f"{storage.shown(folder)} has no {index_json.FILE_NAME} that lists {storage.split(remote)[1]}: "
            f"run `wdsdist index` on its shards (with `--output DIR` if the store cannot be written), and open what "
            f"that makes"
        )
    return _index_tars(folder, [Path(location) for location in locations], skip=skip, key=key)


def _index_tars(folder: str, paths: list[Path], *, skip: bool, key: str) -> Manifest:
    """Return the manifest of local tars by their stored indexes, or by a scan of each."""
    from wdsdist._util.pools import pool
    from wdsdist.shards.index.build import check_fields

    with pool(None, len(paths)) as executor:
        indexes = list(executor.map(functools.partial(_index_tar, skip=skip, key=key), paths))
    check_fields(storage.shown(folder), (index for index in indexes if index is not None))
    pairs = list(zip(map(str, paths), indexes, strict=True))
    rules = {index.key_rule: path for path, index in pairs if index is not None}
    if len(rules) > 1 or (key != FIRST_DOT and rules.keys() - {key}):
        shown = " and ".join(f"{path} by {rule!r}" for rule, path in sorted(rules.items()))
        raise ArgumentError(
            f"the tars were not all indexed by one key rule ({shown}): run `wdsdist index` on all", argument="key"
        )
    rule = next(iter(rules), key)
    extra = {} if rule == FIRST_DOT else {"key_rule": rule}
    listed = [Shard(path, 0, -1, "") if index is None else Shard.of(path, index) for path, index in pairs]
    return Manifest.of(folder, listed, name=Path(folder).name, extra=extra, is_named=True)


def _index_tar(path: Path, *, skip: bool, key: str) -> ShardIndex | None:
    """Return the index of a tar; with ``skip``, ``None`` if it is damaged."""
    from wdsdist.shards.local_index import shard_index

    try:
        return shard_index(path, key_rule=key)
    except ShardDamagedError:
        if not skip:
            raise
        return None
