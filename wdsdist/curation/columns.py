"""Read the columns of a data set: from the indexes of its shards, from column files, or from small members on demand.

Every data set has the columns ``key``, ``shard``, ``bytes``, ``<ext>.bytes``, ``<ext>.tokens`` of arrays that were
packed, and if it has classes, ``cls`` and ``cls.name``. The lengths that batches are planned by need numpy alone.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import check_column, hint
from wdsdist.curation import arrays, column_file
from wdsdist.curation.column_file import BYTES, FREE, KEY, SHARD, StoredColumn, is_free
from wdsdist.curation.tables import pyarrow
from wdsdist.errors import ArgumentError
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest.listing import PARTS
from wdsdist.shards.shard_indexes import extensions_in, shard_index, shard_indexes

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

CLASS, CLASS_NAME = "cls", "cls.name"
_SHARDS = 1024
"""Shards whose values `ColumnLookup` keeps in memory."""


def names(manifest: Manifest) -> list[str]:
    """Return the names of the columns: the free ones, then those in files; of several data sets the common ones."""
    first, *others = map(_names, manifest.data_sets)
    return [name for name in first if all(name in other for other in others)]


def _names(manifest: Manifest) -> list[str]:
    extensions = extensions_in(manifest)
    known = [*FREE, *(f"{extension}.bytes" for extension in extensions)]
    known += [f"{extension}.tokens" for extension in extensions if _item_size(manifest, extension)]
    known += [name for name in (CLASS, CLASS_NAME) if _has_classes(manifest, name)]
    known += [name for name in column_file.names(manifest) if name not in known]
    return known if not manifest.has_parts else [*(name for name in known if name not in PARTS), *PARTS]


def _has_classes(manifest: Manifest, name: str) -> bool:
    """Return whether a name stands for a column of classes, and the data set has classes."""
    is_class = name == CLASS or (name == CLASS_NAME and bool(manifest.extra.get("classes")))
    return is_class and CLASS in extensions_in(manifest.whole)


def _item_size(manifest: Manifest, extension: str) -> int:
    """Return the bytes of a token of an array that was packed; 0 for any other member."""
    note = manifest.extra.get("arrays", {}).get(extension)
    return (
        int(np.dtype(note["dtype"]).itemsize * np.prod(note["shape"][1:], dtype=np.int64))
        if note and note["shape"]
        else 0
    )


def unknown(manifest: Manifest, name: str, fields: Iterable[str] = ()) -> ArgumentError:
    """Return the error for a column that a data set does not have, which names the nearest column or field."""
    known = list(dict.fromkeys([*names(manifest), *fields]))
    return ArgumentError(f"the data set has no column {name!r}: {hint(name, known)} (`wdsdist columns` adds more)")


class ColumnReader:
    """The values of one column of one data set or view, of some shards at a time.

    Raises `ArgumentError` if there is no such column, `IndexFormatError` if its file cannot be used.
    """

    def __init__(self, manifest: Manifest, name: str) -> None:
        self.manifest, self.name = manifest, check_column("the name of a column", name)
        self._whole = manifest.whole
        self._is_part = name in PARTS and manifest.picks is not None and manifest.picks.parts is not None
        self.stored: StoredColumn | None = None
        self._classes: Sequence[str] | None = None
        self._is_class = False
        if self._is_part or name in FREE:
            return
        self.stored = None if is_free(name) else column_file.load(self._whole, name)
        if self.stored is not None:
            self._check_coverage(self.stored)
            return
        extension, _, what = name.rpartition(".")
        noted = manifest.extra.get("fields")
        is_known = is_free(name) and (not isinstance(noted, list) or extension in map(str.lower, map(str, noted)))
        is_known = is_known or (what == "tokens" and _item_size(manifest, extension) > 0)
        if not is_known and _has_classes(manifest, name):
            is_known = True
            self._is_class = True
            self._classes = manifest.extra["classes"] if name == CLASS_NAME else None
            self.stored = column_file.load(self._whole, CLASS)
            if self.stored is not None:
                self._check_coverage(self.stored)
        if not is_known:
            raise unknown(manifest, name)

    def _check_coverage(self, stored: StoredColumn) -> None:
        covered, shards = int(stored.is_covered.sum()), len(stored.groups)
        if covered < shards:
            raise ArgumentError(
                f"the column {stored.name!r} has values for {covered:,} of the {shards:,} shards that the data set has "
                f"now: run `wdsdist columns` on it, which adds the rest"
            )

    def read(self, shards: Sequence[int]) -> Any:
        """Return the values of the samples of some shards, one shard after another, as a chunked array.

        A view has its own samples, in its own order.
        """
        values, picks = self._read_whole(shards), self.manifest.picks
        if picks is None or self._is_part:
            return values
        counts = self._whole.counts[list(shards)]
        firsts = np.cumsum(counts) - counts
        places = [first + picks.of_shard(shard).astype(np.int64) for first, shard in zip(firsts, shards, strict=True)]
        return pyarrow().chunked_array([values.combine_chunks().take(np.concatenate([*places, np.zeros(0, np.int64)]))])

    def _read_whole(self, shards: Sequence[int]) -> Any:
        """Return the values of all samples that some shards hold."""
        pa, picks = pyarrow("columns"), self.manifest.picks
        if self._is_part and picks is not None and picks.parts is not None and picks.totals is not None:
            numbers = picks.parts if self.name == PARTS[0] else picks.totals
            return pa.chunked_array([numbers[picks.starts[one] : picks.starts[one + 1]] for one in shards], "int64")
        if self.stored is not None:
            values = self.stored.read(shards)
        else:
            parts = [self._of_shard(number, index) for number, index in self._indexes(shards)]
            values = arrays.concatenated(parts)
        return values if self._classes is None else _named(values, self._classes)

    def _indexes(self, shards: Sequence[int]) -> Iterator[tuple[int, ShardIndex | None]]:
        if self.name == SHARD:
            return ((number, None) for number in shards)
        return shard_indexes(self._whole, shards)

    def _of_shard(self, number: int, index: ShardIndex | None) -> Any:
        pa = pyarrow()
        if index is None:
            name = storage.split(self._whole.shown_name(number))[1]
            return pa.repeat(pa.scalar(name, "large_string"), int(self._whole.counts[number]))
        if self.name == KEY:
            return _keys(index)
        if self._is_class:
            from wdsdist.curation import column_spec, members

            return members.read(self._whole, number, index, [column_spec.ColumnSpec("field", CLASS)])[CLASS].values
        values, missing = self._numbers(index)
        return pa.array(values, mask=missing)

    def _numbers(self, index: ShardIndex) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Return a free column of numbers of one shard, and which of them are missing."""
        if self.name == BYTES:
            return sample_bytes(index), np.zeros(index.num_samples, np.bool_)
        extension, _, what = self.name.rpartition(".")
        wanted = np.array([*(one.lower() == extension for one in index.extensions), False])[index.extension_ids]
        missing = _sums(wanted.astype(np.int64), index.sample_starts) == 0
        sizes = _sums(np.where(wanted, index.sizes, 0), index.sample_starts)
        return sizes // (_item_size(self.manifest, extension) if what == "tokens" else 1), missing

    def numbers_of_shard(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the values of all stored samples of one shard, and which are missing; strings as uint64 hashes."""
        if self.stored is None and not (self._is_class or self._is_part) and self.name not in (KEY, SHARD):
            return self._numbers(shard_index(self._whole, number))
        values = self._read_whole([number]).combine_chunks()
        missing = values.is_null().to_numpy(zero_copy_only=False)
        if str(values.type) == "large_string":
            texts = (text.encode() for text in values.fill_null("").to_pylist())
            digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
            return np.frombuffer(digests, "<u8"), missing
        return arrays.filled(values).to_numpy(zero_copy_only=False), missing


def _named(values: Any, classes: Sequence[str]) -> Any:
    """Return the names of classes in place of their numbers; a number without a name is missing."""
    pa = pyarrow()
    named = pa.array([str(name) for name in classes], "large_string")
    known = pa.compute.and_(pa.compute.greater_equal(values, 0), pa.compute.less(values, len(classes)))
    return pa.chunked_array([named.take(pa.compute.if_else(known, values, None).cast("int64").combine_chunks())])


def _keys(index: ShardIndex) -> Any:
    pa = pyarrow()
    starts, data = (
        pa.py_buffer(np.ascontiguousarray(index.key_starts)),
        pa.py_buffer(np.ascontiguousarray(index.key_bytes)),
    )
    keys = pa.LargeStringArray.from_buffers(index.num_samples, starts, data)
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:  # a name that is not UTF-8
        return arrays.from_values(keys.cast("large_binary", safe=False).to_pylist())
    return keys


def sample_bytes(index: ShardIndex) -> Int64s:
    """Return the bytes of all members of each sample: the column ``bytes`` of one shard."""
    return _sums(index.sizes, index.sample_starts)


def _sums(values: Int64s, starts: Int64s) -> Int64s:
    """Return the sum of each sample's members, of which each sample has at least one."""
    return np.add.reduceat(values, starts[:-1]) if len(starts) > 1 else np.zeros(0, np.int64)


class ColumnLookup:
    """The values of one column by shard and number; also over views and several data sets.

    Args:
        manifest: the data set.
        name: of the column.
        item_sizes: bytes of an item of raw arrays by extension, for ``<ext>.tokens`` without a file.

    Raises `ArgumentError` if there is no such column.
    """

    def __init__(self, manifest: Manifest, name: str, item_sizes: Mapping[str, int] | None = None) -> None:
        self.manifest, self.name = manifest, name
        self._item_sizes = dict(item_sizes or {})
        self._kept: OrderedDict[int, tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]] = OrderedDict()
        self._open()

    def _open(self) -> None:
        extension, _, what = self.name.rpartition(".")
        self._divisor = 1
        try:
            self._readers = [ColumnReader(part, self.name) for part in self.manifest.data_sets if part.num_samples]
        except ArgumentError as error:
            if what != "tokens" or self.name in names(self.manifest):
                raise
            if extension not in self._item_sizes:
                how = f'decode={{"{extension}": np.int32}}, or --dtype {extension}=int32, makes it of a raw array'
                raise ArgumentError(f"{error}; {how}") from None
            self._divisor = self._item_sizes[extension]
            parts = [part for part in self.manifest.data_sets if part.num_samples]
            self._readers = [ColumnReader(part, f"{extension}.bytes") for part in parts]
        filled = [bool(part.num_samples) for part in self.manifest.data_sets]
        every = np.array([len(part.counts) for part in self.manifest.data_sets], np.int64)
        self._firsts = (np.cumsum(every) - every)[filled]

    def __call__(self, shards: Int64s, samples: Int64s) -> npt.NDArray[Any]:
        """Return the value of each sample: int64, float64 or bool; of strings uint64, a hash of each.

        Raises `ArgumentError` for a sample that has no value.
        """
        order = np.argsort(shards, kind="stable")
        firsts = np.flatnonzero(np.diff(shards[order], prepend=-1))
        found: npt.NDArray[Any] | None = None
        for places in np.split(order, firsts[1:]) if len(firsts) else ():
            values = self._values(int(shards[places[0]]), samples[places])
            if found is None:
                found = np.empty(len(shards), values.dtype)
            found[places] = values
        return np.zeros(0, np.int64) if found is None else found

    @property
    def digest(self) -> str:
        """Digest of the values in files; the values that shards themselves say need no digest."""
        return " ".join(reader.stored.digest if reader.stored else "" for reader in self._readers)

    def __getstate__(self) -> dict[str, Any]:
        # Open files stay here: the other process opens them itself.
        return {"manifest": self.manifest, "name": self.name, "_item_sizes": self._item_sizes, "_kept": OrderedDict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def _values(self, shard: int, samples: Int64s) -> npt.NDArray[Any]:
        which = int(np.searchsorted(self._firsts, shard, side="right")) - 1
        reader, number = self._readers[which], shard - int(self._firsts[which])
        if shard not in self._kept:
            self._kept[shard] = reader.numbers_of_shard(number)
            while len(self._kept) > _SHARDS:
                self._kept.popitem(last=False)
        values, missing = self._kept[shard]
        picks = reader.manifest.picks
        if reader.name in PARTS and picks is not None and picks.parts is not None:
            places: Any = samples
        else:
            places = samples if picks is None else picks.of_shard(number)[samples]
        if missing[places].any():
            raise ArgumentError(
                f"the column {self.name!r} has no value for some samples of {reader.manifest.shown_name(number)}: "
                f"choose the others, as in data.select('\"{self.name}\" IS NOT NULL')"
            )
        taken: npt.NDArray[Any] = values[places]
        return taken // self._divisor if self._divisor > 1 else taken
