"""Tars without an ``index.json``: open or list them, and advise on a folder that is not a data set."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wdsdist import storage
from wdsdist._util.pools import pool
from wdsdist.errors import ArgumentError, NotFoundError, ShardDamagedError
from wdsdist.shards import interop
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.index.build import check_fields
from wdsdist.shards.local_index import shard_index
from wdsdist.shards.manifest import Manifest, Shard, index_json
from wdsdist.shards.tar.naming import FIRST_DOT, is_tar


def open_tars(
    locations: list[str], options: Mapping[str, Any] | None, load: Callable[..., Manifest], *, skip: bool, key: str
) -> Manifest:
    """Open single tars: from the ``index.json`` of their folder, the counts of another tool, or the index of each."""
    folder = storage.split(locations[0])[0]
    try:
        manifest = load(storage.join(folder, index_json.FILE_NAME), options, named=locations)
        numbers = {manifest.location(number): number for number in range(len(manifest.counts))}
        return manifest.of_shards(numbers[location] for location in locations)
    except (NotFoundError, KeyError):
        pass  # no index.json, or one that does not list these tars
    if {storage.split(location)[0] for location in locations} == {folder}:
        with contextlib.suppress(NotFoundError):
            counted = interop.by_foreign_counts(folder, storage.named(options, locations), locations)
            if counted is not None:
                return counted
    remote = next((location for location in locations if storage.is_remote(location)), None)
    if remote is not None:
        raise NotFoundError(
            f"{storage.shown(folder)} has no {index_json.FILE_NAME} that lists {storage.split(remote)[1]}: "
            f"run `wdsdist index` on its shards (with `--output DIR` if the store cannot be written), and open the "
            f"folder that it writes"
        )
    with pool(None, len(locations)) as executor:
        indexes = list(executor.map(functools.partial(_index_of, skip=skip, key=key), map(Path, locations)))
    check_fields(storage.shown(folder), (index for index in indexes if index is not None))
    rules = {index.key_rule for index in indexes if index is not None} or {key}
    if len(rules) > 1 or key not in (FIRST_DOT, *rules):
        shown = " and ".join(map(repr, sorted(rules)))
        raise ArgumentError(
            f"the tars in {folder} were not all indexed by one key rule ({shown}): run `wdsdist index` on all",
            argument="key",
        )
    (rule,) = rules
    pairs = zip(locations, indexes, strict=True)
    listed = [Shard(path, 0, -1, "") if index is None else Shard.of(path, index) for path, index in pairs]
    extra = {} if rule == FIRST_DOT else {"key_rule": rule}
    return Manifest.of(folder, listed, name=Path(folder).name, extra=extra, is_named=True)


def _index_of(path: Path, *, skip: bool, key: str) -> ShardIndex | None:
    """Return the index of a local tar; with ``skip``, ``None`` if it is damaged."""
    try:
        return shard_index(path, key_rule=key)
    except ShardDamagedError:
        if not skip:
            raise
        return None


def tars_in(folder: str, options: storage.StorageOptions | None = None) -> list[str]:
    """Return the locations of the tars in a folder, without hidden files, such as unfinished ones.

    Raises `NotFoundError` for a folder that packing has not finished: shards are missing.
    """
    names = _names(folder, options)
    if index_json.PACK_RECORD in names and index_json.FILE_NAME not in names:
        raise NotFoundError(
            f"{storage.shown(folder)} has not been packed to the end: run the same `wdsdist pack` again, which writes "
            f"the rest, or delete {index_json.PACK_RECORD} there to keep only the shards that it holds"
        )
    return [storage.join(folder, name) for name in names if is_tar(name)]


def no_index(location: str, options: storage.StorageOptions) -> NotFoundError:
    """Return the error for a location that is not a data set, with what to do."""
    where = storage.shown(location)
    if storage.is_read_only(location):
        return NotFoundError(f"{where} has no index.json: a web server lists no folder, so name index.json or the tars")
    names = _names(location, options)
    try:
        if not names:  # a bucket has no empty folders
            storage.stat(location, options)
    except FileNotFoundError:
        return NotFoundError(f"{where} does not exist")
    if named := [name for name in names if name.startswith("index-") and name.endswith(".json")]:
        return NotFoundError(f"{where} holds several data sets: name one, such as {where}/{named[0]}")
    return NotFoundError(
        f"{where} holds {len(tars_in(location, options)):,} tar files but no index.json: run `wdsdist index {where}` "
        f"once for tars, or make a data set of files by `wdsdist pack {where} DEST`"
    )


def _names(folder: str, options: storage.StorageOptions | None) -> list[str]:
    """Return the names in a folder, but no hidden tars; nothing of the web."""
    if storage.is_read_only(folder):
        return []
    names = [entry.name for entry in storage.list(folder, options)]
    return [name for name in names if not (name.startswith(".") and is_tar(name))]
