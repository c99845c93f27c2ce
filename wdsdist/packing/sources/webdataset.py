"""WebDataset shards as a source: to split, merge or shuffle them again.

The samples are those that the shards' indexes list, in their order. Two shards may hold the same key, for a sample is
told by its shard and place; one shard may not. So a key that an earlier shard holds gets the number of its own shard,
from 1: the ``0001`` of the third one becomes ``0001~3``. That depends on the source alone, not on which samples come to
share a shard.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.pools import pool
from wdsdist.curation import view_file
from wdsdist.errors import IndexFormatError, NotFoundError, ShardDamagedError, SourceError
from wdsdist.packing.payloads import BrokenPayload, FilePayload, Payload, Sample
from wdsdist.packing.sources.listing import FolderEntries
from wdsdist.packing.sources.source import Candidate, Contents, LeftOut, Source, SourceOptions, key_digest
from wdsdist.shards import interop, local_index, scan_local, spellings, tar_folders
from wdsdist.shards import manifest as manifests
from wdsdist.shards import open as catalog
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest, Shard
from wdsdist.shards.tar.fields import BLOCK, is_member_at
from wdsdist.shards.tar.member_names import escaped, is_text
from wdsdist.shards.tar.naming import FIRST_DOT, is_tar
from wdsdist.shards.tar.writer import PLAIN_NAME, SIZE_LIMIT, stored_size

# What lies beside shards and is none: indexes of many tools, tables, counts and notes.
_BESIDE = re.compile(
    r".*\.(?:(?:json|jsonl|csv|tsv)(?:\.gz)?|idx|wdsindex|ya?ml|md|txt|log|parquet|np[yz]|sha256|md5)|\..*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ShardSamples:
    """Some samples of WebDataset shards."""

    samples: list[tuple[str, str, str, list[tuple[str, int, int]]]]
    """Key, key in the shard, path of the shard, and (extension, offset, size) of each member."""

    def __iter__(self) -> Iterator[Sample]:
        for key, stored_key, path, members in self.samples:
            found: list[tuple[str, Payload]] = [
                (extension, FilePayload(path, size, offset)) for extension, offset, size in members
            ]
            extension, offset, size = members[0]
            if not _is_there(path, offset, f"{stored_key}.{extension}", size):
                reason = f"{path} does not hold sample {stored_key} where its index says: run `wdsdist index` again"
                found[0] = members[0][0], BrokenPayload(reason, members[0][2])
            yield key, found


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """All samples of a data set in WebDataset shards."""

    paths: list[str]
    indexes: list[ShardIndex]
    repeated: npt.NDArray[np.bool_]
    """bool [samples]: which of them carry the number of their shard in their key."""
    separator: str
    """Stands between the two."""
    starts: Int64s
    """int64 [shards + 1]: the number of each shard's first sample, and of all samples."""
    escape: bool = False
    """Whether keys hold dots, and are packed as `escaped` writes them."""
    left_out: tuple[LeftOut, ...] = ()
    """What of damaged shards is not among the samples."""

    def contents(self, notes: dict[str, Any]) -> Contents:
        """Return the samples; ``notes`` are what ``index.json`` says of the data set and stays true."""
        if skipped := sum((Counter(index.skipped) for index in self.indexes), Counter[str]()):
            notes = {**notes, "skipped": dict(sorted(skipped.items()))}
        count = int(self.repeated.sum())
        notes = {**notes, "renamed_keys": count} if count else notes
        facts = {"shards": f"{len(self.paths):,}"}
        layouts = functools.partial(_layouts, self.indexes)
        return Contents(
            sizes=self.sizes(), take=self.take, notes=notes, left_out=self.left_out, layouts=layouts, facts=facts
        )

    def sizes(self) -> Int64s:
        """int64 [samples]: bytes that each takes in a tar."""
        stored = np.concatenate([_stored_sizes(index) for index in self.indexes])
        longer = self.repeated * (len(self.separator) + len(str(len(self.paths))))
        for start, stop, index in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), self.indexes, strict=True):
            # An escape takes three bytes for one.
            more = 2 * np.diff(index.key_starts) if self.escape else 0
            for number in (start + _odd_samples(index, longer[start:stop] + more)).tolist():
                key, _, _, members = self._sample(number)
                stored[number] = sum(stored_size(f"{key}.{extension}", size) for extension, _, size in members)
        return stored

    def take(self, indices: Int64s) -> ShardSamples:
        """Return some samples, by their numbers."""
        return ShardSamples([self._sample(number) for number in indices.tolist()])

    def _sample(self, number: int) -> tuple[str, str, str, list[tuple[str, int, int]]]:
        shard = int(np.searchsorted(self.starts, number, side="right")) - 1
        index, place = self.indexes[shard], number - int(self.starts[shard])
        stored = index.key(place)
        key = packed_key(stored, escape=self.escape)
        if self.repeated[number]:
            key += f"{self.separator}{shard + 1}"
        return key, stored, self.paths[shard], index.members(place)


def find(candidate: Candidate, options: SourceOptions) -> Source | None:
    """List the samples of WebDataset shards; return ``None`` for what is none.

    Shards are what has an ``index.json`` that lists tars, a folder of tars, a brace pattern, and a list of locations.
    A single tar is taken for an archive, which gives the same samples, unless ``options.kind`` says otherwise.
    """
    source = candidate.given
    if isinstance(source, Manifest):
        return _source(source, options)
    if isinstance(source, (list, tuple)) and source and all(isinstance(one, (str, os.PathLike)) for one in source):
        return _source(_opened(source, options), options)
    if not isinstance(source, (str, os.PathLike)):
        return None
    try:
        shards: spellings.Shards | None = source
        if candidate.entries is not None or not spellings.is_pattern(os.fspath(source)):
            location = storage.normalise(source)
            shards = _shards_at(location, candidate, options) or (location if options.kind == "webdataset" else None)
        return None if shards is None else _source(_opened(shards, options), options)
    except IndexFormatError as error:  # of a view that is damaged, or a file that begins like one
        raise SourceError(str(error)) from error


def _opened(shards: spellings.Shards, options: SourceOptions) -> Manifest:
    return catalog.open_tolerant(
        shards, options.storage_options, skip=options.on_error == "skip", key=options.key or FIRST_DOT
    )


def _shards_at(location: str, candidate: Candidate, options: SourceOptions) -> spellings.Shards | None:
    """Return the WebDataset shards of a location: its tars, those of an ``index.json``, or a view; else none."""
    name, is_remote = storage.split(location)[1], storage.is_remote(location)
    if is_tar(name) or (is_remote and ("?" in location or Path(name).suffix not in ("", ".json"))):
        return None
    if candidate.entries is not None and not candidate.entries.holds(manifests.FILE_NAME):
        return _tars(location, candidate.entries, options)
    if not is_remote and candidate.entries is None and view_file.is_view(location, storage.named(None, [])):
        return location  # of one in a store only its user knows: such a URL may be anything
    index = location if location.endswith(".json") else storage.join(location, manifests.FILE_NAME)
    try:
        listed = manifests.load(index, options.storage_options)
    except (NotFoundError, IndexFormatError):
        return None  # or a file of another purpose with that name
    return listed if any(is_tar(storage.split(shard.name)[1]) for shard in listed.shards[:1]) else None


def _tars(location: str, entries: FolderEntries, options: SourceOptions) -> list[str]:
    """Return the tars in a local folder without an ``index.json``; where they look like several splits, warn of it.

    Raises `SourceError` where they lie among other files, which packing would pass over, and where others of them are
    still to be written.
    """
    if not any(map(is_tar, entries.texts())):
        return []
    try:
        tars = tar_folders.tars_in(location)
    except NotFoundError as error:
        raise SourceError(str(error)) from error
    others = sorted(name for name in entries.texts() if not is_tar(name) and not _BESIDE.fullmatch(name))
    if tars and others:
        raise SourceError(
            f"{location} holds {len(tars):,} tar files, such as {Path(tars[0]).name}, beside others, such as "
            f"{others[0]}: name the tars, for instance by a pattern, or move them away"
        )
    own = storage.named(options.storage_options, [location])
    advice = f"`wdsdist index {location} --splits` makes one each, to be packed by its index-SPLIT.json"
    interop.warn_of_splits(location, [Path(one).name for one in tars], own, advice)
    return tars


def _source(manifest: Manifest, options: SourceOptions) -> Source:
    skip = options.on_error == "skip"
    places = [manifest.part(number) for number in range(len(manifest.counts))]
    # A view's shards without a chosen sample are not even fetched.
    shards = [number for number, (part, _) in enumerate(places) if part.picks is None or manifest.counts[number]]
    jobs = [_job(manifest, number, skip) for number in shards]
    with pool(None, len(jobs)) as executor:
        found = list(executor.map(_index_of, jobs))
    location = storage.shown(manifest.base)
    left_out = [one for job, index in zip(jobs, found, strict=True) for one in _left_out(job, index)]
    paths = [str(job.path) for job, index in zip(jobs, found, strict=True) if isinstance(index, ShardIndex)]
    indexes = [_chosen(*places[shards[n]], index) for n, index in enumerate(found) if isinstance(index, ShardIndex)]
    starts = np.cumsum([0, *(index.num_samples for index in indexes)], dtype=np.int64)
    if not starts[-1]:
        reason = f": {left_out[0].reason}" if left_out else ""
        raise SourceError(f"{location} holds no sample in its {len(jobs):,} shards{reason}")
    notes: dict[str, Any] = {name: manifest.extra[name] for name in ("classes", "arrays") if name in manifest.extra}
    escape = manifest.key_rule != FIRST_DOT
    if escape:
        notes["source_key_rule"] = manifest.key_rule
    folders = frozenset(storage.split(manifest.location(number))[0] for number in shards)
    state = hashlib.sha256(f"webdataset\n{sorted(notes.items())}\n".encode())
    for index in indexes:
        state.update(f"{index.num_samples}\0{index.size}\0{index.sha256}\n".encode())
    if manifest.whole is not manifest:
        state.update(manifest.fingerprint.encode())

    def load(_: Source) -> Contents:
        renamed = repeated_keys(zip(paths, indexes, strict=True), escape=escape)
        return Shards(paths, indexes, *renamed, starts, escape, tuple(left_out)).contents(notes)

    return Source("webdataset", location, state.hexdigest(), load, folders)


@dataclass(frozen=True, slots=True)
class _Job:
    """One shard whose index is wanted."""

    path: Path
    listed: Shard
    base: str
    index_name: str
    listed_by: str
    """Name of the file that gives its number of samples."""
    skip: bool
    """Error policy that skips damaged samples and shards."""
    was_packed: bool
    """Whether wdsdist wrote the shard, which holds nothing of what its index says was left out."""
    key_rule: str
    problem: str = ""
    """Why it cannot be fetched."""
    index: ShardIndex | None = None
    """The index of a copy in the cache."""


def _job(manifest: Manifest, number: int, skip: bool) -> _Job:
    part, place = manifest.part(number)
    listed_by = part.extra.get("counts_from", manifests.FILE_NAME)
    path, problem, found = storage.local_path(manifest.location(number)), "", None
    try:
        if manifest.is_copied[number]:
            from wdsdist.cache.cached_shards import whole_copy

            path, found = whole_copy(manifest, number)
    except ShardDamagedError as error:
        if not skip:
            raise
        problem = str(error) if manifest.is_copied[number] else ""
    index = part.index_name(place)
    was_packed = "shuffle_seed" in part.extra
    return _Job(
        path, part.whole.shard(place), part.base, index, listed_by, skip, was_packed, part.key_rule, problem, found
    )


def _index_of(job: _Job) -> ShardIndex | ShardDamagedError:
    """Return the index of a shard, or the reason why it has none."""
    path, listed = job.path, job.listed
    try:
        if job.problem:
            raise ShardDamagedError(job.problem)
        try:
            index = job.index
            if index is None:
                index = local_index.shard_index(path, listed_in=job.base, name=job.index_name, key_rule=job.key_rule)
        except ShardDamagedError:
            if not job.skip:
                raise
            return scan_local.scan_shard(path, skip=True, key_rule=job.key_rule)
    except ShardDamagedError as error:
        if not job.skip:
            raise
        return error
    if listed.num_samples != index.num_samples or (listed.sha256 and listed.sha256 != index.file.sha256):
        advice = "verify" if job.listed_by == manifests.FILE_NAME else "index"
        raise SourceError(f"{path} is not as its {job.listed_by} says: run `wdsdist {advice}` on its folder")
    return index


def _chosen(manifest: Manifest, number: int, index: ShardIndex) -> ShardIndex:
    """Return the index of the samples that a view has of a shard. Raises `SourceError` where one is repeated."""
    if manifest.picks is None:
        return index
    numbers = manifest.picks.of_shard(number)
    repeated = np.flatnonzero(np.diff(numbers) == 0)
    if len(repeated):
        raise SourceError(
            f"the view repeats or explodes samples, such as {index.key(int(numbers[repeated[0]]))!r}, which have one "
            f"key each: pack the view that it was made of, and repeat or explode samples of what that gives"
        )
    return index.of_samples(numbers)


def _left_out(job: _Job, index: ShardIndex | ShardDamagedError) -> list[LeftOut]:
    """Return what is left out of a shard that is damaged; what its own packing left out is not in it."""
    name = job.path.name
    if isinstance(index, ShardDamagedError):
        return [LeftOut(name, str(index).replace(str(job.path), name))]
    if job.was_packed or not job.skip:
        return []
    return [LeftOut(key or name, f"{name}: {reason}") for key, reason in index.left_out]


def _layouts(indexes: list[ShardIndex]) -> dict[tuple[str, ...], int]:
    """Count the samples by their extensions."""
    found: Counter[tuple[str, ...]] = Counter()
    for index in indexes:
        codes = np.random.default_rng(0).integers(1, 2**63, len(index.extensions), dtype=np.uint64)
        sums = np.add.reduceat(codes[index.extension_ids], index.sample_starts[:-1]) if index.num_samples else codes[:0]
        for first, count in zip(*(part.tolist() for part in _firsts(sums)), strict=True):
            found[tuple(sorted(extension.lower() for extension, _, _ in index.members(first)))] += count
    return dict(found)


def _firsts(codes: npt.NDArray[np.uint64]) -> tuple[Int64s, Int64s]:
    """Return the place of the first of each code, and how often it occurs."""
    _, first, counts = np.unique(codes, return_index=True, return_counts=True)
    return first, counts


def _stored_sizes(index: ShardIndex) -> Int64s:
    """int64 [samples]: bytes that each takes in a tar where its members have plain headers."""
    stored = index.sizes + BLOCK + -index.sizes % BLOCK
    sums: Int64s = np.add.reduceat(stored, index.sample_starts[:-1]) if index.num_samples else stored
    return sums


def _odd_samples(index: ShardIndex, longer: Int64s) -> Int64s:
    """int64: the samples whose members may need more than plain headers, once keys have so many more bytes."""
    if not index.num_samples:
        return np.empty(0, np.int64)
    counts, lengths = np.diff(index.sample_starts), np.diff(index.key_starts) + longer
    letters = index.key_bytes
    first = letters[np.minimum(index.key_starts[:-1], len(letters) - 1)]
    odd = (np.maximum.reduceat(letters, index.key_starts[:-1]) > 127) | (first == ord(".")) | (first == ord("/"))
    extensions = [extension.encode() for extension in index.extensions]
    longest = np.array([len(one) + (0 if one.isascii() else PLAIN_NAME) for one in extensions])
    long = np.repeat(lengths, counts) + 1 + longest[index.extension_ids] > PLAIN_NAME
    odd |= np.logical_or.reduceat(long | (index.sizes >= SIZE_LIMIT), index.sample_starts[:-1])
    return np.flatnonzero(odd)


def _is_there(path: str, offset: int, name: str, size: int) -> bool:
    """Return whether a member lies at an offset, by its headers."""
    try:
        with open(path, "rb", buffering=0) as stream:  # noqa: PTH123 - half the cost of Path.open
            file = stream.fileno()
            return is_member_at(lambda start, stop: os.pread(file, stop - start, start), offset, name, size)
    except OSError:
        return True  # reading the data says what is wrong


def repeated_keys(
    shards: Iterable[tuple[str, ShardIndex]], *, escape: bool = False
) -> tuple[npt.NDArray[np.bool_], str]:
    """Return which samples have the key of an earlier one, and what stands between such a key and a shard's number.

    That is ``~``, or so many of them that no key holds it yet. Of ten million keys, one may be taken for another in
    some 400,000 data sets: it is renamed in vain. Raises `SourceError` for the first key that cannot be that of a file.
    """
    digests, separator = array("Q"), "~"
    for path, index in shards:
        letters, ends = index.key_bytes.tobytes(), index.key_starts.tolist()
        for start, stop in itertools.pairwise(ends):
            key = packed_key(letters[start:stop].decode("utf-8", "surrogateescape"), escape=escape)
            _check_key(key, path)
            while separator in key:
                separator += "~"
            digests.append(key_digest(key))
    listed = np.array(digests, np.uint64)
    order = np.argsort(listed, kind="stable")
    repeated = np.zeros(len(listed), np.bool_)
    repeated[order[1:]] = listed[order[1:]] == listed[order[:-1]]
    return repeated, separator


def _check_key(key: str, path: str) -> None:
    shown = key.encode("utf-8", "surrogateescape").decode(errors="backslashreplace")
    if ".." in key and ".." in re.split(r"[/\\]", key):
        raise SourceError(f"{path} holds sample {shown!r}, whose key leads out of the folder: rename it")
    if not is_text(key):
        raise SourceError(f"{path} holds sample {shown!r}, whose key is not UTF-8: pack it as an archive")


def packed_key(stored: str, *, escape: bool = False) -> str:
    """Return a key as it is packed: without leading ``./`` and slashes, and with its dots escaped where asked.

    >>> packed_key(".//./a/./b"), packed_key(".a")
    ('a/./b', '.a')
    """
    while stored.startswith(("./", "/")):
        stored = stored.removeprefix(".").lstrip("/")
    return escaped(stored) if escape else stored
