"""WebDataset shards as a source: to split, merge or shuffle them again.

The samples are those that the shards' indexes list, in their order. Two shards may hold the same key, because a sample
is identified by its shard and number; one shard may not. So a key that an earlier shard holds gets the number of its
own shard, from 1: the ``0001`` of the third one becomes ``0001~3``. That depends on the source alone, not on which
samples come to share a shard.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist._util.pools import Carried, pool
from wdsdist._util.validation import counted
from wdsdist.errors import IndexFormatError, NotFoundError, SourceError, printable
from wdsdist.packing.members import FilePayload, Payload, Sample, Samples
from wdsdist.packing.options import Options
from wdsdist.packing.sources.listing import count_members, tar_sizes
from wdsdist.packing.sources.source import Candidate, Contents, Source, key_digest, repeated
from wdsdist.packing.tables.table import NOTES, kind_of
from wdsdist.shards import interop, view_file
from wdsdist.shards import manifest as manifests
from wdsdist.shards import open as catalog
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.shard_indexes import shard_index
from wdsdist.shards.source import CacheOptions
from wdsdist.shards.tar import FIRST_DOT, is_tar
from wdsdist.shards.tar.member_names import escaped
from wdsdist.shards.tar.reader import is_member_at

_Stored = tuple[str, str, str, list[tuple[str, int, int]]]
"""A sample's key, its key in its shard, the path of the shard, and (extension, offset, size) of each member."""


def _samples(samples: list[_Stored]) -> Iterator[Sample]:
    for key, stored_key, path, members in samples:
        payloads: list[tuple[str, Payload]] = [
            (extension, FilePayload(path, size, offset)) for extension, offset, size in members
        ]
        extension, offset, size = members[0]
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as stream:  # noqa: PTH123 - it costs half
            read = functools.partial(_read, stream.fileno())  # reading the data says what is wrong with it
            if not is_member_at(read, offset, f"{stored_key}.{extension}", size):
                reason = f"{path} does not hold sample {stored_key} where its index says: run `wdsdist index` again"
                payloads[0] = extension, SourceError(reason)
        yield key, payloads


def _read(file: int, start: int, stop: int) -> bytes:
    return os.pread(file, stop - start, start)


def contents_of(paths: Sequence[str], indexes: Sequence[ShardIndex], notes: Mapping[str, Any]) -> Contents:
    """Return all samples of shards, by their paths and indexes.

    ``notes`` are the entries of the source's ``index.json`` that stay true.
    """
    escape = any(index.key_rule != FIRST_DOT for index in indexes)
    starts = np.cumsum([0, *(index.num_samples for index in indexes)], dtype=np.int64)
    # With ten million keys, one may be taken for another in some 400,000 data sets: it is renamed without need.
    digests, separator = array("Q"), "~"  # or so many of them that no key holds it
    for index in indexes:
        letters = index.key_bytes.tobytes()
        for begin, end in itertools.pairwise(index.key_starts.tolist()):
            key = packed_key(letters[begin:end].decode("utf-8", "surrogateescape"), escape=escape)
            while separator in key:
                separator += "~"
            digests.append(key_digest(key))
    renamed = {number for _, number in repeated(digests)}

    def sample(number: int) -> _Stored:
        shard = int(np.searchsorted(starts, number, side="right")) - 1
        index, row = indexes[shard], number - int(starts[shard])
        stored = index.key(row)
        suffix = f"{separator}{shard + 1}" if number in renamed else ""
        return packed_key(stored, escape=escape) + suffix, stored, paths[shard], index.members(row)

    sizes, tally, more = np.empty(starts[-1], np.int64), Counter[str](), len(separator) + len(str(len(paths)))
    for start, index in zip(starts.tolist(), indexes, strict=False):
        if not index.num_samples:
            continue
        own = tar_sizes(index, lambda row: sample(start + row)[0], more=more)  # noqa: B023 - called at once
        sizes[start : start + index.num_samples] = own
        tally += count_members(index)
    skipped = sum((Counter(index.skipped) for index in indexes), Counter[str]())
    left_out, facts = [pair for index in indexes for pair in index.left_out], {"shards": f"{len(paths):,}"}
    if left_out:
        such = printable(": ".join(left_out[0]))
        facts["left out by their indexes"] = f"{counted(len(left_out), 'sample')}, such as {such}"
    return Contents(
        sizes=sizes,
        take=lambda numbers: Samples(_samples, ([sample(number) for number in numbers.tolist()],)),
        notes={
            **notes,
            **({"skipped": dict(sorted(skipped.items()))} if skipped else {}),
            **({"renamed_keys": len(renamed)} if renamed else {}),
        },
        members=tally,
        facts=facts,
    )


def packed_key(stored: str, *, escape: bool = False) -> str:
    """Normalise the key of a sample for packing: drop ``./`` and needless slashes, and escape dots if they must be.

    >>> packed_key(".//./a/./b"), packed_key(".a")
    ('a/b', '.a')
    """
    if stored[:1] in "./" or "/." in stored or "//" in stored:
        stored = "/".join(part for part in stored.split("/") if part not in ("", "."))
    return escaped(stored) if escape else stored


def find(shards: Any, options: Options) -> Source | None:
    """List the samples of WebDataset shards; return ``None`` for another source.

    Shards are what has an ``index.json`` that lists tars, a folder of tars, a brace pattern, and a list of locations.
    A single tar is taken for an archive, which gives the same samples, unless ``options.kind`` says otherwise.
    """
    root = ""
    try:
        if isinstance(shards, (str, os.PathLike)):
            local = Candidate.of(shards)
            names = None if local is None else local.names
            if names is not None or not catalog.is_pattern(os.fspath(shards)):
                location = storage.normalise(shards)
                shards = _shards_at(location, names, options) or (location if options.kind == "webdataset" else None)
                root = location if names is not None and manifests.FILE_NAME not in names else ""
        elif isinstance(shards, (list, tuple)):
            shards = shards if shards and all(isinstance(shard, (str, os.PathLike)) for shard in shards) else None
        elif not isinstance(shards, Manifest):
            shards = None
        if shards is None:
            return None
        manifest = catalog.open(shards, storage_options=options.storage_options, key=options.key or FIRST_DOT)
        return replace(_source(manifest), root=root)
    except IndexFormatError as error:
        raise SourceError(str(error)) from error


def _shards_at(location: str, names: Sequence[str] | None, options: Options) -> catalog.Shards | None:
    """Return the WebDataset shards of a location: tars, the shards of an ``index.json``, or a view; or ``None``.

    ``names`` are of what lies in a local folder, where nothing but tables and notes may lie beside tars. Raises
    `SourceError` if other tars are still to be written.
    """
    name, is_remote = storage.split(location)[1], storage.is_remote(location)
    if is_tar(name) or (is_remote and ("?" in location or Path(name).suffix not in ("", ".json"))):
        return None
    if names is not None and manifests.FILE_NAME not in names:
        if not any(map(is_tar, names)):
            return None
        others = [name for name in names if not (is_tar(name) or name.startswith(".") or kind_of(name))]
        if not all(name.lower().endswith((*NOTES, ".npy", ".npz")) for name in others):
            return None
        try:
            tars = interop.tars_in(location)
        except NotFoundError as error:
            raise SourceError(str(error)) from error
        own = storage.named(options.storage_options, [location])
        advice = f"`wdsdist index {location} --splits` makes one each, to be packed by its index-SPLIT.json"
        interop.warn_of_splits(location, [Path(tar).name for tar in tars], own, advice)
        return tars
    if not is_remote and names is None and view_file.is_view(location, storage.named(None, [])):
        return location  # of one in a store only its user knows: such a URL may be anything
    index = location if location.endswith(".json") else storage.join(location, manifests.FILE_NAME)
    try:
        listed = manifests.load(index, options.storage_options)
    except (NotFoundError, IndexFormatError):
        return None  # or a file of another purpose with that name
    return listed if any(is_tar(storage.split(shard.name)[1]) for shard in listed.shards[:1]) else None


def _source(manifest: Manifest) -> Source:
    """Return the source of a data set. Raises `ShardDamagedError` for a damaged shard."""
    location = storage.shown(manifest.base)
    parts = [manifest.part(number) for number in range(len(manifest.counts))]
    # A view's shards without a chosen sample are not even fetched.
    numbers = [n for n, (part, _) in enumerate(parts) if part.picks is None or manifest.counts[n]]
    index_of = functools.partial(_index, Carried(manifest))
    with pool(None, max(1, len(numbers)), remote=any(manifest.is_copied[number] for number in numbers)) as executor:
        opened = dict(zip(numbers, executor.map(index_of, numbers), strict=True))

    paths, indexes, state = list[str](), list[ShardIndex](), hashlib.sha256()
    for number in numbers:
        (part, own_number), (path, index) = parts[number], opened[number]
        if part.picks is not None:
            samples = part.picks.of_shard(own_number)
            if len(twice := np.flatnonzero(np.diff(samples) == 0)):
                problem = f"the view repeats or explodes samples, such as {index.key(int(samples[twice[0]]))!r}"
                raise SourceError(f"{problem}, which have one key each: pack the view that it was made of")
            index = index.of_samples(samples)
        paths.append(str(path))
        indexes.append(index)
        state.update(f"{indexes[-1].num_samples}\0{index.size}\0{index.sha256}\n".encode())
    if not any(index.num_samples for index in indexes):
        raise SourceError(f"{location} holds no sample in its {len(numbers):,} shards")
    notes: dict[str, Any] = {name: manifest.extra[name] for name in ("classes", "arrays") if name in manifest.extra}
    if manifest.key_rule != FIRST_DOT:
        notes["source_key_rule"] = manifest.key_rule
    state.update(f"{sorted(notes.items())}\n".encode())
    if manifest.whole is not manifest:
        state.update(manifest.fingerprint.encode())

    folders = frozenset(storage.split(manifest.location(number))[0] for number in numbers)
    load = functools.partial(contents_of, paths, indexes, notes)
    return Source("webdataset", location, state.hexdigest(), load, folders)


def _index(carried: Carried[Manifest], number: int) -> tuple[Path, ShardIndex]:
    """Return the path and the index of a shard, of a copy if need be."""
    manifest = carried.value
    part, own = manifest.part(number)
    if not manifest.is_copied[number]:
        return storage.local_path(manifest.location(number)), shard_index(part.whole, own)
    from wdsdist.cache.chunk_cache import ChunkCache
    from wdsdist.cache.copied_shard import CopiedShard

    cache, shard = ChunkCache(CacheOptions()), CopiedShard(manifest, number)
    cache.fetch_all(shard)
    with contextlib.closing(cache.open(shard, cache.deadline())) as copy:
        return cache.path(shard), copy.index  # the tar is at the start of the file
