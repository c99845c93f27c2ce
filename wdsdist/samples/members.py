"""The members of the samples of a batch, gathered by field, and decoded by column or by sample.

Gathering takes views of the mapped shards. Decoding by column gives the columns of a batch; decoding by sample holds
one decoded sample at a time, which a transform makes smaller. Both decode a member in the same function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from wdsdist.errors import BadSample, SampleError
from wdsdist.samples.bad_samples import ADVICE, is_fault_of_sample
from wdsdist.samples.collate import PADDING, Batch, PerSample, Ragged, Sample, make_column
from wdsdist.samples.fields import ABSENT, Chosen
from wdsdist.samples.marks import Part, caller
from wdsdist.samples.sample_spec import RAW, SampleSpec, Step
from wdsdist.shards.manifest.listing import PARTS
from wdsdist.shards.source import OpenShard

_EMPTY = memoryview(b"")
_LACKING = memoryview(bytearray())
"""Stands for the member of a field that other samples of the batch have."""


class _Column(NamedTuple):
    """The members of one field, one in each row."""

    extensions: list[str]
    parts: list[memoryview]
    values: list[Any]
    """The decoded members, as far as the column is decoded."""


@dataclass(eq=False)
class Members:
    """The members of the samples of a batch, one sample in each row.

    Raises `SampleError` for a sample that lacks a field, unless another sample is to replace it.
    """

    specs: Mapping[OpenShard, SampleSpec]
    """How the samples of each shard are made."""
    optional: frozenset[str]
    """Names of fields that a sample may lack."""
    shards: Sequence[OpenShard]
    samples: Sequence[int]
    """Their numbers in their shards."""
    seeds: Sequence[int]
    padding: Sequence[bool | None]
    """Whether each is padding; ``None`` if padding is not marked."""
    parts: Sequence[Part | None]
    """Which part of its record each is; ``None`` for a whole one."""

    def __post_init__(self) -> None:
        specs = set(self.specs.values())
        self._decoders = {RAW if spec.decoder.is_raw else spec.decoder for spec in specs}
        self._transforms = {spec: caller(spec.transform) for spec in specs if spec.transform is not None}
        self._columns: dict[str, _Column] = {}
        self._lacking: set[int] = set()  # rows of samples that lack a field and are to be replaced
        self._gather()

    def substitute(self, row: int, sample: int, part: Part | None) -> Members:
        """Return the members of a substitute sample from the same shard, for the bad sample in a row."""
        seeds, padding = [self.seeds[row]], [self.padding[row]]
        return Members(self.specs, self.optional, [self.shards[row]], [sample], seeds, padding, [part])

    @property
    def keys(self) -> list[str]:
        """The keys of the samples."""
        stored = [shard.key_bytes(sample) for shard, sample in zip(self.shards, self.samples, strict=True)]
        keys = b"\0".join(stored).decode("utf-8", "surrogateescape").split("\0")  # one by one takes twice as long
        if len(keys) != len(stored):  # a foreign index may hold a key with a NUL
            keys = [str(key, "utf-8", "surrogateescape") for key in stored]
        return keys

    def replaces(self, row: int, error: Exception) -> bool:
        """Return whether another sample is to replace the one whose making raised an error."""
        return self.specs[self.shards[row]].policy.replaces and is_fault_of_sample(error)

    def _gather(self) -> None:
        """Take a view of each member, by field."""
        shards, samples = self.shards, self.samples
        alike = self._only_choice()
        if alike is not None:  # the usual case: all samples have the same members
            for field, extension, index in alike:
                parts = [
                    _EMPTY if index == ABSENT else shard.member(sample, index)
                    for shard, sample in zip(shards, samples, strict=True)
                ]
                self._columns[field] = _Column([extension] * len(parts), parts, [])
            return
        for row, (shard, sample) in enumerate(zip(shards, samples, strict=True)):
            try:
                chosen = self._choice(row)
            except SampleError as error:
                if not self.replaces(row, error):
                    raise
                self._lacking.add(row)
                continue
            for field, extension, index in chosen:
                column = self._columns.get(field)
                if column is None:
                    column = self._columns[field] = _Column([""] * len(shards), [_LACKING] * len(shards), [])
                column.extensions[row] = extension
                column.parts[row] = _EMPTY if index == ABSENT else shard.member(sample, index)

    def _only_choice(self) -> Chosen | None:
        """Return the members that each sample is made of, or ``None`` if samples differ or lack a field."""
        layouts = {(spec, shard.only_layout) for shard, spec in self.specs.items()}
        try:
            choices = {None if layout is None else spec.fields.choose(layout) for spec, layout in layouts}
        except SampleError:
            return None
        return choices.pop() if len(choices) == 1 else None

    def _choice(self, row: int) -> Chosen:
        """Return the members that a sample is made of. Raises `SampleError` for a sample that lacks a field."""
        shard, sample = self.shards[row], self.samples[row]
        try:
            return self.specs[shard].fields.choose(shard.layout(sample))
        except SampleError as error:
            message = f"sample {shard.key(sample)!r} of {shard.name} {error}; if only some samples lack it, ask for "
            raise self._bad_sample(row, f"{message}{error.field + '?'!r}", error.field, error.reason, error) from None

    def columns(self, *, deferred: bool, copied: bool) -> Batch | None:
        """Return the batch as columns; ``None`` if its samples differ in their fields, or some are to be replaced.

        Args:
            deferred: leave tensors in pieces, and byte strings in place.
            copied: copy the byte strings of raw columns.

        Raises `SampleError` for a sample that does not decode, and for values that do not have one shape.
        """
        keys = self.keys
        if self._lacking or any(part is _LACKING for column in self._columns.values() for part in column.parts):
            return None
        batch: Batch = {"__key__": keys, "__shard__": [shard.name for shard in self.shards]}
        if any(shard.dataset for shard in self.specs):
            batch["__dataset__"] = [shard.dataset for shard in self.shards]
        if self.parts[0] is not None:
            for name, values in zip(PARTS, zip(*self.parts, strict=True), strict=True):
                batch[name] = make_column(name, list(values), keys)
        for field, column in self._columns.items():
            step = self._step(field, column)
            if step is not None and step.is_raw:
                batch[field] = raw = Ragged.of(column.parts)
                if copied:  # a batch that the user keeps must not keep room in the cache
                    batch[field] = Ragged(raw.data, raw.offsets)
                continue
            pieces = None if step is None else step.stacked(column.parts)
            if pieces is not None:
                batch[field] = pieces if deferred else pieces.tensor()
                continue
            if not self._decode(field, column, step):
                return None
            is_list, values = field in self.optional, column.values
            batch[field] = PerSample(values) if is_list else make_column(field, values, keys, deferred=deferred)
        if self.padding[0] is not None:
            batch[PADDING] = make_column(PADDING, list(self.padding), keys)
        return batch

    def _step(self, field: str, column: _Column) -> Step | None:
        """Return how a column is decoded, if all its members are decoded alike and no empty one is bad."""
        decoder, extension = next(iter(self._decoders)), column.extensions[0]
        is_alike = decoder.is_raw or column.extensions.count(extension) == len(column.parts)
        if len(self._decoders) > 1 or not is_alike or field in self.optional:
            return None
        replaces = any(spec.policy.replaces for spec in self.specs.values())
        return decoder.step(field, extension) if not replaces or all(map(len, column.parts)) else None

    def _decode(self, field: str, column: _Column, step: Step | None) -> bool:
        """Decode a column of a batch; return false if a member does not decode."""
        values = column.values
        if step is not None and not step.layers:
            with suppress(Exception):  # which the other loop meets again and names
                values.extend(map(step.read, column.parts, self.seeds, self.parts))
        while len(values) < len(column.parts):
            row = len(values)
            try:
                values.append(self._value(field, column, row))
            except Exception as error:
                if not self.replaces(row, error):
                    raise
                return False
        return True

    def sample(self, row: int) -> Any:
        """Return one sample of the batch, decoded and transformed.

        A transform sees the mark of padding, and need not return it.

        Raises `SampleError` for a sample that lacks a field or does not decode, and what a transform raises; its error
        names the shard and the key.
        """
        if row in self._lacking:
            self._choice(row)
        shard, part, padding = self.shards[row], self.parts[row], self.padding[row]
        entries: Sample = {"__key__": shard.key(self.samples[row]), "__shard__": shard.name}
        if shard.dataset:
            entries["__dataset__"] = shard.dataset
        if part is not None:
            entries.update(zip(PARTS, part, strict=True))
        for field, column in self._columns.items():
            if column.parts[row] is not _LACKING:
                entries[field] = self._value(field, column, row)
        if padding is not None:
            entries[PADDING] = padding
        spec = self.specs[shard]
        if spec.transform is None:
            return entries
        try:
            value = self._transforms[spec](entries, self.seeds[row], part)
        except Exception as error:
            if spec.policy.replaces:
                raise
            name = f"sample {shard.key(self.samples[row])!r} of {shard.name}"
            name = name if part is None else f"part {part.number} of {part.total} of {name}"
            if isinstance(error, BadSample):
                raise BadSample(f"{name} is bad: {error}{ADVICE}") from error
            if isinstance(error, StopIteration):  # unchanged, it would end the batch or the epoch
                raise RuntimeError(
                    f"transform= raised StopIteration for {name}: has it exhausted an iterator?"
                ) from error
            error.add_note(f"raised by transform= for {name}")
            raise
        if value is None and spec.policy.replaces:
            raise BadSample("transform returned None")
        if padding is not None and isinstance(value, dict) and PADDING not in value:
            return {**value, PADDING: padding}
        return value

    def _value(self, field: str, column: _Column, row: int) -> Any:
        """Return the value of a member; its error names the shard, the sample and the field."""
        if row < len(column.values):
            return column.values[row]
        data, extension = column.parts[row], column.extensions[row]
        shard, sample = self.shards[row], self.samples[row]
        spec = self.specs[shard]
        try:
            if not len(data):
                if field in self.optional:
                    return None
                if spec.policy.replaces:
                    raise SampleError("is empty")
            unzip = None
            if extension.endswith(".gz"):
                unzip = shard.unzip(sample, shard.layout(sample).index(extension))
            return spec.decoder(extension, data, self.seeds[row], unzip, field=field, part=self.parts[row])
        except SampleError as error:
            message = f"{shard.name}: member {shard.key(sample)}.{extension}: {error}"
            raise self._bad_sample(row, message, field, str(error), error) from error

    def _bad_sample(self, row: int, message: str, field: str, reason: str, cause: Exception) -> SampleError:
        """Return the error of a sample that lacks a field, or whose field does not decode."""
        is_replaced = self.specs[self.shards[row]].policy.replaces
        error = SampleError(message if is_replaced or not is_fault_of_sample(cause) else message + ADVICE)
        error.field, error.reason = field, reason
        return error
