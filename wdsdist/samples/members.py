"""The members of the samples of a batch, gathered by field, and decoded by column or by sample.

Gathering takes views of the mapped shards. Decoding by column gives the columns of a batch; decoding by sample holds
one decoded sample at a time, which a transform makes smaller. Both decode a member in the same function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from wdsdist.errors import BadSample, SampleError
from wdsdist.samples.bad_samples import ADVICE, described, is_fault_of_sample
from wdsdist.samples.collate import Batch, Ragged, Sample, make_column
from wdsdist.samples.fields import ABSENT, Chosen
from wdsdist.samples.marks import Part
from wdsdist.samples.padding import PADDING
from wdsdist.samples.sample_spec import RAW, SampleSpec, Step
from wdsdist.shards.manifest.listing import PARTS
from wdsdist.shards.source import OpenShard

BAD: Final = object()
"""Stands for a sample that is bad and is to be replaced."""

_EMPTY = memoryview(b"")
_LACKING = memoryview(bytearray())
"""Stands for the member of a field that other samples of the batch have."""


class Rows(NamedTuple):
    """The samples of a batch, one in each row."""

    specs: Mapping[OpenShard, SampleSpec]
    """How the samples of each shard are made."""
    shards: Sequence[OpenShard]
    samples: Sequence[int]
    """Their numbers in their shards."""
    seeds: Sequence[int]
    padding: Sequence[bool] | None
    """Which are padding, if it is marked."""
    parts: Sequence[Part] | None
    """Which part of its record each is, if the data set has parts."""

    def part(self, row: int) -> Part | None:
        """Return which part of its record a sample is, if the data set has parts."""
        return None if self.parts is None else self.parts[row]

    def substitute(self, row: int, sample: int, part: Part | None) -> Rows:
        """Return one row: a row of these with another sample of its shard."""
        padding = None if self.padding is None else [self.padding[row]]
        shard = self.shards[row]
        parts = None if part is None else [part]
        return Rows({shard: self.specs[shard]}, [shard], [sample], [self.seeds[row]], padding, parts)


class _Column:
    """The members of one field, one in each row."""

    __slots__ = ("extensions", "parts", "values")

    def __init__(self, extensions: list[str], parts: list[memoryview]) -> None:
        self.extensions = extensions
        self.parts = parts
        self.values: list[Any] = []
        """The decoded members, as far as the column is decoded."""


class Members:
    """The members of the samples of a batch.

    Args:
        rows: the samples.
        optional: names of fields that a sample may lack.
        strict: raise the error of a bad sample, even if its policy replaces it.
    """

    def __init__(self, rows: Rows, optional: frozenset[str], *, strict: bool = False) -> None:
        self.rows = rows
        self.bad: dict[int, tuple[str, str]] = {}
        """The bad samples that are to be replaced, by their row: the bad field, and the reason."""
        self._optional = optional
        self._decoders = {RAW if spec.decoder.is_raw else spec.decoder for spec in rows.specs.values()}
        self._replaces = not strict and any(spec.policy.replaces for spec in rows.specs.values())
        self._columns: dict[str, _Column] = {}
        self._is_uneven = False
        self._gather()

    @property
    def keys(self) -> list[str]:
        """The keys of the samples."""
        return [shard.key(sample) for shard, sample in zip(self.rows.shards, self.rows.samples, strict=True)]

    def _gather(self) -> None:
        """Take a view of each member, by field."""
        shards, samples = self.rows.shards, self.rows.samples
        alike = self._only_choice()
        if alike is not None:  # the usual case: all samples have the same members
            for field, extension, index in alike:
                parts = [
                    _EMPTY if index == ABSENT else shard.member(sample, index)
                    for shard, sample in zip(shards, samples, strict=True)
                ]
                self._columns[field] = _Column([extension] * len(parts), parts)
            return
        for row, (shard, sample) in enumerate(zip(shards, samples, strict=True)):
            try:
                chosen = self.rows.specs[shard].fields.choose(shard.layout(sample))
            except SampleError as error:
                message = f"sample {shard.key(sample)!r} of {shard.name} {error}"
                bad = self._bad_sample(row, message, error.field, error.reason)
                if not self._is_replaced(row, bad):
                    raise bad from None
                continue
            for field, extension, index in chosen:
                column = self._columns.get(field)
                if column is None:
                    column = self._columns[field] = _Column([""] * len(shards), [_LACKING] * len(shards))
                column.extensions[row] = extension
                column.parts[row] = _EMPTY if index == ABSENT else shard.member(sample, index)
        self._is_uneven = any(part is _LACKING for column in self._columns.values() for part in column.parts)

    def _only_choice(self) -> Chosen | None:
        """Return the members that each sample is made of, or ``None`` if samples differ or lack a field."""
        try:
            choices = {
                spec.fields.choose(shard.layout(0)) if shard.is_uniform else None
                for shard, spec in self.rows.specs.items()
            }
        except SampleError:
            return None
        return choices.pop() if len(choices) == 1 else None

    def _step(self, field: str, column: _Column) -> Step | None:
        """Return how a column is decoded, if all its members are decoded alike and no sample is bad."""
        decoder, extension = next(iter(self._decoders)), column.extensions[0]
        is_alike = decoder.is_raw or column.extensions.count(extension) == len(column.parts)
        if len(self._decoders) > 1 or not is_alike or field in self._optional or self.bad:
            return None
        return decoder.step(field, extension) if not self._replaces or all(map(len, column.parts)) else None

    def columns(self, *, deferred: bool, copied: bool) -> Batch | None:
        """Return the batch as columns; ``None`` if its samples differ in their fields, or some are bad.

        Args:
            deferred: leave tensors in pieces, and byte strings where they lie.
            copied: copy the byte strings of raw columns.

        Raises `SampleError` for a sample that does not decode, and for values that do not have one shape.
        """
        if self._is_uneven or self.bad:
            return None
        rows, keys = self.rows, self.keys
        batch: Batch = {"__key__": keys, "__shard__": [shard.name for shard in rows.shards]}
        if any(shard.dataset for shard in rows.specs):
            batch["__dataset__"] = [shard.dataset for shard in rows.shards]
        if rows.parts is not None:
            for name, values in zip(PARTS, zip(*rows.parts, strict=True), strict=True):
                batch[name] = make_column(name, list(values), keys)
        for field, column in self._columns.items():
            batch[field] = self._decoded(field, column, keys, deferred=deferred, copied=copied)
        if rows.padding is not None:
            batch[PADDING] = make_column(PADDING, list(rows.padding), keys)
        return None if self.bad else batch

    def _decoded(self, field: str, column: _Column, keys: list[str], *, deferred: bool, copied: bool) -> Any:
        """Return the column of a field, decoded; if it has bad samples, its values are kept for the samples."""
        values = column.values = list[Any]()
        step = self._step(field, column)
        if step is not None:
            if step.is_raw:  # a batch that the user keeps must not keep room in the cache
                return Ragged.of(column.parts).copied() if copied else Ragged.of(column.parts)
            pieces = step.stacked(column.parts)
            if pieces is not None:
                return pieces if deferred else pieces.tensor()
            read = step.plain
            if read is not None:
                with suppress(Exception):  # which the other loop meets again and names
                    for data in column.parts:
                        values.append(read(data))
        for row in range(len(values), len(column.parts)):
            try:
                value = self._value(field, column, row)
            except Exception as error:
                if not self._is_replaced(row, error):
                    raise
                value = BAD
            values.append(value)
        return values if field in self._optional or self.bad else make_column(field, values, keys, deferred=deferred)

    def sample(self, row: int) -> Any:
        """Return one sample of the batch, decoded and transformed; `BAD` if it is bad and its policy replaces it.

        A transform sees the mark of padding, and need not return it.
        """
        if row in self.bad:
            return BAD
        rows, shard = self.rows, self.rows.shards[row]
        entries: Sample = {"__key__": shard.key(rows.samples[row]), "__shard__": shard.name}
        if shard.dataset:
            entries["__dataset__"] = shard.dataset
        if rows.parts is not None:
            entries.update(zip(PARTS, rows.parts[row], strict=True))
        try:
            for field, column in self._columns.items():
                if column.parts[row] is not _LACKING:
                    entries[field] = self._value(field, column, row)
            if rows.padding is not None:
                entries[PADDING] = rows.padding[row]
            value = self._transformed(row, entries)
        except Exception as error:
            if not self._is_replaced(row, error):
                raise
            return BAD
        if rows.padding is not None and isinstance(value, dict) and PADDING not in value:
            return {**value, PADDING: rows.padding[row]}
        return value

    def _value(self, field: str, column: _Column, row: int) -> Any:
        """Return the value of a member; its error names the shard, the sample and the field."""
        if row < len(column.values):
            return column.values[row]
        data, extension = column.parts[row], column.extensions[row]
        rows = self.rows
        shard, sample = rows.shards[row], rows.samples[row]
        spec = rows.specs[shard]
        try:
            if not len(data):
                if field in self._optional:
                    return None
                if spec.policy.replaces:
                    raise SampleError("is empty")
            unzip = None
            if extension.endswith(".gz"):
                unzip = shard.unzip(sample, shard.layout(sample).index(extension))
            return spec.decoder(extension, data, rows.seeds[row], unzip, field=field, part=rows.part(row))
        except SampleError as error:
            message = f"{shard.name}: member {shard.key(sample)}.{extension}: {error}"
            is_advised = is_fault_of_sample(error)
            raise self._bad_sample(row, message, field, str(error), is_advised=is_advised) from error

    def _transformed(self, row: int, entries: Sample) -> Any:
        """Apply the transform to a sample; an error names the shard and the key."""
        rows, shard = self.rows, self.rows.shards[row]
        spec = rows.specs[shard]
        if spec.transform is None:
            return entries
        part = rows.part(row)
        try:
            value = spec.transformed(entries, rows.seeds[row], part)
        except Exception as error:
            if spec.policy.replaces:
                raise
            name = f"sample {shard.key(rows.samples[row])!r} of {shard.name}"
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
        return value

    def _bad_sample(self, row: int, message: str, field: str, reason: str, *, is_advised: bool = True) -> SampleError:
        """Return the error of a sample that lacks a field, or whose field does not decode."""
        replaces = self.rows.specs[self.rows.shards[row]].policy.replaces
        error = SampleError(f"{message}{ADVICE if is_advised and not replaces else ''}")
        error.field, error.reason = field, reason
        return error

    def _is_replaced(self, row: int, error: Exception) -> bool:
        """Note that a sample is bad; return whether its policy replaces it."""
        policy = self.rows.specs[self.rows.shards[row]].policy
        if not (self._replaces and policy.replaces and is_fault_of_sample(error)):
            return False
        self.bad.setdefault(row, described(error))  # not the error, whose traceback holds views of the shard
        return True
