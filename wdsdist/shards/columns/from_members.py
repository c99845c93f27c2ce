"""Columns of one shard that are read from its members: small ones, and the headers of large ones.

A local shard is mapped; of a remote one, ranges are fetched where little of it is needed.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.host import temporary_dir
from wdsdist.errors import ExtraMissingError, StorageError
from wdsdist.shards import scan_local
from wdsdist.shards.columns.column import Column, MadeColumn
from wdsdist.shards.columns.column_spec import ColumnSpec, Parse, Reading
from wdsdist.shards.columns.headers import Head, ShortError
from wdsdist.shards.index import ShardIndex, checksums
from wdsdist.shards.tar import is_compressed
from wdsdist.storage import compression

_NONE = np.zeros(0, np.int64)
_GROWTH = 16
"""Times as many bytes that are fetched of a member whose header goes on behind those that were."""
_WORTH_A_REQUEST = 64 << 10
"""Bytes between two ranges that are fetched rather than asked for by two requests: with several requests at once, the
latency of one costs about as much."""
_LONGEST = 16 << 20
"""Bytes of a range that is not joined with the next one, which bounds memory."""


class MemberBytes:
    """The tar of one shard, whose bytes are there as far as `fill` was asked for them."""

    is_whole = True
    """Whether all bytes are there."""

    def __init__(self, content: memoryview) -> None:
        self._content = content

    def fill(self, offsets: Int64s, lengths: Int64s) -> None:
        """Let the bytes from ``offsets`` on be there. Here they all are."""

    def check(self, index: ShardIndex, members: Int64s, name: str) -> None:
        """Verify members whose `checksums.needed` bytes are there; fetch those that are wrong once more.

        Raises `ShardDamagedError`, with the ``name`` of the shard, where they are wrong again, and what `fill` raises.
        """
        wrong = checksums.wrong(index, members, self)
        if len(wrong):
            self._fetch(coalesced(*checksums.needed(index, wrong)))
            wrong = checksums.wrong(index, wrong, self)
        if len(wrong):
            raise checksums.damage(index, int(wrong[0]), name)

    def _fetch(self, ranges: list[tuple[int, int]]) -> None:
        """Download byte ranges again, also those that are there; a local tar has nothing to download."""

    def __getitem__(self, place: slice) -> memoryview:
        return self._content[place]


class RemoteBytes(MemberBytes):
    """A sparse temporary file of the size of a remote tar, into which ranges are fetched, or all of it."""

    def __init__(self, content: memoryview, path: Path, location: str, options: storage.StorageOptions) -> None:
        super().__init__(content)
        self._path, self._location, self._options = path, location, options
        self._fetched = 0
        self.is_whole = False

    def fill(self, offsets: Int64s, lengths: Int64s) -> None:
        """Fetch the bytes from ``offsets`` on; all of the shard where it would be more than half of it.

        Raises `NotFoundError` and `StorageError`.
        """
        if self.is_whole:
            return
        ranges = coalesced(offsets, lengths)
        self._fetched += sum(stop - start for start, stop in ranges)
        if 2 * self._fetched <= len(self._content):
            self._fetch(ranges)
        else:
            self._fetch_whole()

    def _fetch(self, ranges: list[tuple[int, int]]) -> None:
        try:
            with self._path.open("r+b") as file:
                storage.read_ranges(self._location, ranges, file.fileno(), self._options, size=len(self._content))
        except StorageError as error:
            if error.kind != "ranges":  # the server gives the whole only
                raise
            self._fetch_whole()

    def _fetch_whole(self) -> None:
        storage.fetch(self._location, self._path, self._options, size=len(self._content))
        self.is_whole = True


def coalesced(offsets: Int64s, lengths: Int64s) -> list[tuple[int, int]]:
    """Return the ranges (start, stop) to fetch for some bytes, those with little between them as one.

    >>> coalesced(np.array([1 << 20, 100, 0]), np.array([10, 50, 20]))
    [(0, 150), (1048576, 1048586)]
    """
    ranges: list[tuple[int, int]] = []
    order = np.argsort(offsets, kind="stable")
    for start, length in zip(offsets[order].tolist(), lengths[order].tolist(), strict=True):
        if not length:
            continue
        if ranges and start - ranges[-1][1] <= _WORTH_A_REQUEST and start + length - ranges[-1][0] <= _LONGEST:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], start + length)
        else:
            ranges.append((start, start + length))
    return ranges


@contextlib.contextmanager
def opened(location: str, index: ShardIndex, options: storage.StorageOptions, name: str) -> Iterator[MemberBytes]:
    """Open the tar of a shard that has an index; of a remote one nothing is fetched yet, unless it is compressed.

    ``name`` is that of the shard in errors. Raises `NotFoundError`, `ShardDamagedError` and `StorageError`.
    """
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder, contextlib.ExitStack() as stack:
        is_sparse = storage.is_remote(location) and not is_compressed(storage.split(location)[1])
        path = Path(folder) / "shard.tar"
        if is_sparse:
            with path.open("wb") as stream:
                stream.truncate(index.size)
        elif storage.is_remote(location):
            compressed = Path(folder) / "shard.compressed"
            storage.fetch(location, compressed, options, size=index.file.size)
            compression.unpack(compressed, path, size=index.size, label=name)
            compressed.unlink()
        else:
            local = Path(storage.local_path(location))
            path = stack.enter_context(scan_local.decompressed(local, label=name, tar_size=index.size))
        with path.open("rb") as stream:
            # Never closed by name: a header that could not be read may still be looked at by its error.
            content = memoryview(mmap.mmap(stream.fileno(), index.size, access=mmap.ACCESS_READ))
        yield RemoteBytes(content, path, location, options) if is_sparse else MemberBytes(content)


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

    ``name`` is that of the shard in errors; a member that cannot be read is counted. Raises `NotFoundError`,
    `ShardDamagedError` and `StorageError`.
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
        with opened(location, index, options, name) as content:
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
