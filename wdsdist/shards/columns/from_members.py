"""Columns of one shard that are read from its members: small ones, and the headers of large ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist.errors import ExtraMissingError
from wdsdist.shards.columns import member_bytes
from wdsdist.shards.columns.column import Column, MadeColumn
from wdsdist.shards.columns.column_spec import ColumnSpec, Parse, Reading
from wdsdist.shards.columns.headers import Head, ShortError
from wdsdist.shards.columns.member_bytes import MemberBytes
from wdsdist.shards.index import ShardIndex, checksums

_NONE = np.zeros(0, np.int64)
_GROWTH = 16
"""Times as many bytes that are fetched of a member whose header goes on behind those that were."""


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Columns that are taken from the same members, each of which is parsed once."""

    parse: Parse
    first_bytes: int
    members: Int64s
    """int64 [samples]: the number of each sample's member, or -1."""
    readings: list[tuple[str, Reading]]


def read(
    location: str, index: ShardIndex, specs: Sequence[ColumnSpec], options: storage.StorageOptions, name: str
) -> dict[str, MadeColumn]:
    """Return columns of the samples of one shard, by name.

    Args:
        location: path or URL of the shard.
        index: of its members.
        specs: the columns.
        options: of its store.
        name: of the shard in errors.

    Raises `ShardNotFoundError`, `ShardDamagedError` and `StorageError`; a member that cannot be read is counted.
    """
    made: dict[str, MadeColumn] = {}
    groups: dict[tuple[Any, ...], _Group] = {}
    for spec in specs:
        reading = spec.reading(index.extensions)
        members = _members(index, () if reading is None else reading.extensions)
        if reading is None or not (members >= 0).any():
            made[spec.name] = MadeColumn(Column.of([None] * index.num_samples))
        elif reading.item_size:
            made[spec.name] = _num_items(index, members, reading.item_size)
        else:
            key = reading.extensions, reading.parse, reading.first_bytes
            group = groups.setdefault(key, _Group(reading.parse, reading.first_bytes, members, []))
            group.readings.append((spec.name, reading))
    if groups:
        with member_bytes.opened(location, index, options, name) as content:
            whole = np.concatenate([_there(group) for group in groups.values() if not group.first_bytes] or [_NONE])
            heads = [(index.offsets[_there(group)], _first_lengths(index, group)) for group in groups.values()]
            offsets, lengths = zip(checksums.needed(index, whole), *heads, strict=True)
            content.fill(np.concatenate(offsets), np.concatenate(lengths))
            content.check(index, whole, name)
            for group, (_, own) in zip(groups.values(), heads, strict=True):
                made |= _read_group(index, group, own, content)
    return made


def _members(index: ShardIndex, extensions: Sequence[str]) -> Int64s:
    """Return int64 [samples]: the member of each sample with the first of some extensions that it has, or -1."""
    samples = np.repeat(np.arange(index.num_samples), np.diff(index.sample_starts))
    members = np.full(index.num_samples, -1, np.int64)
    for wanted in reversed(extensions):
        is_wanted = np.array([*(one.lower() == wanted for one in index.extensions), False])
        found = np.flatnonzero(is_wanted[index.extension_ids])
        members[samples[found]] = found
    return members


def _num_items(index: ShardIndex, members: Int64s, item_size: int) -> MadeColumn:
    sizes = np.where(members >= 0, index.sizes[members], 0)
    counts, rest = np.divmod(sizes, item_size)
    missing = (members < 0) | (rest != 0)
    failed = np.flatnonzero(rest)
    first = f"{index.key(int(failed[0]))}: {sizes[failed[0]]:,} bytes are no whole items" if len(failed) else ""
    column = Column("int", np.where(missing, 0, counts), None, missing.view(np.uint8) if missing.any() else None)
    return MadeColumn(column, len(failed), first)


def _there(group: _Group) -> Int64s:
    return group.members[group.members >= 0]


def _first_lengths(index: ShardIndex, group: _Group) -> Int64s:
    sizes = index.sizes[_there(group)]
    return np.minimum(sizes, group.first_bytes) if group.first_bytes else sizes


def _read_group(index: ShardIndex, group: _Group, lengths: Int64s, content: MemberBytes) -> dict[str, MadeColumn]:
    """Parse the members of a group, fetching more of those whose headers are long, until all are read."""
    samples = np.flatnonzero(group.members >= 0)
    values: dict[str, list[Any]] = {name: [None] * index.num_samples for name, _ in group.readings}
    failed: dict[str, dict[int, str]] = {name: {} for name, _ in group.readings}
    while len(samples):
        short: dict[int, int] = {}
        members = group.members[samples]
        places = zip(index.offsets[members].tolist(), index.sizes[members].tolist(), lengths.tolist(), strict=True)
        for sample, member, (offset, size, length) in zip(samples.tolist(), members.tolist(), places, strict=True):
            there = content[offset : offset + (size if content.is_whole else length)]
            try:
                found = group.parse(Head(there, size, index.extensions[index.extension_ids[member]]))
            except ShortError as error:
                short[sample] = min(size, max(error.needed, _GROWTH * length))
                continue
            except (ValueError, ExtraMissingError) as error:
                for reasons in failed.values():
                    reasons[sample] = str(error)
                continue
            for name, reading in group.readings:
                try:
                    values[name][sample] = reading.value(found)
                except (ValueError, RecursionError) as error:
                    failed[name][sample] = str(error)
        samples, lengths = np.array(list(short), np.int64), np.array(list(short.values()), np.int64)
        content.fill(index.offsets[group.members[samples]], lengths)
    return {name: _made(index, values[name], reasons) for name, reasons in failed.items()}


def _made(index: ShardIndex, values: list[Any], failed: dict[int, str]) -> MadeColumn:
    first = min(failed, default=None)
    shown = "" if first is None else f"{index.key(first)}: {failed[first]}"
    return MadeColumn(Column.of(values), len(failed), shown)
