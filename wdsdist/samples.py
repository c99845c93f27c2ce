"""Samples and batches from (shard, sample) pairs: choose members, decode, transform, collate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from wdsdist.columns import Batch, Ragged, Sample, collate, column
from wdsdist.decode import Decoder
from wdsdist.errors import ArgumentTypeError, DecodeError, SampleError
from wdsdist.permutation import Int64s, mix_key, mix_keys
from wdsdist.shards import MappedShard, ShardReader
from wdsdist.transforms import is_seeded

_AUGMENTATION = 3
"""Sets the seeds of samples apart from the keys of the order, which hash other numbers."""

Chosen = tuple[tuple[str, str, int], ...]
"""Of each field: its entry in the sample, its extension, and the member's place in the layout."""


class Fields:
    """Chooses members by the extensions that ``fields=`` names.

    >>> Fields(("jpg;png", "cls")).choose(("cls", "png", "txt"))
    (('jpg', 'png', 1), ('cls', 'cls', 0))
    """

    def __init__(self, fields: Sequence[str] | None) -> None:
        if isinstance(fields, str) or not all(isinstance(field, str) and field for field in fields or ()):
            raise ArgumentTypeError(f"fields is {fields!r}: it must be a list of extensions such as ('jpg;png', 'cls')")
        self._alternatives = [tuple(field.lower().split(";")) for field in fields] if fields is not None else None
        self._known: dict[tuple[str, ...], Chosen] = {}

    def choose(self, layout: tuple[str, ...]) -> Chosen:
        """Return (entry name, extension, place) for each field; the entry has the name of the first alternative.

        Raises `SampleError` where the layout has none of a field's alternatives.
        """
        chosen = self._known.get(layout)
        if chosen is None:
            # Samples have few layouts; where each has another, none is worth keeping.
            if len(self._known) > 1000:
                self._known.clear()
            chosen = self._known[layout] = tuple(self._chosen(layout))
        return chosen

    def _chosen(self, layout: tuple[str, ...]) -> Iterator[tuple[str, str, int]]:
        if self._alternatives is None:
            yield from ((extension, extension, place) for place, extension in enumerate(layout))
            return
        for names in self._alternatives:
            extension = next((name for name in names if name in layout), None)
            if extension is None:
                raise SampleError(
                    f"has no member {' or '.join(map(repr, names))}: it has {', '.join(sorted(layout)) or 'none'}"
                )
            yield names[0], extension, layout.index(extension)


class SampleReader:
    """Makes samples and batches; the part of a data set that does its work in the workers."""

    def __init__(
        self,
        reader: ShardReader,
        fields: Fields,
        decoder: Decoder,
        transform: Callable[..., Any] | None,
        seed: int,
    ) -> None:
        self._reader = reader
        self._fields = fields
        self._decoder = decoder
        self._transform = transform
        self._seed = seed
        self._transform_is_seeded = transform is not None and is_seeded(transform)
        self._needs_seeds = self._transform_is_seeded or decoder.is_seeded

    @property
    def is_raw(self) -> bool:
        """Whether members are left as they are."""
        return self._transform is None and self._decoder.is_raw

    def raw(self) -> SampleReader:
        """Return a reader of the same members that leaves them as they are."""
        return SampleReader(self._reader, self._fields, Decoder(None), None, self._seed)

    @property
    def is_light(self) -> bool:
        """Whether making a batch is little work and gives about as many bytes as it reads."""
        return self._transform is None and self._decoder.is_light

    def sample(self, shard: int, sample: int, epoch: int) -> Any:
        """Return one sample, decoded and transformed.

        Raises `SampleError` where a field is missing and `DecodeError`, naming shard and member, where one is bad.
        """
        seed = mix_key(self._seed, epoch, _AUGMENTATION, shard, sample) >> 1 if self._needs_seeds else 0
        return self._sample(shard, sample, seed)

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

        With ``deferred``, tensors may come as `Stacked` pieces.
        """
        seeds = self._seeds(shards, samples, epochs)
        if collate_fn is None and self._transform is None:
            return self._columns(shards.tolist(), samples.tolist(), seeds, deferred)
        made = [self._sample(*one) for one in zip(shards.tolist(), samples.tolist(), seeds, strict=True)]
        return collate(made, deferred=deferred) if collate_fn is None else collate_fn(made)

    def _seeds(self, shards: Int64s, samples: Int64s, epochs: Int64s) -> list[int]:
        if not self._needs_seeds:
            return [0] * len(shards)
        keys = mix_keys(mix_key(self._seed), epochs, _AUGMENTATION, shards, samples)
        return [key >> 1 for key in keys.tolist()]

    def _sample(self, number: int, sample: int, seed: int) -> Any:
        shard = self._reader.shard(number)
        key = shard.key(sample)
        entries: Sample = {"__key__": key, "__shard__": shard.name}
        if shard.dataset:
            entries["__dataset__"] = shard.dataset
        for entry, extension, place in self._chosen(shard, sample):
            entries[entry] = self._value(extension, shard.member(sample, place), seed, shard.name, key)
        if self._transform is None:
            return entries
        return self._transform(entries, seed) if self._transform_is_seeded else self._transform(entries)

    def _columns(self, numbers: list[int], samples: list[int], seeds: list[int], deferred: bool) -> Batch:
        """Collect members by column, with no dict for each sample, then decode each column."""
        names: list[str] = []
        datasets: list[str] = []
        keys: list[str] = []
        members: dict[str, list[memoryview]] = {}
        extensions: dict[str, list[str]] = {}
        opened: dict[int, tuple[MappedShard, Chosen | None]] = {}
        for number, sample in zip(numbers, samples, strict=True):
            if number not in opened:
                shard = self._reader.shard(number)
                opened[number] = shard, self._chosen(shard, sample) if shard.is_uniform else None
            shard, chosen = opened[number]
            names.append(shard.name)
            datasets.append(shard.dataset)
            keys.append(shard.key(sample))
            for entry, extension, place in chosen or self._chosen(shard, sample):
                if entry not in members:
                    members[entry], extensions[entry] = [], []
                members[entry].append(shard.member(sample, place))
                extensions[entry].append(extension)
        batch: Batch = {"__key__": keys, "__shard__": names}
        if any(datasets):
            batch["__dataset__"] = datasets
        for entry, parts in members.items():
            if len(parts) != len(keys):
                raise SampleError(
                    f"{len(parts)} of the {len(keys)} samples from {keys[0]!r} on have a member {entry!r}: "
                    f"name the fields that all samples have, as in fields=('jpg;png', 'cls')"
                )
            batch[entry] = self._column(entry, extensions[entry], parts, seeds, names, keys, deferred)
        return batch

    def _column(
        self,
        entry: str,
        extensions: list[str],
        parts: list[memoryview],
        seeds: list[int],
        names: list[str],
        keys: list[str],
        deferred: bool,
    ) -> Any:
        if self._decoder.is_raw:
            return Ragged.of(parts)
        pieces = self._decoder.stacked(extensions, parts)
        if pieces is not None:
            return pieces if deferred else pieces.tensor()
        values = [self._value(*one) for one in zip(extensions, parts, seeds, names, keys, strict=True)]
        return column(entry, values, repr(keys[0]), deferred=deferred)

    def _value(self, extension: str, data: memoryview, seed: int, name: str, key: str) -> Any:
        try:
            return self._decoder(extension, bytes(data), seed)
        except DecodeError as error:
            raise DecodeError(f"{name}: member {key}.{extension}: {error}") from error

    def _chosen(self, shard: MappedShard, sample: int) -> Chosen:
        try:
            return self._fields.choose(shard.layout(sample))
        except SampleError as error:
            raise SampleError(f"sample {shard.key(sample)!r} of {shard.name} {error}") from None
