"""Read the columns of a data set: from the indexes of its shards, from column files, or from small members on demand.

Every data set has the columns ``key``, ``shard``, ``bytes``, ``<ext>.bytes``, ``<ext>.tokens`` of arrays that were
packed, and if it has classes, ``cls`` and ``cls.name``. Sizes need numpy alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.arrow import concatenated, filled, pyarrow
from wdsdist._util.validation import check_column, hint
from wdsdist.curation import column_file
from wdsdist.curation.column_file import BYTES, KEY, SHARD, StoredColumn, is_free
from wdsdist.errors import ArgumentError, DestinationError
from wdsdist.packing.tables.table import from_values
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest.listing import PARTS
from wdsdist.shards.shard_indexes import extensions_in, shard_index, shard_indexes

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

CLASS, CLASS_NAME = "cls", "cls.name"


def names(manifest: Manifest) -> list[str]:
    """Return the names of the columns: the built-in ones, then those in files; of several data sets the common ones."""
    known: list[list[str]] = []
    for part in manifest.data_sets:
        of_indexes = _built_in(part)
        others = [name for name in column_file.names(part) if name not in (*of_indexes, *PARTS)]
        known.append([*of_indexes, *others, *(PARTS if part.has_parts else ())])
    return [name for name in known[0] if all(name in other for other in known)]


def _built_in(part: Manifest) -> dict[str, int]:
    """Return the columns that a data set has without files; of a size, the bytes that it counts as one, else 0."""
    extensions = extensions_in(part)
    known = {KEY: 0, SHARD: 0, BYTES: 1} | {f"{extension}.bytes": 1 for extension in extensions}
    for extension in extensions:
        note = part.extra.get("arrays", {}).get(extension)
        if note and note["shape"] and (items := int(np.prod(note["shape"][1:], dtype=np.int64))):
            known[f"{extension}.tokens"] = np.dtype(note["dtype"]).itemsize * items
    if CLASS in extensions_in(part.whole):
        known |= dict.fromkeys([CLASS, CLASS_NAME] if part.extra.get("classes") else [CLASS], 0)
    return known


def unknown(manifest: Manifest, name: str, fields: Iterable[str] = ()) -> ArgumentError:
    """Return the error for a column that a data set does not have, which names the nearest column or field."""
    known = list(dict.fromkeys([*names(manifest), *fields]))
    return ArgumentError(f"the data set has no column {name!r}: {hint(name, known)} (`wdsdist columns` adds more)")


def column(manifest: Manifest, name: str) -> Any:
    """Return a column over the samples of a data set or view, as a chunked array.

    Raises `ArgumentError` if there is no such column, `IndexFormatError` if its file cannot be used.
    """
    pyarrow("columns")
    keep_classes(manifest, [name])
    parts = [ColumnReader(part, name).read(np.flatnonzero(part.counts).tolist()) for part in manifest.data_sets]
    return concatenated(parts)


def keep_classes(manifest: Manifest, used: Collection[str]) -> None:
    """Keep the column ``cls`` in a file, if classes are among the ``used`` columns, and the file can be written."""
    from wdsdist.curation.add import add_columns

    for part in manifest.data_sets if {CLASS, CLASS_NAME}.intersection(used) else ():
        kept = column_file.load(part.whole, CLASS)
        is_current = kept is not None and not (kept.is_read and kept.lacking)
        if not is_current and CLASS in _built_in(part):
            with contextlib.suppress(DestinationError):  # reading it says what is wrong
                add_columns(part, fields=[CLASS])


class ColumnReader:
    """The values of one column of one data set or view, by shard.

    Args:
        manifest: the data set or view.
        name: of the column.
        item_sizes: bytes of an item of raw arrays by extension, for ``<ext>.tokens`` without a file.

    Raises `ArgumentError` if there is no such column, `IndexFormatError` if its file cannot be used.
    """

    def __init__(self, manifest: Manifest, name: str, item_sizes: Mapping[str, int] | None = None) -> None:
        self.manifest, self.name = manifest, check_column("the name of a column", name)
        self.is_part = name in PARTS and manifest.has_parts
        """Whether the view says the values, one for each part, not the samples of a shard."""
        self.stored: StoredColumn | None = None
        """The file of the values; ``None`` if the shards say them."""
        self._whole, built_in = manifest.whole, _built_in(manifest)
        is_class = name in (CLASS, CLASS_NAME) and name in built_in
        self._classes: Sequence[str] = manifest.extra["classes"] if is_class and name == CLASS_NAME else ()
        if not self.is_part and not is_free(name):
            self.stored = column_file.load(self._whole, CLASS if is_class else name)
            if self.stored and (lacking := self.stored.lacking):
                total, tables = len(self.stored.groups), ", ".join(self.stored.tables)
                remedy = "run `wdsdist columns` on it" if self.stored.is_read else f"join {tables}"
                raise ArgumentError(
                    f"the column {self.stored.name!r} has values for {total - len(lacking):,} of the {total:,} shards "
                    f"that the data set has now: {remedy} again, which adds the rest"
                )
        self._item_size = 0 if self.stored else built_in.get(name, 0)
        """Bytes that a size counts as one; 0 if the column has other values."""
        extension, _, what = name.rpartition(".")
        if what == "tokens" and not self.stored and f"{extension}.bytes" in built_in:
            self._item_size = self._item_size or (item_sizes or {}).get(extension, 0)
        if not (self.stored or self._item_size or self.is_part or name in built_in):
            raise unknown(manifest, name)

    def read(self, shards: Sequence[int]) -> Any:
        """Return the values of the samples of some shards, one shard after another, as a chunked array.

        A view has its own samples, in its own order.
        """
        is_indexed, picks = self._item_size or self.name == KEY, None if self.is_part else self.manifest.picks
        indexes = shard_indexes(self._whole, shards) if is_indexed else ((number, None) for number in shards)
        values = ((number, self.of_shard(number, index)) for number, index in indexes)
        return concatenated(
            array if picks is None else array.take(pyarrow().array(picks.of_shard(number))) for number, array in values
        )

    def of_shard(self, number: int, index: ShardIndex | None = None) -> Any:
        """Return the values of all samples that a shard holds, as an array."""
        pa, picks, whole = pyarrow("columns"), self.manifest.picks, self._whole
        if self.is_part:
            assert picks is not None
            assert picks.parts is not None
            parts = picks.parts[picks.starts[number] : picks.starts[number + 1], PARTS.index(self.name)]
            return pa.array(parts.astype(np.int64))
        if self.name == SHARD:
            name = storage.split(whole.shown_name(number))[1]
            return pa.repeat(pa.scalar(name, "large_string"), int(whole.counts[number]))
        if self.name == KEY:
            return _keys(index or shard_index(whole, number))
        if self._item_size:
            sizes, missing = self._sizes(index or shard_index(whole, number))
            return pa.array(sizes, mask=missing)
        if self.stored is not None:
            values = self.stored.read(number)
        else:
            from wdsdist.curation import fields

            values = fields.read(whole, [CLASS], number)[0][CLASS]
        if not self._classes:
            return values
        known = pa.array([str(name) for name in self._classes], "large_string")
        is_known = pa.compute.and_(pa.compute.greater_equal(values, 0), pa.compute.less(values, len(known)))
        return known.take(pa.compute.if_else(is_known, values, None).cast("int64"))

    def numbers(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the values of all samples that a shard holds, and which are missing; strings as uint64 hashes."""
        if self._item_size:  # without pyarrow
            return self._sizes(shard_index(self._whole, number))
        values = self.of_shard(number)
        missing, values = values.is_null().to_numpy(zero_copy_only=False), filled(values)
        if str(values.type) == "large_string":
            hashes = (xxhash.xxh3_64_intdigest(string.encode()) for string in values.to_pylist())
            return np.fromiter(hashes, np.uint64, len(values)), missing
        return values.to_numpy(zero_copy_only=False), missing

    def _sizes(self, index: ShardIndex) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Return the bytes or tokens of each sample of a shard, and which of them are missing."""
        if self.name == BYTES:
            return sample_bytes(index), np.zeros(index.num_samples, np.bool_)
        members = members_of(index, [self.name.rpartition(".")[0]])
        return np.append(index.sizes, 0)[members] // self._item_size, members < 0


def _keys(index: ShardIndex) -> Any:
    """Return the keys of a shard as an array; bytes that are not UTF-8 are escaped."""
    pa = pyarrow()
    starts, data = (pa.py_buffer(np.ascontiguousarray(array)) for array in (index.key_starts, index.key_bytes))
    keys = pa.LargeStringArray.from_buffers(index.num_samples, starts, data)
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        return from_values(keys.cast("large_binary", safe=False).to_pylist())
    return keys


def sample_bytes(index: ShardIndex) -> Int64s:
    """Return the bytes of all members of each sample: the column ``bytes`` of one shard."""
    starts = index.sample_starts[:-1]  # each sample has a member
    return np.add.reduceat(index.sizes, starts) if len(starts) else np.zeros(0, np.int64)


def members_of(index: ShardIndex, extensions: Sequence[str]) -> Int64s:
    """Return int64 [samples]: the member of each sample with the first of some extensions that it has, or -1."""
    owners = np.repeat(np.arange(index.num_samples), np.diff(index.sample_starts))
    members = np.full(index.num_samples, -1, np.int64)
    for extension in reversed(extensions):
        has_extension = np.array([*(own.lower() == extension for own in index.extensions), False])
        numbers = np.flatnonzero(has_extension[index.extension_ids])
        members[owners[numbers]] = numbers
    return members
