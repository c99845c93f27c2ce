"""Columns of one shard that are read from its members: all of small ones, and the headers of large ones.

A local shard is mapped. What is read of a remote or compressed one is fetched into a temporary cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.host import temporary_dir
from wdsdist.curation.arrays import from_values
from wdsdist.curation.column_spec import ColumnSpec, Reading
from wdsdist.curation.tables import pyarrow
from wdsdist.errors import ExtraMissingError
from wdsdist.samples.images.header import Head, ShortError
from wdsdist.samples.open_source import open_source
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.source import CacheOptions, OpenShard

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_GROWTH = 16
"""Factor of the bytes that are fetched of a member whose header is longer than the bytes so far."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardColumn:
    """One column of the samples of one shard."""

    values: Any
    """An array, one value for each sample."""
    num_failed: int = 0
    """Samples whose member could not be read as asked for; their values are missing."""
    first_failed: str = ""
    """The first of these samples, and the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Columns that are taken from the same members, each of which is parsed once."""

    first: Reading
    members: Int64s
    """int64 [samples]: the number of each sample's member, or -1."""
    readings: list[tuple[str, Reading]]


def read(manifest: Manifest, number: int, index: ShardIndex, specs: Sequence[ColumnSpec]) -> dict[str, ShardColumn]:
    """Return columns of the samples of one shard, by name; a member that cannot be read is counted.

    Raises `NotFoundError`, `ShardDamagedError` and `StorageError`.
    """
    made: dict[str, ShardColumn] = {}
    groups: dict[Any, _Group] = {}
    for spec in specs:
        reading = spec.reading(index.extensions)
        members = _members(index, () if reading is None else reading.extensions)
        if reading is None or not (members >= 0).any():
            made[spec.name] = ShardColumn(pyarrow().nulls(index.num_samples))
        elif reading.item_size:
            made[spec.name] = _num_items(index, members, reading.item_size)
        else:
            key = reading.extensions, reading.parse, reading.first_bytes
            groups.setdefault(key, _Group(reading, members, [])).readings.append((spec.name, reading))
    if not groups:
        return made
    whole = [group.members[group.members >= 0] for group in groups.values() if not group.first.first_bytes]
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        source = open_source(manifest, CacheOptions(Path(folder)))
        shard = source.open({number: lambda index: np.concatenate([np.zeros(0, np.int64), *whole])})[number]
        for members in whole:
            shard.verify(members)
        for group in groups.values():
            if group.first.first_bytes:
                headers = group.members[group.members >= 0]
                shard.fetch_ranges(index.offsets[headers], np.minimum(index.sizes[headers], group.first.first_bytes))
            made |= _read_group(shard, group)
    return made


def _members(index: ShardIndex, extensions: Sequence[str]) -> Int64s:
    """Return int64 [samples]: the member of each sample with the first of some extensions that it has, or -1."""
    samples = np.repeat(np.arange(index.num_samples), np.diff(index.sample_starts))
    members = np.full(index.num_samples, -1, np.int64)
    for wanted in reversed(extensions):
        is_wanted = np.array([*(one.lower() == wanted for one in index.extensions), False])
        places = np.flatnonzero(is_wanted[index.extension_ids])
        members[samples[places]] = places
    return members


def _num_items(index: ShardIndex, members: Int64s, item_size: int) -> ShardColumn:
    sizes = np.where(members >= 0, index.sizes[members], 0)
    counts, rest = np.divmod(sizes, item_size)
    failed = np.flatnonzero(rest)
    first = f"{index.key(int(failed[0]))}: {sizes[failed[0]]:,} bytes are not whole items" if len(failed) else ""
    return ShardColumn(pyarrow().array(counts, mask=(members < 0) | (rest != 0)), len(failed), first)


def _read_group(shard: OpenShard, group: _Group) -> dict[str, ShardColumn]:
    """Parse the members of a group, and fetch more of those whose headers are long, until all are read."""
    index = shard.index
    samples = np.flatnonzero(group.members >= 0)
    lengths = index.sizes[group.members[samples]]
    lengths = np.minimum(lengths, group.first.first_bytes) if group.first.first_bytes else lengths
    values: dict[str, list[Any]] = {name: [None] * index.num_samples for name, _ in group.readings}
    failed: dict[str, dict[int, str]] = {name: {} for name, _ in group.readings}
    while len(samples):
        short: dict[int, int] = {}
        members = group.members[samples]
        places = zip(index.offsets[members].tolist(), index.sizes[members].tolist(), lengths.tolist(), strict=True)
        for sample, member, (offset, size, length) in zip(samples.tolist(), members.tolist(), places, strict=True):
            present = shard.content[offset : offset + length]
            try:
                parsed = group.first.parse(Head(present, size, index.extensions[index.extension_ids[member]]))
            except ShortError as error:
                short[sample] = min(size, max(error.needed, _GROWTH * length))
                continue
            except (ValueError, ExtraMissingError) as error:
                for reasons in failed.values():
                    reasons[sample] = str(error)
                continue
            for name, reading in group.readings:
                try:
                    values[name][sample] = reading.value(parsed)
                except (ValueError, RecursionError) as error:
                    failed[name][sample] = str(error)
        samples, lengths = np.array(list(short), np.int64), np.array(list(short.values()), np.int64)
        shard.fetch_ranges(index.offsets[group.members[samples]], lengths)
    made = {}
    for name, reasons in failed.items():
        first = min(reasons, default=None)
        shown = "" if first is None else f"{index.key(first)}: {reasons[first]}"
        made[name] = ShardColumn(from_values(values[name]), len(reasons), shown)
    return made
