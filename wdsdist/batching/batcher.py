"""The batcher of planned batches: makes the plan of each epoch of a data set from the values of its columns."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import counted
from wdsdist.batching.block_plan import Rule
from wdsdist.batching.planned_epoch import PlannedEpoch, parsed
from wdsdist.curation.columns import ColumnReader, names
from wdsdist.errors import ArgumentError, StateError
from wdsdist.sampling.order import EpochOrder
from wdsdist.sampling.plan import Batcher, Position, World
from wdsdist.shards.shard_indexes import shard_index

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest

BLOCK_STEPS = 128
"""Steps of a block of the first run, about: more fill better, fewer need less memory and planning at once."""

_SAMPLED = 16
"""Shards from whose samples the mean length is taken, by which blocks are cut."""

_LONGEST = 2**62
"""Tokens of a sample: beyond that, processors differ in which integer they make of a number."""

_SHARDS = 1024
"""Shards whose values a lookup keeps in memory."""


@dataclass(eq=False)
class PlannedBatcher(Batcher):
    """Makes the plans of a data set's epochs from the values of its columns.

    Raises `ArgumentError` for an unknown column.
    """

    manifest: Manifest
    rule: Rule
    itemsizes: Mapping[str, int]
    """Bytes of an item of raw arrays, by extension: the column ``<ext>.tokens`` follows from them."""

    def __post_init__(self) -> None:
        rule = self.rule
        self.label, self.collate = rule.label, rule.collate
        self._lengths = None if rule.length is None else ColumnLookup(self.manifest, rule.length, self.itemsizes)
        self._buckets = None if rule.buckets is None else ColumnLookup(self.manifest, rule.buckets)
        self._looked_up = [column for column in (self._lengths, self._buckets) if column is not None]
        self._is_checked = False

    def plan(self, order: EpochOrder, position: Position, world: World, *, block: int = 0) -> PlannedEpoch:
        return PlannedEpoch(
            rule=self.rule,
            lengths=self.lengths,
            buckets=None if self._buckets is None else self.buckets,
            batch_size=self.batch_size,
            block_samples=block or self.block_samples(world.num_replicas),
            order=order,
            world=world,
            start=position,
            # All else that the plan depends on.
            about=f"{self.manifest.fingerprint} {self.rule} {self.itemsizes} {self._columns}",
        )

    def block_samples(self, num_replicas: int, window: int | None = None) -> int:
        samples = num_replicas * self.batch_size
        return samples * (BLOCK_STEPS if window is None else min(BLOCK_STEPS, max(1, window // samples)))

    @functools.cached_property
    def batch_size(self) -> int:
        """Samples of a batch, about."""
        rule, filled = self.rule, np.flatnonzero(self.manifest.counts)
        sampled = filled[:: max(1, len(filled) // _SAMPLED)][:_SAMPLED].tolist()
        if not rule.room:
            return rule.most
        mean = 1.0
        if self._lengths is not None and sampled:
            mean = max(1.0, float(np.concatenate(list(map(self._lengths_of, sampled))).mean()))
        samples = max(1, int(rule.room / mean))
        return min(samples, rule.most) if rule.most and not rule.has_rows else samples

    def check(self, num_samples: int, num_replicas: int) -> None:
        super().check(num_samples, num_replicas)
        self.check_lengths()
        is_split = self.rule.has_rows and self.rule.long == "split"
        if self.rule.drops and not is_split and num_samples < num_replicas:
            raise ArgumentError(
                f"the data set has {counted(num_samples, 'sample')}, fewer than there are ranks ({num_replicas:,}), "
                f"and drop_last=True drops them all: pass drop_last=False",
                argument="drop_last",
            )

    def lengths(self, shards: Int64s, samples: Int64s) -> Int64s:
        """Return the lengths of samples in tokens; 1 for each without a column. A part of a record has its stretch."""
        if self._lengths is None:
            return np.ones(len(shards), np.int64)
        values = self._lengths(shards, samples)
        is_length = values.dtype != np.uint64  # the hash of a string
        if not is_length or (len(values) and not 0 <= float(values.min()) <= float(values.max()) <= _LONGEST):
            raise ArgumentError(
                f"the column {self._lengths.name!r} holds no lengths: they must be numbers from 0 to {_LONGEST:,}"
            )
        tokens = values.astype(np.int64)
        parts = self.manifest.parts_of(shards, samples)
        if parts is None:
            return tokens
        lengths: Int64s = (parts[0] + 1) * tokens // parts[1] - parts[0] * tokens // parts[1]
        return lengths

    def buckets(self, shards: Int64s, samples: Int64s) -> Int64s:
        """Return the categories of samples as integers: numbers stand for themselves, strings for a hash."""
        assert self._buckets is not None
        values = self._buckets(shards, samples)
        return values.view(np.int64) if values.itemsize == 8 else values.astype(np.int64)

    def _lengths_of(self, shard: int) -> Int64s:
        """Return the lengths of all samples of a shard."""
        samples = np.arange(int(self.manifest.counts[shard]))
        return self.lengths(np.full(len(samples), shard), samples)

    def check_lengths(self) -> None:
        """Raise `ArgumentError` if samples are too long, in a pass over all lengths that is made once."""
        if self.rule.long != "error" or self._lengths is None or self._is_checked:
            return
        count, longest, shard, index = 0, 0, 0, 0
        for number in np.flatnonzero(self.manifest.counts).tolist():
            lengths = self._lengths_of(number)
            count += int((lengths > self.rule.budget).sum())
            if len(lengths) and int(lengths.max()) > longest:
                longest, shard, index = int(lengths.max()), number, int(lengths.argmax())
        if count:
            part, number = self.manifest.part(shard)
            stored = index if part.picks is None else int(part.picks.of_shard(number)[index])
            key = shard_index(part, number).key(stored)
            remedy = 'long="split" or "truncate"' if self.rule.has_rows else 'oversize="drop" or "alone"'
            samples = "1 sample is" if count == 1 else f"{count:,} samples are"
            raise ArgumentError(
                f"{samples} longer than tokens={self.rule.budget:,}, by {self.rule.length}; the longest, {key!r} of "
                f"{part.shown_name(number)}, has {longest:,}: raise tokens, choose other samples, or pass {remedy}",
                argument="tokens",
            )
        self._is_checked = True

    def misfits(self, shard: int, numbers: Int64s, index: int) -> Int64s:
        """Return how badly samples of a shard fit in the place of one of them, ``numbers[index]``: 0 fits.

        In a batch, a sample of at most this length fits; in rows, one of at least it, as its tokens may lie in several.
        """
        shards = np.full(len(numbers), shard)
        lengths = self.lengths(shards, numbers)
        longer = lengths - lengths[index]
        misfits: Int64s = np.maximum(-longer if self.rule.has_rows else longer, 0)
        if self._buckets is not None:
            buckets = self.buckets(shards, numbers)
            misfits[buckets != buckets[index]] += int(lengths.max()) + 1
        return misfits

    def state(self) -> dict[str, Any]:
        return {"dealing": self._dealing, "columns": self._columns}

    @property
    def _dealing(self) -> str:
        """The settings that must match to resume inside a block, besides its segments."""
        return f"cost={self.rule.cost}, oversize={self.rule.long}, drop_last={self.rule.drops}"

    def check_state(self, state: Mapping[str, Any]) -> None:
        parsed(str(state.get("segments", "")))
        if state.get("dealing") != self._dealing:
            raise StateError(
                f"the state was taken inside a block of batches that was dealt with {state.get('dealing')}, and here "
                f"it would be with {self._dealing}: finish that epoch with the same values, or start a new epoch"
            )
        samples, _, digest = str(state.get("columns")).partition(":")
        own_samples, _, own = self._columns.partition(":")
        if samples == own_samples and digest != own:  # otherwise the state is of an older generation
            raise StateError(
                f"the state was taken inside a block of batches that was planned by other values of "
                f"{self._column_names}: put those values back (`wdsdist columns`), or start a new epoch"
            )

    def options(self, world: World) -> dict[str, Any]:
        rule = {field.name: getattr(self.rule, field.name) for field in fields(self.rule) if field.repr}
        return {**rule, "itemsizes": str(self.itemsizes), "ranks on each node": world.per_node}

    @functools.cached_property
    def _columns(self) -> str:
        """The number of samples, and a digest of the columns that batches are planned by."""
        digests = " ".join(column.digest for column in self._looked_up)
        return f"{self.manifest.num_samples}:{hashlib.sha256(digests.encode()).hexdigest()[:16]}"

    @property
    def _column_names(self) -> str:
        return " and ".join(dict.fromkeys(repr(column.name) for column in self._looked_up))


class ColumnLookup:
    """The values of one column by shard and number; also over views and several data sets.

    Args:
        manifest: the data set.
        name: of the column.
        item_sizes: bytes of an item of raw arrays by extension, for ``<ext>.tokens`` without a file.

    Raises `ArgumentError` if there is no such column.
    """

    def __init__(self, manifest: Manifest, name: str, item_sizes: Mapping[str, int] | None = None) -> None:
        self.manifest, self.name, self._item_sizes = manifest, name, dict(item_sizes or {})
        self._numbers = functools.lru_cache(_SHARDS)(lambda source, number: self._readers[source].numbers(number))
        try:
            self._readers = {
                number: ColumnReader(part, name, item_sizes)
                for number, part in enumerate(manifest.data_sets)
                if part.num_samples
            }
        except ArgumentError as error:
            extension, known = name.removesuffix(".tokens"), names(manifest)
            if name in known or extension == name or f"{extension}.bytes" not in known:
                raise
            remedy = f'pass decode={{"{extension}": np.int32}} with the dtype of these arrays'
            if extension.endswith(("npy", "json", "jsn")):
                remedy = f"`wdsdist columns {manifest.shown} --probe {name}` counts the items"
            raise ArgumentError(f"the data set has no column {name!r}: {remedy}") from error

    def __call__(self, shards: Int64s, samples: Int64s) -> npt.NDArray[Any]:
        """Return the value of each sample: int64, float64 or bool; of strings uint64, a hash of each.

        Raises `ArgumentError` for a sample that has no value.
        """
        order = np.argsort(shards, kind="stable")
        firsts = np.flatnonzero(np.diff(shards[order], prepend=-1))
        result: npt.NDArray[Any] = np.zeros(0, np.int64)
        for same_shard in np.split(order, firsts[1:]) if len(firsts) else ():
            shard = int(shards[same_shard[0]])
            rows: npt.NDArray[np.integer] = samples[same_shard]
            source, number = int(self.manifest.source[shard]), self.manifest.part(shard)[1]
            reader, (values, missing) = self._readers[source], self._numbers(source, number)
            if reader.manifest.picks is not None and not reader.is_part:
                rows = reader.manifest.picks.of_shard(number)[rows]
            if missing[rows].any():
                raise ArgumentError(
                    f"the column {self.name!r} has no value for some samples of {reader.manifest.shown_name(number)}: "
                    f"choose the others, as in data.select('\"{self.name}\" IS NOT NULL')"
                )
            if not len(result):
                result = np.empty(len(shards), values.dtype)
            result[same_shard] = values[rows]
        return result

    @property
    def digest(self) -> str:
        """Digest of the values in files; the values that shards themselves say need no digest."""
        return " ".join(reader.stored.digest if reader.stored else "" for reader in self._readers.values())

    def __reduce__(self) -> tuple[Any, ...]:  # another process opens the files itself
        return ColumnLookup, (self.manifest, self.name, self._item_sizes)
