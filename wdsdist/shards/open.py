"""Open data sets: `open` finds indexed shards, and single tars without an index.

A tar without an index is scanned once; its index is kept beside it, or in the user's cache where that folder cannot
be written.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wdsdist import storage
from wdsdist._util.pools import pool
from wdsdist._util.validation import check_flag, check_seconds
from wdsdist.errors import ArgumentError, NotFoundError, ShardDamagedError, StorageError
from wdsdist.shards import scan_local, unindexed
from wdsdist.shards.index import STRICT, ShardIndex, Tolerance
from wdsdist.shards.manifest import Manifest, Shard, index_json
from wdsdist.shards.spellings import Shards, expand
from wdsdist.shards.tar import AUTO, FIRST_DOT, LAST_DOT, check_rule, decide, is_cut_alike, is_tar, merge
from wdsdist.storage import Deadline


def open(  # noqa: A001
    shards: Shards,
    *,
    key: str = AUTO,
    storage_options: Mapping[str, Any] | None = None,
    download_timeout: float | None = None,
    allow_elsewhere: bool = False,
    generation: int | None = None,
) -> Manifest:
    """Open a data set and return its manifest: the shards, with the number of samples in each.

    Args:
        shards: a folder or URL with an ``index.json``, or with counts by another tool (``_info.json``,
            ``wids-meta.json``, ``.nv-meta``, ``sizes.json``, ``manifest.jsonl``), which are checked where shards are
            opened; the path or URL of an ``index.json``; one tar; a brace pattern such as ``train-{000..127}.tar``, or
            a glob; ``a.tar::b.tar``; ``@list.txt``, a file of names; a list of these; a view that `Manifest.save`
            wrote; or a `Manifest`, which is returned unchanged. Local tars named one by one need no ``index.json``:
            those without an index are scanned once. They may be compressed by gzip or zstd.
        key: of tars without an index, the key rule as `wdsdist.index` takes it; data sets that have one keep theirs.
        storage_options: passed to fsspec for URLs: those of the stores that ``shards`` names, each of a list. Shards
            that the index lists at another host, bucket or scheme are read without. A mapping from stores to options,
            such as ``{"s3://bucket": {"anon": True}}``, says of each store what it gets.
        download_timeout: deadline in seconds for a remote ``index.json``, all retries included; by default it is
            retried until 30 seconds after the first failure.
        allow_elsewhere: let the ``index.json`` or a list name shards outside its own folder: on other hosts, in other
            buckets, by absolute paths or ``..``. Look at what it names before. What `wdsdist.index` wrote with
            ``output=`` names such shards.
        generation: of a data set that has grown, what it was before: 1 is what was packed first, the last one what it
            is now. A data set that is opened so does not grow while it is trained on.

    Raises:
        NotFoundError: a folder without ``index.json``.
        IndexFormatError: an index that is damaged, an ``index.json`` with an entry that cannot be right or lies
            elsewhere, or a view of data elsewhere that another user saved.
        NotFoundError: a tar that does not exist.
        ShardDamagedError: a tar without an index that cannot be read without losing samples.
        ArgumentError: the names in tars without an index do not show where keys end, or ``key`` differs from what an
            index says.
    """
    check_rule(key)
    check_flag("allow_elsewhere", allow_elsewhere)
    deadline = None if download_timeout is None else Deadline(check_seconds("download_timeout", download_timeout))
    found = open_tolerant(shards, storage_options, deadline, allow_elsewhere=allow_elsewhere, key=key)
    return found if generation is None else found.at_generation(generation)


def open_tolerant(
    shards: Shards,
    storage_options: Mapping[str, Any] | None = None,
    deadline: Deadline | None = None,
    *,
    allow_elsewhere: bool = False,
    tolerance: Tolerance = STRICT,
    key: str = AUTO,
) -> Manifest:
    """Open a data set as `open` does; with a tolerance, damaged tars without an index are listed without a sample."""
    if isinstance(shards, Manifest):
        found = shards
    else:
        locations = expand(shards, storage_options, allow_elsewhere=allow_elsewhere)
        load = functools.partial(index_json.load, deadline=deadline, allow_elsewhere=allow_elsewhere)
        if len(locations) != 1 or is_tar(storage.split(locations[0])[1]):
            found = _open_tars(locations, storage_options, load, (tolerance, key))
        elif storage.split(locations[0])[1].endswith(".json"):
            found = load(locations[0], storage_options)
        else:
            found = _open_folder(locations[0], storage_options, load, allow_elsewhere=allow_elsewhere)
    _check_rule(found.base, found.key_rule, key)
    return found


def _open_folder(
    location: str, given: Mapping[str, Any] | None, load: Callable[..., Manifest], *, allow_elsewhere: bool
) -> Manifest:
    """Open a folder of tars, a folder with an index.json, or a view, none of which shows in the name."""
    is_signed = storage.is_read_only(location) and "?" in location
    options = storage.named(given, [location])
    refused = None
    try:
        if not is_signed:
            return load(storage.join(location, index_json.FILE_NAME), given)
    except NotFoundError:
        pass
    except StorageError as error:  # a bucket that may not be listed refuses what does not exist, as below a view
        refused = error
    from wdsdist.curation import view_file

    if not view_file.is_view(location, options):
        if refused is not None:
            raise refused
        if is_signed:
            raise ArgumentError(
                f"{storage.shown(location)} has a query, and is no view: a signature is of one file, so name the "
                f"index.json with one of its own, in which shards have theirs"
            )
        found = unindexed.by_foreign_counts(location, options)
        if found is None:
            raise unindexed.no_index(location, options)
        return found

    def open_index(place: str) -> Manifest:
        return load(place, storage.named(given, [location, place]) if allow_elsewhere else options)

    return view_file.load(location, options, open_index, allow_elsewhere=allow_elsewhere)


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


def _open_tars(
    locations: list[str], options: Mapping[str, Any] | None, load: Callable[..., Manifest], how: tuple[Tolerance, str]
) -> Manifest:
    """Open single tars: from the ``index.json`` of their folder, or else by the index of each."""
    refuse_data_sets(locations)
    folder = storage.split(locations[0])[0]
    try:
        known = load(storage.join(folder, index_json.FILE_NAME), options, named=locations)
        numbers = {known.location(number): number for number in range(len(known.counts))}
        return known.of_shards(numbers[location] for location in locations)
    except (NotFoundError, KeyError):
        pass  # no index.json, or one that does not know these tars
    with contextlib.suppress(NotFoundError):
        if {storage.split(location)[0] for location in locations} == {folder}:
            counted = unindexed.by_foreign_counts(folder, storage.named(options, locations), locations)
            if counted is not None:
                return counted
    remote = next((location for location in locations if storage.is_remote(location)), None)
    if remote is not None:
        raise NotFoundError(
            f"{storage.shown(folder)} has no {index_json.FILE_NAME} that lists {storage.split(remote)[1]}: "
            f"run `wdsdist index` on its shards (with `--output DIR` where the store cannot be written), and open what "
            f"that makes"
        )
    paths = [Path(location) for location in locations]
    with pool(None, len(paths)) as executor:
        found = list(executor.map(functools.partial(_index, how=how), paths))
    found, rule = _by_one_rule(paths, found, how[1])
    pairs = zip(map(str, paths), found, strict=True)
    listed = [Shard(path, 0, -1, "") if index is None else Shard.of(path, index) for path, index in pairs]
    extra = {} if rule == FIRST_DOT else {"key_rule": rule}
    return Manifest.of(folder, listed, name=Path(folder).name, extra=extra, is_named=True)


def _index(path: Path, how: tuple[Tolerance, str]) -> ShardIndex | None:
    """Return the index of a tar, or with a tolerance ``None`` where it is damaged."""
    tolerance, key = how
    try:
        return scan_local.shard_index(path, key_rule=key)
    except ShardDamagedError:
        if not tolerance.skip:
            raise
        return None


def _by_one_rule(paths: list[Path], found: list[ShardIndex | None], key: str) -> tuple[list[ShardIndex | None], str]:
    """Return the indexes of tars by one key rule for all: the one given or on record, or what the names of those show.

    Raises `ArgumentError` where names do not show it, or where the indexes on record disagree.
    """
    whole = [one for one in found if one is not None]
    recorded = sorted({one.key_rule for one in whole if not one.evidence} - {FIRST_DOT})
    rule = recorded[0] if recorded and key == AUTO else key
    if rule == AUTO:
        rule = decide(merge(one.evidence for one in whole), str(paths[0].parent))
    settled: list[ShardIndex | None] = []
    for path, one in zip(paths, found, strict=True):
        if one is not None and one.evidence:
            one = one if one.key_rule == rule else scan_local.scan_shard(path, key_rule=rule)
            scan_local.keep(path, one)
        elif one is not None:
            is_plain = one.key_rule == FIRST_DOT and all(map(is_cut_alike, one.extensions))
            if not (is_plain and rule in (FIRST_DOT, LAST_DOT)):
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
