"""Index tars of other tools: `index` finds their samples and writes the shard indexes and ``index.json``."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from wdsdist import storage
from wdsdist._util.files import writing
from wdsdist._util.pools import pool
from wdsdist._util.validation import check_callable, check_integer
from wdsdist.errors import (
    ArgumentError,
    DestinationError,
    DestinationExistsError,
    IndexFormatError,
    NotFoundError,
    ShardDamagedError,
    StorageError,
    given,
    printable,
)  # fmt: skip
from wdsdist.shards import index as shard_index
from wdsdist.shards import scan
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.interop import find_splits, tars_in, warn_of_splits
from wdsdist.shards.manifest import Manifest, Shard, check_location, index_json
from wdsdist.shards.open import Location, expand
from wdsdist.shards.progress import ShardsProgress, reported
from wdsdist.shards.scan import check_fields
from wdsdist.shards.tar import FIRST_DOT, is_tar
from wdsdist.shards.tar.member_names import check_rule

_OUTPUT = "name a local folder for the indexes as output"

_log = logging.getLogger("wdsdist")

Line = dict[str, str | None]
"""One line of the report: what was left out, and why."""


def index(
    shards: Location | Iterable[Location],
    *,
    output: Location | None = None,
    name: str | None = None,
    key: str = FIRST_DOT,
    on_error: Literal["raise", "skip"] = "raise",
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[ShardsProgress], None] | None = None,
) -> Manifest:
    """Index tars from other tools: write an index next to each tar, and ``index.json`` in their folder.

    If remote tars have large members, only their headers are read, and they have no digest; other remote tars are
    streamed once. Each worker decompresses compressed tars into a temporary file. If the members of a sample are
    scattered over its tar, they are read in place, and a warning says so.

    Args:
        shards: a folder or URL, one tar, a pattern or a list of tars, as `wdsdist.open` takes them, all in one folder.
        output: another local folder for the indexes and the ``index.json``, which then names the tars by full paths or
            URLs: for shards in read-only places or in several folders. Open the data set by this folder, with
            ``allow_elsewhere=True``.
        name: write ``index-NAME.json`` instead of ``index.json``, so that a folder holds several data sets, such as
            splits. Open the data set by this file.
        key: the key rule, which cuts base names of members into keys and extensions: ``"first-dot"``, the convention;
            ``"last-dot"``; or a regular expression of the key, up to a dot. The indexes record any rule other than the
            first dot.
        on_error: ``"raise"`` stops at the first tar that cannot be read without losing samples; ``"skip"`` leaves out
            ambiguous samples, such as a sample with the same member twice, and damaged tars. ``index-report.jsonl``
            lists each with its reason; ``manifest.extra["left_out"]`` is their number.
        workers: how many shards are read at once; by default one per core, or 16 of a remote store.
        storage_options: passed to fsspec for the stores that ``shards`` names, as `wdsdist.open` takes them.
        progress: called with a `ShardsProgress` before the first shard and after each shard.

    Returns the manifest. If anything is raised, no ``index.json`` is written. Tars without a single sample are
    indexed with a warning.

    Raises:
        ShardDamagedError: a tar cannot be read without losing samples.
        NotFoundError: a tar does not exist, or a folder holds no tars, or shards of an interrupted packing.
        IndexFormatError: a tar has a name that an index.json cannot hold, such as one with a control character; or the
            tars are in several folders, or a tar is named twice.
        DestinationExistsError: the folder has an ``index.json`` of other tars.
        DestinationError: the indexes cannot be written.
        StorageError: a store cannot be read.
        ArgumentError: an option has a value that cannot work, or the names do not fit the key rule.
    """
    check_rule(key)
    check_integer("workers", 1 if workers is None else workers, 1)
    check_callable("progress", progress)
    if on_error not in ("raise", "skip"):
        raise ArgumentError(f'on_error is {on_error!r}: it must be "raise" or "skip"', argument="on_error")
    file_name = index_json.file_name(name)
    spelled = expand(shards, storage_options)
    options = storage.named(storage_options, spelled)
    is_folder = len(spelled) == 1 and not is_tar(storage.split(spelled[0])[1])
    locations = tars_in(spelled[0], options) if is_folder else spelled
    if not locations:
        web = ": the web lists no folder, so name tars, as in {0000..0099}.tar"
        advice = web if storage.is_read_only(spelled[0]) else ", or does not exist"
        raise NotFoundError(f"{storage.shown(spelled[0])} holds no .tar files{advice}")
    if is_folder and name is None:
        advice = f"`wdsdist index {storage.shown(spelled[0])} --splits` makes one each"
        warn_of_splits(spelled[0], _names(locations), options, advice)
    target, names = _target(locations, output)
    origin = storage.join(target, file_name)
    known = _known(origin, locations, options)
    index_tar = functools.partial(_index_tar, target=target, skip=on_error == "skip", key=key, options=options)
    with pool(workers, len(locations), remote=any(map(storage.is_remote, locations))) as executor:
        entries = [*executor.map(functools.partial(storage.stat, options=options), locations)]
        sizes = [entry.size for entry in entries]
        futures = {executor.submit(index_tar, *job): n for n, job in enumerate(zip(locations, sizes, strict=True))}
        indexed = dict(reported(futures, sizes, lambda result: result[0].num_samples if result[0] else 0, progress))
    pairs = [(shard, index) for n, shard in enumerate(names) if (index := indexed[n][0]) is not None]
    check_fields(storage.shown(target), (index for _, index in pairs))
    left_out = [line for n in range(len(names)) for line in indexed[n][1]]
    if left_out and not any(index.num_samples for _, index in pairs):
        raise ShardDamagedError(
            f"no sample for {storage.shown(target)} is left: {left_out[0]['reason']}: fetch the tars again"
        )
    notes = _notes([index for _, index in pairs], key)
    if any(not index.file.sha256 for _, index in pairs):  # tars of which headers alone were read
        notes["stamps"] = hashlib.sha256("\n".join(entry.stamp for entry in entries).encode()).hexdigest()[:16]
    if left_out:
        notes |= {"left_out": len(left_out), "on_error": on_error}
    manifest = Manifest.of(
        target,
        (Shard.of(shard, index) for shard, index in pairs),
        name=name or storage.split(target)[1],
        extra=notes,
        client_options=options,
        is_named=output is not None,
        origin=origin,
    )
    if known is not None:  # no tar holds class names and generations
        notes |= {name: note for name, note in known.extra.items() if name == "classes"}
        before, now = len(known.counts), len(manifest.counts)
        if 0 < before <= now and manifest.prefix(before).fingerprint == known.fingerprint:
            lengths = sorted({*known.generations, now})
            notes |= {"generations": lengths} if len(lengths) > 1 else {}
        manifest = manifest.with_source(extra=notes)
    if left_out:
        lines = b"".join(json.dumps(line).encode() + b"\n" for line in left_out)
        _write(index_json.report_of(origin), lines, options)
    else:
        storage.delete(index_json.report_of(origin), options)
    _write(origin, index_json.dumps(manifest), options)
    where, scattered = storage.shown(target), notes.get("scattered")
    if not manifest.num_samples:
        _log.warning("%s has no samples", where)
    if scattered:
        _log.warning(
            f"{where}: the members of {scattered:,} samples do not follow one another in their tars: each is read "
            f"in place, and other tools see partial samples; `wdsdist pack` brings them together"
        )
    return manifest


def index_splits(shards: Location, *, storage_options: Mapping[str, Any] | None = None, **more: Any) -> list[Manifest]:
    """Index the tars of a folder as one data set for each split, ``index-SPLIT.json``, and return the manifests.

    The splits are those that timm's ``_info.json`` or Megatron-Energon's ``split.yaml`` gives, or those in the names of
    the tars, such as ``train-00.tar``. Raises what `index` raises, and `ArgumentError` if there are no splits, or a
    tar belongs to no split.
    """
    (folder,) = expand(shards, storage_options)
    options = storage.named(storage_options, [folder])
    splits = find_splits(folder, _names(tars_in(folder, options)), options)
    where = storage.shown(folder)
    if len(splits.keys() - {""}) < 2:
        raise ArgumentError(f"{where} has no splits, by names of tars or notes of timm or Energon: index it whole")
    if rest := splits.get(""):
        raise ArgumentError(f"{where} has {len(rest):,} tars of no split, such as {rest[0]}: index splits by patterns")
    return [
        index([storage.join(folder, tar) for tar in tars], name=split, storage_options=storage_options, **more)
        for split, tars in splits.items()
    ]


def _names(locations: Iterable[str]) -> list[str]:
    return [storage.split(location)[1] for location in locations]


def _target(locations: list[str], output: Location | None) -> tuple[str, list[str]]:
    """Return the folder for the indexes, and the names of the tars in its ``index.json``.

    That is the folder of all tars, or ``output``, in which the folders of the indexes are made.
    """
    if output is None:
        folder, *others = sorted({storage.split(location)[0] for location in locations})
        names = _names(locations)
        if others:
            raise IndexFormatError(
                f"the shards lie in {1 + len(others)} folders ({storage.shown(folder)}, {storage.shown(others[0])}, "
                f"...): index one folder at a time, or name a folder for the indexes of all as output"
            )
        if storage.is_read_only(folder):
            raise DestinationError(f"{storage.shown(folder)} cannot be written: {_OUTPUT}")
    else:
        folder, names = storage.normalise(output), locations
        if storage.is_remote(folder) or is_tar(storage.split(folder)[1]):
            raise ArgumentError(
                f"output is {storage.shown(folder)}: it must be a local folder, without the name of a tar",
                argument="output",
            )
    for name in names:
        try:
            check_location(folder, name, elsewhere=output is not None)
        except ValueError as error:
            raise IndexFormatError(f"the tar {storage.shown(name)!a} {error}: rename it") from None
    for location, count in Counter(locations).items() if output else ():
        if count > 1:
            raise IndexFormatError(f"{storage.shown(location)} is named {count} times: name each tar once")
        if storage.shown(location) != printable(location):
            raise ArgumentError(
                f"the URL of {storage.shown(location)} holds a password or a query, which index.json would keep: pass "
                f"the options of its store as storage_options"
            )
        parent = Path(folder, shard_index.index_name(location, folder)).parent
        with writing(parent):
            parent.mkdir(parents=True, exist_ok=True)
    return folder, names


def _known(location: str, locations: list[str], options: storage.StorageOptions) -> Manifest | None:
    """Load the existing index.json before it is overwritten; return ``None`` if none can be read.

    Raises `DestinationExistsError` if it lists further tars, which readers of the folder would lose, and
    `NotFoundError` if some of the tars belong to an append that was not finished.
    """
    try:
        manifest = index_json.load(location, options, allow_elsewhere=True)
    except (NotFoundError, IndexFormatError, StorageError):
        return None
    others = sorted({manifest.location(number) for number in range(len(manifest.counts))} - set(locations))
    if others:
        raise DestinationExistsError(
            f"{storage.shown(location)} lists {len(others):,} other tars, such as {storage.shown(others[0])}: index "
            f"all together, or write a second index with {given('name')} (index-NAME.json) or into another folder with "
            f"{given('output')}, or delete that file first"
        )
    folder, file_name = storage.split(location)
    try:
        before = json.loads(storage.read(storage.join(folder, index_json.PACK_RECORD), options))["jobs"][-1]["listed"]
    except (FileNotFoundError, StorageError, ValueError, LookupError, TypeError):
        return manifest
    if file_name == index_json.FILE_NAME and before == len(manifest.counts) < len(locations):
        raise NotFoundError(
            f"{storage.shown(folder)} has not been appended to to the end: run the same `wdsdist pack --append` again, "
            f"or delete {index_json.PACK_RECORD} there to index all tars as they are"
        )
    return manifest


def _write(location: str, content: bytes, options: storage.StorageOptions) -> None:
    """Write a file atomically. Raises `DestinationError` if it cannot be written."""
    try:
        storage.put(location, content, options)
    except (StorageError, NotFoundError) as error:
        raise DestinationError(f"{error}: {_OUTPUT}") from error


def _index_tar(
    location: str, size: int, *, target: str, skip: bool, key: str, options: storage.StorageOptions
) -> tuple[ShardIndex | None, list[Line]]:
    """Index a tar and write its index below the target; with ``skip``, a damaged tar has none.

    Also returns the lines of the report.
    """
    shard = storage.shown(storage.split(location)[1])
    try:
        if storage.is_remote(location):
            index = scan.scan_remote(location, size, options, skip=skip, key_rule=key)
        else:
            index = scan.scan_shard(Path(location), skip=skip, key_rule=key)
    except ShardDamagedError as error:
        if not skip:
            raise
        reason = str(error).replace(storage.shown(location), shard)  # the report may move with the tars
        return None, [{"key": None, "shard": shard, "reason": reason}]
    _write(storage.join(target, shard_index.index_name(location, target)), shard_index.dumps(index), options)
    return index, [{"key": key or None, "shard": shard, "reason": reason} for key, reason in index.left_out]


def _notes(indexes: list[ShardIndex], key: str) -> dict[str, Any]:
    """Return the notes of index.json on the whole data set: fields, payload bytes, skipped entries."""
    skipped = sum((Counter(index.skipped) for index in indexes), Counter[str]())
    scattered = sum(index.num_scattered for index in indexes)
    return {
        "source": {"kind": "tar"},
        "fields": sorted({extension.lower() for index in indexes for extension in index.extensions}),
        "payload_bytes": sum(int(index.sizes.sum()) for index in indexes),
        "with_checksums": sum(index.checksums is not None for index in indexes),
        **({"skipped": dict(sorted(skipped.items()))} if skipped else {}),
        **({"scattered": scattered} if scattered else {}),
        **({"key_rule": key} if key != FIRST_DOT else {}),
    }
