"""Open data sets: `open` finds indexed shards, and single tars without an index.

A tar without an index is scanned once; its index is kept beside it, or in the user's cache where that folder cannot
be written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from wdsdist import storage
from wdsdist._util.pools import pool
from wdsdist._util.validation import check_seconds
from wdsdist.errors import ArgumentError, ArgumentTypeError, IndexNotFoundError, ManifestError
from wdsdist.shards import scan_local
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest, Shard, check_location, index_json
from wdsdist.shards.tar import AUTO, FIRST_DOT, LAST_DOT, check_rule, decide, is_cut_alike, is_tar, merge
from wdsdist.shards.views import view_file
from wdsdist.storage import Deadline

Location = str | os.PathLike[str]
Shards = Location | Iterable[Location] | Manifest


def open(  # noqa: A001
    shards: Shards,
    *,
    key: str = AUTO,
    storage_options: Mapping[str, Any] | None = None,
    download_timeout: float | None = None,
    allow_elsewhere: bool = False,
) -> Manifest:
    """Open a data set and return its manifest: the shards, with the number of samples in each.

    Args:
        shards: a folder or URL with an ``index.json``; the path or URL of an ``index.json``; one tar; a brace pattern
            such as ``train-{000..127}.tar``; a list of tars; a view that `Manifest.save` wrote; or a `Manifest`, which
            is returned unchanged. Tars named one by one need no ``index.json``: those without an index are scanned
            once. They may be compressed by gzip, bzip2, xz or zstd.
        key: of tars without an index, the key rule as `wdsdist.index` takes it; data sets that have one keep theirs.
        storage_options: passed to fsspec for URLs: those of the stores that ``shards`` names, each of a list. Shards
            that the index lists at another host, bucket or scheme are read without. A mapping from stores to options,
            such as ``{"s3://bucket": {"anon": True}}``, says of each store what it gets.
        download_timeout: deadline in seconds for a remote ``index.json``, all retries included; by default it is
            retried until 30 seconds after the first failure. Where its store does not answer by then, the
            copy that this user read last is used, with a warning.
        allow_elsewhere: let the ``index.json`` name shards outside its own folder: on other hosts, in other buckets,
            by absolute paths or ``..``. Look at what it names before. What you named to `wdsdist.index` needs it not.

    Raises:
        IndexNotFoundError: a folder without ``index.json``.
        IndexFormatError: an index that is damaged.
        ManifestError: an ``index.json`` with an entry that cannot be right, or that lies elsewhere; or a view of data
            elsewhere that another user saved.
        ShardNotFoundError: a tar that does not exist.
        ShardDamagedError: a tar without an index that cannot be read without losing samples.
        ArgumentError: the names in tars without an index do not show where keys end, or ``key`` differs from what an
            index says.
    """
    check_rule(key)
    deadline = None if download_timeout is None else Deadline(check_seconds("download_timeout", download_timeout))
    if isinstance(shards, Manifest):
        return shards
    locations = expand(shards)
    if len(locations) != 1 or is_tar(storage.split(locations[0])[1]):
        return _open_tars(locations, storage_options, deadline, key, allow_elsewhere=allow_elsewhere)
    location = locations[0]
    index = location if location.endswith(".json") else storage.join(location, index_json.FILE_NAME)
    try:
        found = index_json.load(index, storage_options, deadline, keep=True, allow_elsewhere=allow_elsewhere)
        _check_rule(location, found.key_rule, key)
        return found
    except IndexNotFoundError:
        options = storage.named(storage_options, locations)
        if location.endswith(".json"):
            raise
        if not view_file.is_view(location, options):
            raise _no_index(location, options) from None

    def open_index(place: str, is_named: bool) -> Manifest:
        bound = storage.named(storage_options, [location, place]) if is_named else options
        return index_json.load(place, bound, deadline, keep=True, allow_elsewhere=allow_elsewhere)

    return view_file.load(location, options, open_index, allow_elsewhere=allow_elsewhere)


def expand(shards: Location | Iterable[Location]) -> list[str]:
    """Expand a path, a URL, a brace pattern or a list of them to the locations of shards."""
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


def refuse_folders(locations: list[str]) -> None:
    """Raise `ArgumentError` where one of several locations is a folder."""
    for location in locations:
        if not storage.is_remote(location) and Path(location).is_dir():
            raise ArgumentError(f"{location} is a folder, named together with others: name one folder, or tars only")


def _open_tars(
    locations: list[str],
    options: Mapping[str, Any] | None,
    deadline: Deadline | None,
    key: str,
    *,
    allow_elsewhere: bool,
) -> Manifest:
    """Open single tars: from the ``index.json`` of their folder, or else by the index of each."""
    refuse_folders(locations)
    folder = storage.split(locations[0])[0]
    try:
        index = storage.join(folder, index_json.FILE_NAME)
        known = index_json.load(index, options, deadline, named=locations, keep=True, allow_elsewhere=allow_elsewhere)
        _check_rule(folder, known.key_rule, key)
        numbers = {known.location(number): number for number in range(len(known.counts))}
        return known.of_shards(numbers[location] for location in locations)
    except (IndexNotFoundError, KeyError):
        pass  # no index.json, or one that does not know these tars
    remote = next((location for location in locations if storage.is_remote(location)), None)
    if remote is not None:
        raise IndexNotFoundError(
            f"{storage.shown(folder)} has no {index_json.FILE_NAME} that lists {storage.split(remote)[1]}: "
            f"run `wdsdist index` on its shards (with `--output DIR` where the store cannot be written), and open what "
            f"that makes"
        )
    paths = [Path(location) for location in locations]
    with pool(None, len(paths)) as executor:
        found = list(executor.map(partial(scan_local.shard_index, key_rule=key), paths))
    found, rule = _by_one_rule(paths, found, key)
    shards = (Shard.of(str(path), one) for path, one in zip(paths, found, strict=True))
    extra = {} if rule == FIRST_DOT else {"key_rule": rule}
    return Manifest.of(folder, shards, name=Path(folder).name, extra=extra, is_named=True)


def _by_one_rule(paths: list[Path], found: list[ShardIndex], key: str) -> tuple[list[ShardIndex], str]:
    """Return the indexes of tars by one key rule for all: the one given or on record, or what the names of those show.

    Raises `ArgumentError` where names do not show it, or where the indexes on record disagree.
    """
    recorded = sorted({one.key_rule for one in found if not one.evidence} - {FIRST_DOT})
    rule = recorded[0] if recorded and key == AUTO else key
    if rule == AUTO:
        rule = decide(merge(one.evidence for one in found), str(paths[0].parent))
    settled = []
    for path, one in zip(paths, found, strict=True):
        if one.evidence:
            one = one if one.key_rule == rule else scan_local.scan_shard(path, key_rule=rule)
            scan_local.keep(path, one)
        elif (
            one.key_rule != FIRST_DOT or rule not in (FIRST_DOT, LAST_DOT) or not all(map(is_cut_alike, one.extensions))
        ):
            _check_rule(path, one.key_rule, rule)
        settled.append(one)
    return settled, rule


def _check_rule(where: str | Path, recorded: str, key: str) -> None:
    """Raise `ArgumentError` where an index was made by another key rule than is asked for."""
    if key not in (AUTO, recorded):
        raise ArgumentError(
            f"{storage.shown(str(where))} was indexed by the key rule {recorded!r}, not by {key!r}: index it anew by "
            f"`wdsdist index --key RULE`"
        )


def tars_in(folder: str, options: storage.StorageOptions | None = None) -> list[str]:
    """Return the locations of the tars in a folder, without hidden files, such as unfinished ones.

    Raises `IndexNotFoundError` for a folder that packing has not finished, where shards are missing.
    """
    names = storage.names(folder, "", options)
    if index_json.PACK_RECORD in names and index_json.FILE_NAME not in names:
        raise IndexNotFoundError(
            f"{storage.shown(folder)} has not been packed to the end: run the same `wdsdist pack` again, which writes "
            f"the rest, or delete {index_json.PACK_RECORD} there if what it holds is to be all"
        )
    tars = [name for name in names if is_tar(name) and not name.startswith(".")]
    if storage.is_remote(folder):
        check_names(folder, tars)
    return [storage.join(folder, name) for name in tars]


def check_names(folder: str, names: list[str], *, elsewhere: bool = False) -> None:
    """Raise `ManifestError` for the first tar whose name an ``index.json`` in the folder may not hold."""
    for name in names:
        try:
            check_location(folder, name, elsewhere=elsewhere)
        except ValueError as error:
            raise ManifestError(f"the tar {storage.shown(name)!a} {error}: rename it") from None


def _no_index(location: str, options: storage.StorageOptions) -> IndexNotFoundError:
    where = storage.shown(location)
    if not storage.exists(location, options):
        return IndexNotFoundError(f"{where} does not exist")
    if not storage.is_remote(location) and not Path(location).is_dir():
        return IndexNotFoundError(f"{where} is neither a folder, an index.json nor a .tar file")
    tars = len(tars_in(location, options))
    if tars:
        return IndexNotFoundError(f"{where} holds {tars:,} tar files but no index.json: run `wdsdist index {where}`")
    return IndexNotFoundError(f"{where} holds no index.json and no tar files: it is not a data set")
