"""Samples and batches from (shard, sample) pairs: choose members, decode, transform, collate."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import starmap
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import DecodeError, SampleError
from wdsdist.samples.collate import Batch, Buffer, Ragged, Sample, check_alike, collate, column
from wdsdist.samples.sample_spec import Chosen, Decoder, SampleSpec
from wdsdist.samples.shard_reader import MappedShard, ShardReader
from wdsdist.sampling.permutation import mix_key, mix_keys

_AUGMENTATION = 3
"""Sets the seeds of samples apart from the keys of the order, which hash other numbers."""
_COMPRESSED = ".gz"


class _Opened:
    """A shard, and how its samples are made."""

    __slots__ = ("only_members", "shard", "spec")

    def __init__(self, shard: MappedShard, spec: SampleSpec) -> None:
        self.shard = shard
        self.spec = spec
        self.only_members: Chosen | None = None
        """Those of every sample, once they are known, where all have the same."""

    def members(self, sample: int) -> Chosen:
        """Return the members that a sample is made of."""
        try:
            chosen = self.spec.fields.choose(self.shard.layout(sample))
        except SampleError as error:
            raise SampleError(f"sample {self.shard.key(sample)!r} of {self.shard.name} {error}") from None
        if self.shard.is_uniform:
            self.only_members = chosen
        return chosen

    def decoded(self, sample: int, seed: int, extension: str, data: Buffer) -> Any:
        """Return the value of a member."""
        unzip = None
        if extension.endswith(_COMPRESSED):
            unzip = self.shard.unzip(sample, self.shard.layout(sample).index(extension))
        try:
            return self.spec.decoder(extension, bytes(data), seed, unzip)
        except DecodeError as error:
            key = self.shard.key(sample)
            raise DecodeError(f"{self.shard.name}: member {key}.{extension}: {error}") from error


_Row = tuple[_Opened, int, int]
"""One sample of a batch: its shard, its number there, and its seed."""


class _Column:
    """Builds one column of a batch: collects the members of a field, then decodes and collates them."""

    __slots__ = ("_field", "extensions", "parts")

    def __init__(self, field: str) -> None:
        self._field = field
        self.extensions: list[str] = []
        self.parts: list[memoryview] = []

    def build(self, rows: list[_Row], decoders: set[Decoder], *, deferred: bool, is_bounded: bool) -> Any:
        """Return the column of a batch of ``rows``; with ``deferred`` as pieces where they are."""
        if all(decoder.is_raw for decoder in decoders):
            # A batch that is kept must not keep room in the cache for ever.
            return Ragged.of(self.parts).copied() if is_bounded and not deferred else Ragged.of(self.parts)
        pieces = next(iter(decoders)).stacked(self.extensions, self.parts) if len(decoders) == 1 else None
        if pieces is not None:
            return pieces if deferred else pieces.tensor()
        members = zip(rows, self.extensions, self.parts, strict=True)
        values = [opened.decoded(sample, seed, extension, part) for (opened, sample, seed), extension, part in members]
        opened, sample, _ = rows[0]
        return column(self._field, values, repr(opened.shard.key(sample)), deferred=deferred)


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
        self._reader.hold((shard,))
        try:
            opened = _Opened(self._reader.shard(shard), self._spec(shard))
            return _sample(opened, opened.shard.stored(sample), seed)
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
            opened = {number: _Opened(self._reader.shard(number), self._spec(number)) for number in needed}
            stored = _stored(shards, samples, opened)
            rows = list(zip([opened[number] for number in shards.tolist()], stored.tolist(), seeds, strict=True))
            if collate_fn is None and all(one.spec.transform is None for one in opened.values()):
                return self._columns(rows, deferred)
            made = list(starmap(_sample, rows))
            return collate(made, deferred=deferred) if collate_fn is None else collate_fn(made)
        finally:
            if not deferred:
                self.release()

    def _seeds(self, shards: Int64s, samples: Int64s, epochs: Int64s) -> list[int]:
        if not self._needs_seeds:
            return [0] * len(shards)
        keys = mix_keys(mix_key(self._seed), epochs, _AUGMENTATION, shards, samples)
        return [key >> 1 for key in keys.tolist()]

    def _columns(self, rows: list[_Row], deferred: bool) -> Batch:
        """Collect members by field, with no dict for each sample, then build each column."""
        columns: dict[str, _Column] = {}
        keys: list[str] = []
        names: list[str] = []
        for opened, sample, _ in rows:
            shard = opened.shard
            keys.append(shard.key(sample))
            names.append(shard.name)
            for field, extension, place in opened.only_members or opened.members(sample):
                if field not in columns:
                    columns[field] = _Column(field)
                columns[field].extensions.append(extension)
                columns[field].parts.append(shard.member(sample, place))
        if any(len(one.parts) != len(rows) for one in columns.values()):
            check_alike([_names(opened, sample) for opened, sample, _ in rows])
        batch: Batch = {"__key__": keys, "__shard__": names}
        distinct = {opened for opened, *_ in rows}
        if any(opened.shard.dataset for opened in distinct):
            batch["__dataset__"] = [opened.shard.dataset for opened, *_ in rows]
        decoders = {opened.spec.decoder for opened in distinct}
        for field, one in columns.items():
            batch[field] = one.build(rows, decoders, deferred=deferred, is_bounded=self._reader.is_bounded)
        return batch


def _stored(shards: Int64s, samples: Int64s, opened: Mapping[int, _Opened]) -> Int64s:
    """Return where the samples of a batch lie in their shards: in a view, the numbers of chosen ones differ."""
    chosen = {number: one.shard.picks for number, one in opened.items() if one.shard.picks is not None}
    if not chosen:
        return samples
    stored = samples.copy()
    for number, picks in chosen.items():
        of_shard = shards == number
        stored[of_shard] = picks[samples[of_shard]]
    return stored


def _sample(opened: _Opened, sample: int, seed: int) -> Any:
    """Return one sample, decoded and transformed."""
    shard = opened.shard
    entries: Sample = {"__key__": shard.key(sample), "__shard__": shard.name}
    if shard.dataset:
        entries["__dataset__"] = shard.dataset
    for field, extension, place in opened.only_members or opened.members(sample):
        entries[field] = opened.decoded(sample, seed, extension, shard.member(sample, place))
    return opened.spec.transformed(entries, seed)


def _names(opened: _Opened, sample: int) -> Sample:
    """Return a sample without its members' data."""
    fields = {field: None for field, *_ in opened.members(sample)}
    return {"__key__": opened.shard.key(sample), "__dataset__": opened.shard.dataset, **fields}
