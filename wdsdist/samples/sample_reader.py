"""Samples and batches from (shard, sample) pairs: choose members, decode, transform, collate."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.errors import DecodeError, SampleError
from wdsdist.samples.collate import Batch, Ragged, Sample, check_alike, collate, column
from wdsdist.samples.decode import Decoder, Unzip
from wdsdist.samples.sample_spec import Chosen, Recipe
from wdsdist.samples.shard_reader import MappedShard, ShardReader
from wdsdist.sampling.permutation import mix_key, mix_keys

_AUGMENTATION = 3
"""Sets the seeds of samples apart from the keys of the order, which hash other numbers."""
_COMPRESSED = ".gz"


@dataclass(slots=True)
class _Rows:
    """What the columns of a batch have in common: of each sample, one entry in each list."""

    numbers: list[int]
    """Of their shards."""
    samples: list[int]
    """Their numbers in the shards."""
    seeds: list[int]
    shards: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    decoders: list[Decoder] = field(default_factory=list)


class SampleReader:
    """Makes samples and batches; the part of a data set that does its work in the workers.

    Args:
        reader: gives the shards.
        recipes: how samples are made, from each shard on that is named, to the next.
        seed: of the data set.
    """

    def __init__(self, reader: ShardReader, recipes: Mapping[int, Recipe], seed: int) -> None:
        self._reader = reader
        self.recipes = dict(recipes)
        self._first_shards = list(self.recipes)
        self._recipes = list(self.recipes.values())
        self._seed = seed
        self._needs_seeds = any(recipe.needs_seeds for recipe in self._recipes)

    @property
    def is_raw(self) -> bool:
        """Whether members are left as they are."""
        return all(recipe.is_raw for recipe in self._recipes)

    def raw(self) -> SampleReader:
        """Return a reader of the same members that leaves them as they are."""
        return self.of({first: recipe.raw() for first, recipe in self.recipes.items()})

    def of(self, recipes: Mapping[int, Recipe]) -> SampleReader:
        """Return a reader of the same shards that makes other samples of them."""
        return SampleReader(self._reader, recipes, self._seed)

    @property
    def is_light(self) -> bool:
        """Whether making a batch is little work and gives about as many bytes as it reads."""
        return all(recipe.is_light for recipe in self._recipes)

    def _recipe(self, shard: int) -> Recipe:
        return self._recipes[bisect_right(self._first_shards, shard) - 1]

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
            return self._sample(shard, sample, seed)
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
            if collate_fn is None and all(self._recipe(number).transform is None for number in needed):
                return self._columns(shards.tolist(), samples.tolist(), seeds, deferred)
            made = [self._sample(*one) for one in zip(shards.tolist(), samples.tolist(), seeds, strict=True)]
            return collate(made, deferred=deferred) if collate_fn is None else collate_fn(made)
        finally:
            if not deferred:
                self.release()

    def _seeds(self, shards: Int64s, samples: Int64s, epochs: Int64s) -> list[int]:
        if not self._needs_seeds:
            return [0] * len(shards)
        keys = mix_keys(mix_key(self._seed), epochs, _AUGMENTATION, shards, samples)
        return [key >> 1 for key in keys.tolist()]

    def _sample(self, number: int, sample: int, seed: int) -> Any:
        shard, recipe = self._reader.shard(number), self._recipe(number)
        key = shard.key(sample)
        entries: Sample = {"__key__": key, "__shard__": shard.name}
        if shard.dataset:
            entries["__dataset__"] = shard.dataset
        for entry, extension, place in _chosen(recipe, shard, sample):
            unzip = _unzip(shard, sample, place, extension)
            data = shard.member(sample, place)
            entries[entry] = _value(recipe.decoder, extension, data, seed, shard.name, key, unzip)
        return recipe.transformed(entries, seed)

    def _columns(self, numbers: list[int], samples: list[int], seeds: list[int], deferred: bool) -> Batch:
        """Collect members by column, with no dict for each sample, then decode each column."""
        rows = _Rows(numbers, samples, seeds)
        members: dict[str, list[memoryview]] = {}
        extensions: dict[str, list[str]] = {}
        opened: dict[int, tuple[MappedShard, Recipe, Chosen | None]] = {}
        for number, sample in zip(numbers, samples, strict=True):
            if number not in opened:
                shard, recipe = self._reader.shard(number), self._recipe(number)
                opened[number] = shard, recipe, _chosen(recipe, shard, sample) if shard.is_uniform else None
            shard, recipe, chosen = opened[number]
            rows.shards.append(shard.name)
            rows.datasets.append(shard.dataset)
            rows.keys.append(shard.key(sample))
            rows.decoders.append(recipe.decoder)
            for entry, extension, place in chosen or _chosen(recipe, shard, sample):
                if entry not in members:
                    members[entry], extensions[entry] = [], []
                members[entry].append(shard.member(sample, place))
                extensions[entry].append(extension)
        batch: Batch = {"__key__": rows.keys, "__shard__": rows.shards}
        if any(rows.datasets):
            batch["__dataset__"] = rows.datasets
        if any(len(parts) != len(rows.keys) for parts in members.values()):
            check_alike([self._names(*one) for one in zip(numbers, samples, strict=True)])
        for entry, parts in members.items():
            batch[entry] = self._column(entry, extensions[entry], parts, rows, deferred)
        return batch

    def _names(self, number: int, sample: int) -> Sample:
        """Return a sample without its members' data."""
        shard = self._reader.shard(number)
        chosen = _chosen(self._recipe(number), shard, sample)
        return {"__key__": shard.key(sample), "__dataset__": shard.dataset, **{entry: None for entry, *_ in chosen}}

    def _column(self, entry: str, extensions: list[str], parts: list[memoryview], rows: _Rows, deferred: bool) -> Any:
        decoders = set(rows.decoders)
        if all(decoder.is_raw for decoder in decoders):
            # A batch that is kept must not keep room for ever.
            return Ragged.of(parts) if deferred or not self._reader.is_bounded else Ragged.of(parts).copied()
        pieces = rows.decoders[0].stacked(extensions, parts) if len(decoders) == 1 else None
        if pieces is not None:
            return pieces if deferred else pieces.tensor()
        columns = rows.decoders, extensions, parts, rows.seeds, rows.shards, rows.keys, self._unzips(rows, extensions)
        values = [_value(*one) for one in zip(*columns, strict=True)]
        return column(entry, values, repr(rows.keys[0]), deferred=deferred)

    def _unzips(self, rows: _Rows, extensions: list[str]) -> Iterable[Unzip | None]:
        """Yield how each member of a column is decompressed, if it is."""
        for number, sample, extension in zip(rows.numbers, rows.samples, extensions, strict=True):
            if extension.endswith(_COMPRESSED):
                shard = self._reader.shard(number)
                yield _unzip(shard, sample, shard.layout(sample).index(extension), extension)
            else:
                yield None


def _unzip(shard: MappedShard, sample: int, place: int, extension: str) -> Unzip | None:
    return shard.unzip(sample, place) if extension.endswith(_COMPRESSED) else None


def _value(
    decoder: Decoder, extension: str, data: memoryview, seed: int, name: str, key: str, unzip: Unzip | None
) -> Any:
    try:
        return decoder(extension, bytes(data), seed, unzip)
    except DecodeError as error:
        raise DecodeError(f"{name}: member {key}.{extension}: {error}") from error


def _chosen(recipe: Recipe, shard: MappedShard, sample: int) -> Chosen:
    try:
        return recipe.fields.choose(shard.layout(sample))
    except SampleError as error:
        raise SampleError(f"sample {shard.key(sample)!r} of {shard.name} {error}") from None
