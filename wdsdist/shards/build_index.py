"""Index tars of other tools: `index` finds their samples and writes the shard indexes and ``index.json``."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from wdsdist import storage
from wdsdist._util.files import lies_in
from wdsdist._util.pools import completed, pool
from wdsdist._util.validation import check_callable, check_integer, check_path
from wdsdist.errors import ArgumentError, DestinationError, IndexFormatError, NotFoundError, ShardDamagedError
from wdsdist.shards import index as shard_index
from wdsdist.shards import index_target, quarantine, scan_local, scan_remote
from wdsdist.shards.index import ShardIndex, Tolerance, tolerance_of
from wdsdist.shards.index_target import NAME_A_FOLDER
from wdsdist.shards.manifest import Manifest, Shard, index_json, index_name
from wdsdist.shards.open import refuse_data_sets
from wdsdist.shards.progress import Report, ShardsProgress
from wdsdist.shards.quarantine import BadEntry
from wdsdist.shards.spellings import Location, Shards, expand
from wdsdist.shards.tar import AUTO, FIRST_DOT, check_rule, decide, is_tar, merge
from wdsdist.shards.unindexed import check_names, find, find_splits, tars_below, tars_in, warn_of_splits

_log = logging.getLogger("wdsdist")

_Found = ShardIndex | ShardDamagedError
"""The index of a tar, or why it has none."""


def index(
    shards: Shards,
    *,
    output: Location | None = None,
    name: str | None = None,
    key: str = AUTO,
    on_error: Literal["raise", "skip"] = "raise",
    keep_first: bool = False,
    salvage: bool = False,
    exclude: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allow_elsewhere: bool = False,
    progress: Callable[[ShardsProgress], None] | None = None,
) -> Manifest:
    """Index tars of other tools: write an index beside each, and ``index.json`` in their folder.

    Remote tars whose members are large are indexed by reading their headers only, and have no digest then; others
    are streamed once. Compressed tars are decompressed into a temporary file, one for each worker. The members of a
    sample may be scattered over its tar: they are read where they lie, and a warning says so.

    Args:
        shards: a folder or URL, one tar, a pattern or a list of tars, as `wdsdist.open` takes them, all in one folder.
        output: another local folder for the indexes and the ``index.json``, which then names the tars by their full
            paths or URLs: for shards in places that cannot be written, or in several folders. Open the data set by
            this folder.
        name: write ``index-NAME.json`` instead of ``index.json``, so that a folder holds several data sets, such as
            splits. Open the data set by this file.
        key: the key rule, where the base names of members are cut into keys and extensions: ``"first-dot"``, the
            convention; ``"last-dot"``; or a regular expression of the key, up to a dot. ``"auto"`` takes the first dot
            unless the names of all tars show that it would put samples together, as of ``v1.5_0001.jpg``; the rule of
            an index.json that is there already is kept. Another rule than the first dot is noted in the indexes.
        on_error: ``"raise"`` stops at the first tar that cannot be read without losing samples; ``"skip"`` leaves out
            what readers could not tell apart, such as a sample with the same member twice, and tars that are damaged.
            Each is listed with its reason in ``index-report.jsonl``; ``manifest.extra["left_out"]`` is their number.
        keep_first: with ``"skip"``, of a member that is there twice keep the first copy.
        salvage: with ``"skip"``, index what precedes the damage of plain tars that are cut short or damaged.
        exclude: a quarantine file, as `verify` and training write it: its samples are left out, and listed in the
            report. A line without a shard means that key in all shards.
        workers: how many shards are read at once; by default one for each core, or 16 of a remote store.
        storage_options: passed to fsspec for the stores that ``shards`` names, as `wdsdist.open` takes them.
        allow_elsewhere: let a list of shards in a file name what lies outside its folder.
        progress: called with an `ShardsProgress` before the first shard and after each.

    Returns the manifest. Where anything is raised, no ``index.json`` is written. Tars without a single sample are
    indexed with a warning.

    Raises:
        ShardDamagedError: a tar cannot be read without losing samples.
        NotFoundError: a tar does not exist, or a folder holds none.
        NotFoundError: a folder holds shards whose packing was cut off.
        IndexFormatError: a tar has a name that no index.json may hold, such as one with a control character.
        IndexFormatError: the tars lie in several folders, or one is named twice.
        DestinationExistsError: the folder has an ``index.json`` of other tars.
        DestinationError: the indexes cannot be written.
        StorageError: a store cannot be read.
        ArgumentError: an option has a value that cannot work, or names do not show where keys end.
    """
    check_rule(key)
    check_integer("workers", 1 if workers is None else workers, 1)
    tolerance = tolerance_of(on_error, keep_first, salvage)
    excluded = [] if exclude is None else quarantine.read(check_path("exclude", exclude))
    file_name = index_json.file_name(name)
    if not isinstance(shards, Manifest):
        shards = expand(shards, storage_options, allow_elsewhere=allow_elsewhere)
    options = storage.named(storage_options, shards.client_options.stores if isinstance(shards, Manifest) else shards)
    locations = _tars(shards, options, together=output is None)
    folder = shards[0] if isinstance(shards, list) and locations != shards else None
    if folder is not None and name is None:
        advice = f"`wdsdist index {storage.shown(folder)} --splits` makes one each"
        warn_of_splits(folder, _names(locations), options, advice)
    target, names = _target(locations, output)
    mirrors = index_target.prepare(target, locations) if output is not None else None
    known = index_target.known(target, file_name, locations, options)
    before: Mapping[str, Any] = {} if known is None else known.extra
    if key == AUTO:  # the rule on record: what was packed is cut by the first dot, what was indexed as its notes say
        key = check_rule(before.get("key_rule", FIRST_DOT if "shuffle_seed" in before else AUTO))
    with pool(workers, len(locations), remote=any(map(storage.is_remote, locations))) as executor:
        sizes = _sizes(executor, locations, folder, options)
        sidecars = [storage.join(target, index_name(location, mirrors)) for location in locations]
        places = zip(locations, sizes, sidecars, _excluding(tolerance, excluded, locations), strict=True)
        jobs = [_Job(*place, key, options) for place in places]
        found = _index_all(executor, jobs, progress)
        found, key = _by_one_rule(executor, jobs, found)
    indexed = [(shard, one) for shard, one in zip(names, found, strict=True) if isinstance(one, ShardIndex)]
    left_out = _all_left_out(target, locations, found)
    extra = _notes([one for _, one in indexed], key)
    extra |= {"left_out": len(left_out), "on_error": on_error} if left_out else {}
    extra |= {"mirrors": mirrors} if mirrors is not None else {}
    manifest = Manifest.of(
        target,
        (Shard.of(shard, one) for shard, one in indexed),
        name=name or storage.split(target)[1],
        extra=extra,
        storage_options=dict(options.given),
        stores=options.stores,
        is_named=output is not None,
        origin=storage.join(target, file_name),
    )
    manifest = manifest.with_source(extra=extra | index_target.kept_notes(known, manifest))
    index_target.save(manifest, target, file_name, left_out, options)
    _warn(manifest, indexed, exclude)
    return manifest


def index_splits(shards: Location, *, storage_options: Mapping[str, Any] | None = None, **more: Any) -> list[Manifest]:
    """Index the tars of a folder as one data set for each split, ``index-SPLIT.json``, and return the manifests.

    The splits are those that timm's ``_info.json`` or Megatron-Energon's ``split.yaml`` gives, or those in the names of
    the tars, such as ``train-00.tar``. Takes and raises what `index` does, and `ArgumentError` where there are no
    splits, or a tar is in none.
    """
    (folder,) = expand(shards, storage_options)
    options = storage.named(storage_options, [folder])
    splits: Mapping[str, Iterable[str]]
    if not tars_in(folder, options) and (notes := find(folder, options)):  # which list tars below the folder
        splits = notes.splits
    else:
        splits = find_splits(folder, _names(_tars([folder], options, together=False)), options)
    where = storage.shown(folder)
    if len(splits.keys() - {""}) < 2:
        raise ArgumentError(f"{where} has no splits, by names of tars or notes of timm or Energon: index it whole")
    if none := list(splits.get("", ())):
        raise ArgumentError(f"{where} has {len(none):,} tars of no split, such as {none[0]}: index splits by patterns")
    return [
        index([storage.join(folder, tar) for tar in tars], name=split, storage_options=storage_options, **more)
        for split, tars in splits.items()
    ]


def _target(locations: list[str], output: Location | None) -> tuple[str, list[str]]:
    """Return the folder for the index.json, and the names of the tars in it, which are checked."""
    target = storage.split(locations[0])[0] if output is None else storage.normalise(output)
    if output is None and storage.is_read_only(target):
        raise DestinationError(f"{storage.shown(target)} cannot be written: {NAME_A_FOLDER}")
    names = _names(locations) if output is None else locations
    check_names(target, names, elsewhere=output is not None)
    return target, names


def _excluding(tolerance: Tolerance, entries: list[BadEntry], locations: list[str]) -> list[Tolerance]:
    """Return the tolerance for each shard: what is listed of it, or without a shard, is left out."""
    if not entries:
        return [tolerance] * len(locations)
    names = _names(locations)
    counts = Counter(names)
    known = [
        {location, storage.shown(location), *((name, storage.shown(name)) if counts[name] == 1 else ())}
        for location, name in zip(locations, names, strict=True)
    ]
    every = set().union(*known)
    keys: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        if entry.shard in every or not (entry.shard and entry.fingerprint):  # not of another data set's shard
            keys[entry.shard if entry.shard in every else ""].add(entry.key)
    found = (set().union(keys[""], *(keys[name] for name in own)) for own in known)
    return [replace(tolerance, excluded=tuple(sorted(own))) for own in found]


def _names(locations: Iterable[str]) -> list[str]:
    return [storage.split(location)[1] for location in locations]


def _all_left_out(target: str, locations: list[str], found: list[_Found]) -> list[dict[str, str | None]]:
    """Return the lines of the report. Raises `ShardDamagedError` where no sample is left."""
    left_out = [one for location, index in zip(locations, found, strict=True) for one in _left_out(location, index)]
    if left_out and not any(one.num_samples for one in found if isinstance(one, ShardIndex)):
        advice = "mend or fetch it, or keep more by `--keep-first` and `--salvage`"
        raise ShardDamagedError(f"no sample for {storage.shown(target)} is left: {left_out[0]['reason']}: {advice}")
    return left_out


def _left_out(location: str, found: _Found) -> list[dict[str, str | None]]:
    """Return the lines of the report on one shard."""
    shard = storage.shown(storage.split(location)[1])
    if isinstance(found, ShardDamagedError):
        reason = str(found).replace(storage.shown(location), shard)  # the report may move with the tars
        return [{"key": None, "shard": shard, "reason": reason}]
    return [{"key": key or None, "shard": shard, "reason": reason} for key, reason in found.left_out]


def warn_of_parts(where: str, indexes: Iterable[tuple[str, ShardIndex]]) -> None:
    """Log a warning where two tars begin with the same key and hold other fields, as in Lhotse's Shar format."""
    first: dict[str, tuple[str, set[str]]] = {}
    for name, one in indexes:
        fields = {extension.lower() for extension in one.extensions}
        key = one.key(0) if one.num_samples else ""
        other, others = first.setdefault(key, (name, fields))
        if key and fields - others and others - fields:
            _log.warning(
                "%s: sample %r of %s has %s, and of %s %s: here these are two samples. If the tars hold parts of the "
                "same samples, name those of one kind by a pattern",
                storage.shown(where),
                key,
                storage.shown(other),
                ", ".join(sorted(others)),
                storage.shown(name),
                ", ".join(sorted(fields)),
            )
            return


def _warn(manifest: Manifest, indexes: list[tuple[str, ShardIndex]], exclude: str | os.PathLike[str] | None) -> None:
    warn_of_parts(manifest.base, indexes)
    if not manifest.num_samples:
        skipped = ", ".join(f"{count:,} x {what}" for what, count in manifest.extra.get("skipped", {}).items())
        held = f"hold nothing else than {skipped}" if skipped else "are empty"
        _log.warning("%s has no samples: its tars %s", storage.shown(manifest.base), held)
    if exclude is not None and not any(one.tolerance.excluded for _, one in indexes):
        _log.warning("%s lists no sample that is in %s", exclude, storage.shown(manifest.base))
    if scattered := manifest.extra.get("scattered"):
        _log.warning(
            "%s: the members of %s samples do not follow one another in their tars: they are read where they lie, with "
            "a read for each member, and other tools see partial samples; `wdsdist pack` brings them together",
            storage.shown(manifest.base),
            f"{scattered:,}",
        )


def _refuse_links(manifest: Manifest) -> None:
    """Raise `DestinationError` where indexes beside the shards would lie outside the folder of their data set."""
    for number in range(len(manifest.counts)):
        part, location = manifest.part(number)[0], manifest.location(number)
        if part.is_named or storage.is_remote(location):
            continue
        if storage.is_remote(part.base) or not lies_in(Path(location), storage.local_path(part.base)):
            raise DestinationError(f"{location} lies outside {storage.shown(part.base)}: {NAME_A_FOLDER}")


@dataclass(frozen=True, slots=True)
class _Job:
    """One tar to index."""

    location: str
    size: int | None
    sidecar: str
    """Path or URL of the index to write."""
    tolerance: Tolerance
    key_rule: str
    options: storage.StorageOptions


def _index_all(executor: concurrent.futures.Executor, jobs: list[_Job], progress: Report) -> list[_Found]:
    """Index all tars concurrently; return the indexes in the order of the tars, or why one has none."""
    check_callable("progress", progress)
    futures = {executor.submit(_index_one, job): number for number, job in enumerate(jobs)}
    found: dict[int, _Found] = {}
    total = sum(job.size or 0 for job in jobs)
    bytes_done = samples_done = 0
    if progress:
        progress(ShardsProgress(0, len(jobs), 0, total, 0))
    for future in completed(futures):
        one = found[futures[future]] = future.result()
        if isinstance(one, ShardIndex):
            bytes_done += one.file.size
            samples_done += one.num_samples
        if progress:
            progress(ShardsProgress(len(found), len(jobs), bytes_done, max(total, bytes_done), samples_done))
    return [found[number] for number in range(len(jobs))]


def _index_one(job: _Job) -> _Found:
    """Index a tar; where the key rule is still to be decided, nothing is written."""
    how: dict[str, Any] = {"tolerance": job.tolerance, "key_rule": job.key_rule}
    try:
        if storage.is_remote(job.location):
            found = scan_remote.index_remote(job.location, job.size, job.options, **how)
        else:
            found = scan_local.scan_shard(Path(job.location), **how)
    except ShardDamagedError as error:
        if not job.tolerance.skip:
            raise scan_local.advised(error) from None
        return error
    if not found.evidence:
        index_target.write(job.sidecar, shard_index.dumps(found), job.options)
    return found


def _by_one_rule(
    executor: concurrent.futures.Executor, jobs: list[_Job], found: list[_Found]
) -> tuple[list[_Found], str]:
    """Decide on the key rule by the names of all tars; return what it gives, and the rule."""
    if jobs[0].key_rule != AUTO:
        return found, jobs[0].key_rule
    undecided = {number: one for number, one in enumerate(found) if isinstance(one, ShardIndex) and one.evidence}
    what = storage.shown(storage.split(jobs[0].location)[0])
    rule = decide(merge(one.evidence for one in undecided.values()), what)
    anew = [number for number, one in undecided.items() if one.key_rule != rule]
    made = executor.map(_index_one, [dataclasses.replace(jobs[number], key_rule=rule) for number in anew])
    settled = dict(zip(anew, made, strict=True))
    for number in undecided.keys() - settled.keys():
        index_target.write(jobs[number].sidecar, shard_index.dumps(undecided[number]), jobs[number].options)
    return [settled.get(number, one) for number, one in enumerate(found)], rule


def _sizes(
    executor: concurrent.futures.Executor, locations: list[str], folder: str | None, options: storage.StorageOptions
) -> list[int | None]:
    """Return the bytes of each tar, where its store tells them; of the tars of a folder, by a list of it."""
    listed: dict[str, int | None] = {}
    if folder is not None and storage.is_remote(folder) and not storage.is_read_only(folder):  # the web lists no sizes
        listed.update({storage.join(folder, entry.name): entry.size for entry in storage.list(folder, options)})
    others = [location for location in locations if location not in listed]
    listed.update(zip(others, executor.map(_size, others, [options] * len(others)), strict=True))
    return [listed[location] for location in locations]


def _size(location: str, options: storage.StorageOptions) -> int | None:
    try:
        size = storage.stat(location, options).size
    except FileNotFoundError as error:
        raise NotFoundError(f"shard {storage.shown(location)} does not exist") from error
    return None if size < 0 else size


def _notes(indexes: list[ShardIndex], key: str) -> dict[str, Any]:
    """Return the notes of index.json on the whole data set: fields, payload bytes, skipped entries."""
    fields: set[str] = set()
    payload = 0
    skipped: Counter[str] = Counter()
    for one in indexes:
        fields.update(extension.lower() for extension in one.extensions)
        payload += int(one.sizes.sum())
        skipped.update(one.skipped)
    notes: dict[str, Any] = {"source": {"kind": "tar"}, "fields": sorted(fields), "payload_bytes": payload}
    notes["with_checksums"] = sum(one.checksums is not None for one in indexes)
    if skipped:
        notes["skipped"] = dict(sorted(skipped.items()))
    if scattered := sum(one.num_scattered for one in indexes):
        notes["scattered"] = scattered
    if key != FIRST_DOT:
        notes["key_rule"] = key
    return notes


def _tars(shards: Manifest | list[str], options: storage.StorageOptions, *, together: bool) -> list[str]:
    """Return the locations of the tars; ``together`` requires that all lie in one folder."""
    if isinstance(shards, Manifest):
        locations = [shards.location(number) for number in range(len(shards.counts))]
        if together:
            _refuse_links(shards)
    else:
        locations = shards
        if len(locations) == 1 and not is_tar(storage.split(locations[0])[1]):
            folder = locations[0]
            locations = tars_in(folder, options)
            if not locations:
                hint = tars_below(folder, options)
                raise NotFoundError(f"{storage.shown(folder)} holds no .tar files{hint}")
    refuse_data_sets(locations)
    for location in locations:
        if not storage.is_remote(location) and not Path(location).is_file():
            raise NotFoundError(f"shard {location} does not exist")
    folders = sorted({storage.split(location)[0] for location in locations})
    if together and len(folders) > 1:
        raise IndexFormatError(
            f"the shards lie in {len(folders)} folders ({storage.shown(folders[0])}, {storage.shown(folders[1])}, "
            f"...): index one folder at a time, or name a folder for the indexes of all with `--output`"
        )
    return locations
