"""Samples and batches from (shard, sample) pairs: choose members, decode, transform, collate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from wdsdist.decode import Decoder
from wdsdist.errors import ArgumentTypeError, DecodeError, SampleError
from wdsdist.shards import ShardReader
from wdsdist.transport import Batch, Ragged, Sample, collate


class Fields:
    """Chooses members by the extensions that ``fields=`` names.

    >>> fields = Fields(("jpg;png", "cls"))
    >>> fields.choose([("cls", b"7"), ("png", b"..."), ("txt", b"no")], "k", "s.tar")
    [('jpg', 'png', b'...'), ('cls', 'cls', b'7')]
    """

    def __init__(self, fields: Sequence[str] | None) -> None:
        if isinstance(fields, str) or not all(isinstance(field, str) and field for field in fields or ()):
            raise ArgumentTypeError(f"fields is {fields!r}: it must be a list of extensions such as ('jpg;png', 'cls')")
        self._alternatives = [tuple(field.lower().split(";")) for field in fields] if fields is not None else None

    def choose(self, members: list[tuple[str, Any]], key: str, shard: str) -> list[tuple[str, str, Any]]:
        """Return (entry name, extension, data) for each field; the entry has the name of the first alternative.

        Raises `SampleError` where the sample has none of a field's alternatives.
        """
        if self._alternatives is None:
            return [(extension, extension, data) for extension, data in members]
        held = dict(members)
        chosen = []
        for names in self._alternatives:
            extension = next((name for name in names if name in held), None)
            if extension is None:
                raise SampleError(
                    f"sample {key!r} of {shard} has no member {' or '.join(map(repr, names))}: "
                    f"it has {', '.join(sorted(held)) or 'none'}"
                )
            chosen.append((names[0], extension, held[extension]))
        return chosen


class SampleReader:
    """Makes samples and batches; the part of a data set that does its work in the workers."""

    def __init__(
        self, reader: ShardReader, fields: Fields, decoder: Decoder, transform: Callable[[Sample], Any] | None
    ) -> None:
        self._reader = reader
        self._fields = fields
        self._decoder = decoder
        self._transform = transform

    def sample(self, shard: int, sample: int) -> Any:
        """Return one sample, decoded and transformed.

        Raises `SampleError` where a field is missing and `DecodeError`, naming shard and member, where one is bad.
        """
        name, key, members = self._members(shard, sample)
        entries: Sample = {"__key__": key, "__shard__": name}
        for entry, extension, data in members:
            try:
                entries[entry] = self._decoder(extension, bytes(data))
            except DecodeError as error:
                raise DecodeError(f"{name}: member {key}.{extension}: {error}") from error
        return entries if self._transform is None else self._transform(entries)

    def batch(
        self, shards: Iterable[int], samples: Iterable[int], collate_fn: Callable[[list[Any]], Any] | None
    ) -> Any:
        """Return the batch of the given samples, made by ``collate_fn`` or as columns."""
        pairs = list(zip(shards, samples, strict=True))
        if collate_fn is not None:
            return collate_fn([self.sample(*pair) for pair in pairs])
        if self._decoder.is_raw and self._transform is None:
            return self._raw_batch(pairs)
        return collate([self.sample(*pair) for pair in pairs])

    def _raw_batch(self, pairs: list[tuple[int, int]]) -> Batch:
        """Gather bytes straight from the mapped shards, with no object for each member."""
        names: list[str] = []
        keys: list[str] = []
        columns: dict[str, list[memoryview]] = {}
        for shard, sample in pairs:
            name, key, members = self._members(shard, sample)
            names.append(name)
            keys.append(key)
            for entry, _, data in members:
                columns.setdefault(entry, []).append(data)
        batch: Batch = {"__key__": keys, "__shard__": names}
        for entry, column in columns.items():
            if len(column) != len(pairs):
                raise SampleError(
                    f"{len(column)} of the {len(pairs)} samples from {keys[0]!r} on have a member {entry!r}: "
                    f"name the fields that all samples have, as in fields=('jpg;png', 'cls')"
                )
            batch[entry] = Ragged.pack(column)
        return batch

    def _members(self, shard: int, sample: int) -> tuple[str, str, list[tuple[str, str, memoryview]]]:
        opened = self._reader.shard(shard)
        key = opened.index.key(sample)
        return opened.name, key, self._fields.choose(opened.members(sample), key, opened.name)
