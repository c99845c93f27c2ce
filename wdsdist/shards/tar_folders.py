"""Tars without an ``index.json``: open or list them, and advise on a folder that is not a data set."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from wdsdist import storage
from wdsdist._util.pools import pool
from wdsdist.errors import ArgumentError, IndexFormatError, NotFoundError, ShardDamagedError
from wdsdist.shards import interop
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.index.build import check_fields
from wdsdist.shards.local_index import shard_index
from wdsdist.shards.manifest import Manifest, Shard, check_location, index_json
from wdsdist.shards.tar.naming import FIRST_DOT, is_tar

_LOOKS = 50
"""Folders that a hint looks into."""


def open_tars(
    locations: list[str], given: Mapping[str, Any] | None, load: Callable[..., Manifest], *, skip: bool, key: str
) -> Manifest:
    """Open single tars: from the ``index.json`` of their folder, the counts of another tool, or the index of each."""
    refuse_data_sets(locations)
    folder = storage.split(locations[0])[0]
    try:
        known = load(storage.join(folder, index_json.FILE_NAME), given, named=locations)
        numbers = {known.location(number): number for number in range(len(known.counts))}
        return known.of_shards(numbers[location] for location in locations)
    except (NotFoundError, KeyError):
        pass  # no index.json, or one that does not know these tars
    with contextlib.suppress(NotFoundError):
        if {storage.split(location)[0] for location in locations} == {folder}:
            manifest = interop.by_foreign_counts(folder, storage.named(given, locations), locations)
            if manifest is not None:
                return manifest
    remote = next((location for location in locations if storage.is_remote(location)), None)
    if remote is not None:
        raise NotFoundError(
            f"{storage.shown(folder)} has no {index_json.FILE_NAME} that lists {storage.split(remote)[1]}: "
            f"run `wdsdist index` on its shards (with `--output DIR` if the store cannot be written), and open the "
            f"folder that it writes"
        )
    return _index_tars(folder, [Path(location) for location in locations], skip=skip, key=key)


def _index_tars(folder: str, paths: list[Path], *, skip: bool, key: str) -> Manifest:
    """Return the manifest of local tars by their stored indexes, or by a scan of each."""
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
    tars = [name for name in names if is_tar(name)]
    if storage.is_remote(folder):
        check_names(folder, tars)
    return [storage.join(folder, name) for name in tars]


def check_names(folder: str, names: list[str], *, elsewhere: bool = False) -> None:
    """Raise `IndexFormatError` for the first tar whose name an ``index.json`` in the folder may not hold."""
    for name in names:
        try:
            check_location(folder, name, elsewhere=elsewhere)
        except ValueError as error:
            raise IndexFormatError(f"the tar {storage.shown(name)!a} {error}: rename it") from None


def refuse_data_sets(locations: list[str]) -> None:
    """Raise `ArgumentError` if one of several locations is a local folder or view."""
    from wdsdist.curation import view_file

    for location in locations:
        if storage.is_remote(location):
            continue
        if Path(location).is_dir():
            raise ArgumentError(f"{location} is a folder, named together with others: name one folder, or tars only")
        if not is_tar(location) and len(locations) > 1 and view_file.is_view(location, storage.named({}, [])):
            raise ArgumentError(f"{location} is a view, named together with others: name one view, or tars only")


def no_index(location: str, options: storage.StorageOptions) -> NotFoundError:
    """Return the error for a location that is not a data set, with what to do."""
    where = storage.shown(location)
    if storage.is_read_only(location):
        return NotFoundError(f"{where} has no index.json: a web server lists no folder, so name index.json or the tars")
    try:
        names = _names(location, options)
        if not names:  # a bucket has no empty folders
            storage.stat(location, options)
    except FileNotFoundError:
        return NotFoundError(f"{where} does not exist")
    if not storage.is_remote(location) and not Path(location).is_dir():
        return NotFoundError(f"{where} is neither a folder, an index.json nor a .tar file")
    if own := [name for name in names if name.startswith("index-") and name.endswith(".json")]:
        return NotFoundError(f"{where} holds several data sets: name one, such as {where}/{own[0]}")
    if tars := len(tars_in(location, options)):
        return NotFoundError(f"{where} holds {tars:,} tar files but no index.json: run `wdsdist index {where}` once")
    return NotFoundError(
        f"{where} holds no index.json and no tar files: it is not a data set{tars_below(location, options)}"
    )


def tars_below(location: str, options: storage.StorageOptions) -> str:
    """Return a hint at the folders in a folder that hold tars; how to pack the folder if none of them does."""
    where = storage.shown(location)
    folders = [storage.join(location, name) for name in _names(location, options) if not PurePath(name).suffix]
    found = [folder for folder in folders[:_LOOKS] if any(map(is_tar, _names(folder, options)))]
    if not found:
        return f". `wdsdist pack {where} DEST` makes a data set of files"
    return (
        f". Tars lie in folders in it, such as {storage.shown(found[0])}: name one of them, or index all as one data "
        f"set by `wdsdist index '{where}/*/*.tar' --output DIR`"
    )


def _names(folder: str, options: storage.StorageOptions | None) -> list[str]:
    """Return the names in a folder, but no hidden tars; nothing of the web."""
    if storage.is_read_only(folder):
        return []
    names = [entry.name for entry in storage.list(folder, options)]
    return [name for name in names if not (name.startswith(".") and is_tar(name))]
