"""Samples and batches from (shard, sample) pairs: choose members, decode, transform, collate."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import DecodeError, SampleError
from wdsdist.samples.collate import Batch, Buffer, Ragged, Sample, check_alike, collate, column
from wdsdist.samples.sample_spec import Chosen, SampleSpec
from wdsdist.samples.shard_reader import MappedShard, ShardReader
from wdsdist.sampling.permutation import mix_key, mix_keys

_AUGMENTATION = 3
"""Sets the seeds of samples apart from the keys of the order, which hash other numbers."""


class _Row(NamedTuple):
    """One sample of a batch."""

    shard: MappedShard
    spec: SampleSpec
    sample: int
    seed: int

    @property
    def key(self) -> str:
        return self.shard.key(self.sample)

    def members(self) -> Chosen:
        """Return the members that the sample is made of."""
        try:
            return self.spec.fields.choose(self.shard.layout(self.sample))
        except SampleError as error:
            raise SampleError(f"sample {self.key!r} of {self.shard.name} {error}") from None

    def decoded(self, extension: str, data: Buffer) -> Any:
        """Return the value of a member."""
        try:
            return self.spec.decoder(extension, bytes(data), self.seed)
        except DecodeError as error:
            raise DecodeError(f"{self.shard.name}: member {self.key}.{extension}: {error}") from error


class _Column:
    """Builds one column of a batch: collects the members of a field, then decodes and collates them."""

    __slots__ = ("_field", "extensions", "parts")

    def __init__(self, field: str) -> None:
        self._field = field
        self.extensions: list[str] = []
        self.parts: list[memoryview] = []

    def build(self, rows: list[_Row], *, deferred: bool, is_bounded: bool) -> Any:
        """Return the column of a batch of ``rows``; with ``deferred`` as pieces where they are."""
        decoders = {row.spec.decoder for row in rows}
        if all(decoder.is_raw for decoder in decoders):
            # A batch that is kept must not keep room in the cache for ever.
            return Ragged.of(self.parts).copied() if is_bounded and not deferred else Ragged.of(self.parts)
        pieces = decoders.pop().stacked(self.extensions, self.parts) if len(decoders) == 1 else None
        if pieces is not None:
            return pieces if deferred else pieces.tensor()
        members = zip(rows, self.extensions, self.parts, strict=True)
        values = [row.decoded(extension, part) for row, extension, part in members]
        return column(self._field, values, repr(rows[0].key), deferred=deferred)


class SampleReader:
    """Makes samples and batches; the part of a data set that does its work in the workers.

    Args:
        reader: gives the shards.
        specs: how samples are made, from each shard on that is named, to the next.
        seed: of the data set.
    """

    def __init__(self, reader: ShardReader, specs: Mapping[int, SampleSpec], seed: int) -> None:
        self._reader = reader
        self.specs = dict(specs)
        self._first_shards = list(self.specs)
        self._specs = list(self.specs.values())
        self._seed = seed
        self._needs_seeds = any(spec.needs_seeds for spec in self._specs)

    @property
    def is_raw(self) -> bool:
        """Whether members are left as they are."""
        return all(spec.is_raw for spec in self._specs)

    def raw(self) -> SampleReader:
        """Return a reader of the same members that leaves them as they are."""
        return self.of({first: spec.raw() for first, spec in self.specs.items()})

    def of(self, specs: Mapping[int, SampleSpec]) -> SampleReader:
        """Return a reader of the same shards that makes other samples of them."""
        return SampleReader(self._reader, specs, self._seed)

    @property
    def is_light(self) -> bool:
        """Whether making a batch is little work and gives about as many bytes as it reads."""
        return all(spec.is_light for spec in self._specs)

    def _spec(self, shard: int) -> SampleSpec:
        return self._specs[bisect_right(self._first_shards, shard) - 1]

    def release(self) -> None:
        """Let the shards that were read be evicted from the cache, once no view of them is left."""
        self._reader.release()

    def sample(self, shard: int, sample: int, epoch: int) -> Any:
        """Return one sample, decoded and transformed.

        Raises `SampleError` where a field is missing and `DecodeError`, naming shard and member, where one is bad.
        """
        seed = mix_key(self._seed, epoch, _AUGMENTATION, shard, sample) >> 1 if self._needs_seeds else 0
        try:
            return self._sample(self._row(shard, sample, seed))
        finally:
            self.release()  # a sample holds copies

    def batch(
        self,
        shards: Int64s,
        samples: Int64s,
        epochs: Int64s,
        collate_fn: Callable[[list[Any]], Any] | None,
        *,
        deferred: bool,
    ) -> Any:
        """Return the batch of the given samples, made by ``collate_fn`` or as columns.

        With ``deferred``, tensors may come as `Stacked` pieces, and columns as views of the shards until `release`.
        """
        needed = np.unique(shards).tolist()
        self._reader.hold(needed)
        seeds = self._seeds(shards, samples, epochs)
        try:
            rows = list(map(self._row, shards.tolist(), samples.tolist(), seeds))
            if collate_fn is None and all(row.spec.transform is None for row in rows):
                return self._columns(rows, deferred)
            made = list(map(self._sample, rows))
            return collate(made, deferred=deferred) if collate_fn is None else collate_fn(made)
        finally:
            if not deferred:
                self.release()

    def _seeds(self, shards: Int64s, samples: Int64s, epochs: Int64s) -> list[int]:
        if not self._needs_seeds:
            return [0] * len(shards)
        keys = mix_keys(mix_key(self._seed), epochs, _AUGMENTATION, shards, samples)
        return [key >> 1 for key in keys.tolist()]

    def _row(self, number: int, sample: int, seed: int) -> _Row:
        return _Row(self._reader.shard(number), self._spec(number), sample, seed)

    def _sample(self, row: _Row) -> Any:
        entries: Sample = {"__key__": row.key, "__shard__": row.shard.name}
        if row.shard.dataset:
            entries["__dataset__"] = row.shard.dataset
        for entry, extension, place in row.members():
            entries[entry] = row.decoded(extension, row.shard.member(row.sample, place))
        return row.spec.transformed(entries, row.seed)

    def _columns(self, rows: list[_Row], deferred: bool) -> Batch:
        """Collect members by field, with no dict for each sample, then build each column."""
        columns: dict[str, _Column] = {}
        uniform: dict[MappedShard, Chosen] = {}  # of the shards whose samples all have the same members
        for row in rows:
            shard, _, sample, _ = row
            chosen = uniform.get(shard)
            if chosen is None:
                chosen = row.members()
                if shard.is_uniform:
                    uniform[shard] = chosen
            for entry, extension, place in chosen:
                if entry not in columns:
                    columns[entry] = _Column(entry)
                columns[entry].extensions.append(extension)
                columns[entry].parts.append(shard.member(sample, place))
        if any(len(one.parts) != len(rows) for one in columns.values()):
            check_alike([_names(row) for row in rows])
        batch: Batch = {"__key__": [row.key for row in rows], "__shard__": [row.shard.name for row in rows]}
        if any(row.shard.dataset for row in rows):
            batch["__dataset__"] = [row.shard.dataset for row in rows]
        for entry, one in columns.items():
            batch[entry] = one.build(rows, deferred=deferred, is_bounded=self._reader.is_bounded)
        return batch


def _names(row: _Row) -> Sample:
    """Return a sample without its members' data."""
    return {"__key__": row.key, "__dataset__": row.shard.dataset, **{entry: None for entry, *_ in row.members()}}
