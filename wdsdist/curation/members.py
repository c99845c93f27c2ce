"""Columns of one shard that are read from its members: all of small ones, and the headers of large ones.

A local shard is mapped. Ranges of a remote one are fetched into a sparse temporary file, several members by one
request.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.host import temporary_dir
from wdsdist.curation.arrays import from_values
from wdsdist.curation.column_spec import ColumnSpec, Reading
from wdsdist.curation.tables import pyarrow
from wdsdist.errors import ExtraMissingError, StorageError
from wdsdist.samples.images.header import Head, ShortError
from wdsdist.shards import scan_local
from wdsdist.shards.index import ShardIndex, checksums
from wdsdist.shards.tar.naming import is_compressed
from wdsdist.storage import compression

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

_GROWTH = 16
"""Factor of the bytes that are fetched of a member whose header is longer than the bytes so far."""
_WORTH_A_REQUEST = 64 << 10
"""Bytes between two ranges that are fetched with them: with several requests at once, one more costs about as much."""
_LONGEST = 16 << 20
"""Bytes of a range that is not joined with the next one."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardColumn:
    """One column of the samples of one shard."""

    values: Any
    """An array, one value for each sample."""
    num_failed: int = 0
    """Samples whose member could not be read as asked for; their values are missing."""
    first_failed: str = ""
    """The first of these samples, and the reason."""


class MemberBytes:
    """The tar of one shard; a remote one has the bytes that `fill` was asked for.

    Attributes:
        is_whole: whether all bytes are present.
    """

    def __init__(self, path: Path, size: int, remote: tuple[str, storage.StorageOptions] | None) -> None:
        self._path, self._size, self._remote = path, size, remote
        self.is_whole = remote is None
        with path.open("rb") as stream:
            # Never closed: the traceback of a header that could not be read may still refer to it.
            self._content = memoryview(mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ))

    def __getitem__(self, place: slice) -> memoryview:
        return self._content[place]

    def fill(self, offsets: Int64s, lengths: Int64s, *, again: bool = False) -> None:
        """Fetch the bytes from each offset on, also those that are present if ``again``."""
        if self._remote is None or (self.is_whole and not again) or not len(offsets):
            return
        location, options = self._remote
        with self._path.open("r+b") as stream:
            try:
                storage.read_ranges(location, coalesced(offsets, lengths), stream.fileno(), options, size=self._size)
            except StorageError as error:
                if error.kind != "ranges":  # such a server gives whole files only
                    raise
                storage.read_ranges(location, [(0, self._size)], stream.fileno(), options, size=self._size)
                self.is_whole = True

    def check(self, index: ShardIndex, members: Int64s, name: str) -> None:
        """Verify members that are present; fetch wrong ones once more.

        Raises `ShardDamagedError`, with the ``name`` of the shard, if they are wrong again.
        """
        wrong = checksums.wrong(index, members, self)
        if len(wrong) and self._remote is not None:
            self.fill(*checksums.needed(index, wrong), again=True)
            wrong = checksums.wrong(index, wrong, self)
        if len(wrong):
            raise checksums.damage(index, int(wrong[0]), name)


def coalesced(offsets: Int64s, lengths: Int64s) -> list[tuple[int, int]]:
    """Return the ranges (start, stop) to fetch for some bytes, joined if little lies between them.

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
def opened(manifest: Manifest, number: int, index: ShardIndex) -> Iterator[MemberBytes]:
    """Open the tar of a shard; nothing of a remote one is fetched yet, unless it is compressed.

    Raises `NotFoundError`, `ShardDamagedError` and `StorageError`.
    """
    location, options, name = manifest.location(number), manifest.client_options, manifest.shown_name(number)
    if not storage.is_remote(location):
        local = Path(storage.local_path(location))
        with scan_local.decompressed(local, label=name, tar_size=index.size) as path:
            yield MemberBytes(path, index.size, None)
        return
    with tempfile.TemporaryDirectory(prefix="wdsdist-", dir=temporary_dir()) as folder:
        path = Path(folder) / "shard.tar"
        if is_compressed(storage.split(location)[1]):
            storage.fetch(location, Path(folder) / "compressed", options, size=index.file.size)
            compression.unpack(Path(folder) / "compressed", path, size=index.size, label=name)
            yield MemberBytes(path, index.size, None)
            return
        with path.open("wb") as stream:
            stream.truncate(index.size)
        yield MemberBytes(path, index.size, (location, options))


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
    if groups:
        with opened(manifest, number, index) as content:
            for group in groups.values():
                present = group.members[group.members >= 0]
                if group.first.first_bytes:
                    content.fill(index.offsets[present], np.minimum(index.sizes[present], group.first.first_bytes))
                else:
                    content.fill(*checksums.needed(index, present))
                    content.check(index, present, manifest.shown_name(number))
                made |= _read_group(index, group, content)
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


def _read_group(index: ShardIndex, group: _Group, content: MemberBytes) -> dict[str, ShardColumn]:
    """Parse the members of a group, and fetch more of those whose headers are long, until all are read."""
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
            present = content[offset : offset + (size if content.is_whole else length)]
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
        content.fill(index.offsets[group.members[samples]], lengths)
    made = {}
    for name, reasons in failed.items():
        first = min(reasons, default=None)
        shown = "" if first is None else f"{index.key(first)}: {reasons[first]}"
        made[name] = ShardColumn(from_values(values[name]), len(reasons), shown)
    return made
