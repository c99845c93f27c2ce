"""The members of the samples of a batch, gathered by field, and decoded by column or by sample.

Gathering takes views of the mapped shards. Decoding by column gives the columns of a batch; decoding by sample holds
one decoded sample at a time, which a transform makes smaller. Both decode a member in the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from wdsdist.errors import BadSample, SampleError
from wdsdist.samples.bad_samples import ADVICE, described, is_fault_of_sample
from wdsdist.samples.collate import Batch, Ragged, Sample, check_alike, make_column
from wdsdist.samples.fields import ABSENT, Chosen
from wdsdist.samples.marks import Part
from wdsdist.samples.padding import PADDING
from wdsdist.samples.sample_spec import SampleSpec, Step
from wdsdist.shards.manifest.listing import PARTS
from wdsdist.shards.source import OpenShard

BAD: Final = object()
"""Stands for a sample that is bad and is to be replaced."""

_EMPTY = memoryview(b"")
_LACKING = memoryview(bytearray())
"""Stands for the member of a field that other samples of the batch have."""


class OpenedShard:
    """A shard that is readable, and the specification of its samples."""

    __slots__ = ("number", "shard", "spec")

    def __init__(self, number: int, shard: OpenShard, spec: SampleSpec) -> None:
        self.number = number
        self.shard = shard
        self.spec = spec

    def members(self, sample: int) -> Chosen:
        """Return the members that a sample is made of. Raises `SampleError` when it lacks a field."""
        try:
            return self.spec.fields.choose(self.shard.layout(sample))
        except SampleError as error:
            message = f"sample {self.shard.key(sample)!r} of {self.shard.name} {error}"
            raise self._bad(message, error.field, error.reason) from None

    def decoded(
        self, sample: int, seed: int, part: Part | None, field: str, extension: str, data: memoryview, optional: bool
    ) -> Any:
        """Return the value of a member; its error names the shard, the sample and the field."""
        try:
            if not len(data):
                if optional:
                    return None
                if self.spec.policy.replaces:
                    raise SampleError("is empty")
            unzip = None
            if extension.endswith(".gz"):
                unzip = self.shard.unzip(sample, self.shard.layout(sample).index(extension))
            return self.spec.decoder(extension, data, seed, unzip, field=field, part=part)
        except SampleError as error:
            is_advised = is_fault_of_sample(error) and not self.spec.policy.replaces
            message = f"{self.shard.name}: member {self.shard.key(sample)}.{extension}: {error}"
            raise self._bad(message, field, str(error), is_advised=is_advised) from error

    def transformed(self, sample: int, seed: int, part: Part | None, entries: Sample) -> Any:
        """Return what the transform makes of a sample; its error names the shard and the sample."""
        spec = self.spec
        if spec.transform is None:
            return entries
        if spec.policy.replaces:
            made = spec.transformed(entries, seed, part)
            if made is None:
                raise BadSample("transform returned None")
            return made
        try:
            return spec.transformed(entries, seed, part)
        except Exception as error:
            name = f"sample {self.shard.key(sample)!r} of {self.shard.name}"
            name = name if part is None else f"part {part.number} of {part.total} of {name}"
            if isinstance(error, BadSample):
                raise BadSample(f"{name} is bad: {error}{ADVICE}") from error
            if isinstance(error, StopIteration):  # unchanged, it would end the batch or the epoch
                raise RuntimeError(
                    f"transform= raised StopIteration for {name}: has it exhausted an iterator?"
                ) from error
            error.add_note(f"raised by transform= for {name}")
            raise

    def _bad(self, message: str, field: str, reason: str, *, is_advised: bool = True) -> SampleError:
        is_advised = is_advised and not self.spec.policy.replaces
        error = SampleError(f"{message}{ADVICE if is_advised else ''}")
        error.field, error.reason = field, reason
        return error


Row = tuple[OpenedShard, int, int, bool | None, Part | None]
"""One sample of a batch: its shard, its number there, its seed, whether it is padding if that is marked, and which part
of its record it is if the data set has parts."""


class _Column:
    """The members of one field, one for each sample of a batch."""

    __slots__ = ("extensions", "parts", "read", "values")

    def __init__(self, extensions: list[str], parts: list[memoryview]) -> None:
        self.extensions = extensions
        self.parts = parts
        self.values: list[Any] = []
        """The decoded members, as far as the column is decoded."""
        self.read: Callable[[memoryview], Any] | None = None
        """Decodes any of the members by its bytes alone, if there is such a function."""


class Members:
    """The members of the samples of a batch.

    Args:
        rows: the samples.
        optional: names of fields that a sample may lack.
        strict: raise the error of a bad sample, even if its policy replaces it.
    """

    def __init__(self, rows: Sequence[Row], optional: frozenset[str], *, strict: bool = False) -> None:
        self.rows = rows
        self.bad: dict[int, tuple[str, str]] = {}
        """The bad samples that are to be replaced, by their number in the batch: the bad field, and the reason."""
        self._optional = optional
        opened, samples, *_ = zip(*rows, strict=True)
        self._opened: dict[OpenedShard, int] = dict(zip(opened, samples, strict=True))  # with one of its samples
        self._members = list(zip([shard.shard for shard in opened], samples, strict=True))
        self._decoders = {shard.spec.decoder for shard in self._opened}
        self._replaces = not strict and any(shard.spec.policy.replaces for shard in self._opened)
        self._columns: dict[str, _Column] = {}
        self._is_uneven = False
        self._gather()

    def _gather(self) -> None:
        """Take a view of each member, by field."""
        opened_shards = self._opened.items()
        try:
            layouts = {opened.members(sample) if opened.shard.is_uniform else None for opened, sample in opened_shards}
        except SampleError:
            layouts = {None}
        chosen = layouts.pop()
        if chosen is not None and not layouts:  # the usual case: all samples have the same members
            for field, extension, index in chosen:
                parts = [_EMPTY if index == ABSENT else shard.member(sample, index) for shard, sample in self._members]
                self._columns[field] = _Column([extension] * len(parts), parts)
            return
        for number, (opened, sample, *_) in enumerate(self.rows):
            try:
                chosen = opened.members(sample)
            except SampleError as error:
                if not self._is_replaced(number, error):
                    raise
                continue
            for field, extension, index in chosen:
                column = self._columns.get(field)
                if column is None:
                    column = self._columns[field] = _Column([""] * len(self.rows), [_LACKING] * len(self.rows))
                column.extensions[number] = extension
                column.parts[number] = _EMPTY if index == ABSENT else opened.shard.member(sample, index)
        self._is_uneven = any(part is _LACKING for column in self._columns.values() for part in column.parts)

    def _step(self, field: str, column: _Column) -> Step | None:
        """Return how a column is decoded, if all its members are decoded alike and no sample is bad."""
        if field in self._optional or self._is_uneven or self.bad:
            return None
        if self._replaces and not all(map(len, column.parts)):
            return None
        extension, decoders = column.extensions[0], self._decoders
        is_alike = len(decoders) == 1 and column.extensions.count(extension) == len(column.parts)
        if not is_alike and not all(decoder.is_raw for decoder in decoders):
            return None
        return next(iter(decoders)).step(field, extension)

    def columns(self, *, deferred: bool, copied: bool) -> Batch | None:
        """Return the batch as columns; ``None`` when it has bad samples, so that it must be made of samples.

        Args:
            deferred: leave tensors in pieces, and byte strings where they lie.
            copied: copy the byte strings of raw columns.

        Raises `SampleError` when the samples do not have the same fields, or values of one shape.
        """
        keys = [shard.key(sample) for shard, sample in self._members]
        batch: Batch = {"__key__": keys, "__shard__": [shard.name for shard, _ in self._members]}
        if any(opened.shard.dataset for opened in self._opened):
            batch["__dataset__"] = [shard.dataset for shard, _ in self._members]
        if self.rows[0][4] is not None:
            numbers = zip(*(row[4] for row in self.rows if row[4] is not None), strict=True)
            for name, values in zip(PARTS, numbers, strict=True):
                batch[name] = make_column(name, list(values), keys)
        if self._is_uneven and not self.bad:
            check_alike([self._fields_of(number, key) for number, key in enumerate(keys)])
        for field, column in self._columns.items():
            batch[field] = self._built(field, column, keys, deferred=deferred, copied=copied)
        return None if self.bad else batch

    def _built(self, field: str, column: _Column, keys: list[str], *, deferred: bool, copied: bool) -> Any:
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
        for number in range(len(values), len(self.rows)):
            try:
                value = self._value(field, column, number)
            except Exception as error:
                if not self._is_replaced(number, error):
                    raise
                value = BAD
            values.append(value)
        return values if field in self._optional or self.bad else make_column(field, values, keys, deferred=deferred)

    def prepare(self) -> None:
        """Find the functions of bytes that decode columns, before the samples are made one by one."""
        for field, column in self._columns.items():
            step = self._step(field, column)
            column.read = None if step is None else step.plain

    def sample(self, number: int) -> Any:
        """Return one sample of the batch, decoded and transformed; `BAD` if it is bad and its policy replaces it.

        A transform sees the mark of padding, and need not hand it on.
        """
        if number in self.bad:
            return BAD
        opened, sample, seed, padding, part = self.rows[number]
        entries: Sample = {"__key__": opened.shard.key(sample), "__shard__": opened.shard.name}
        if opened.shard.dataset:
            entries["__dataset__"] = opened.shard.dataset
        if part is not None:
            entries.update(zip(PARTS, part, strict=True))
        try:
            for field, column in self._columns.items():
                if column.parts[number] is not _LACKING:
                    entries[field] = self._value(field, column, number)
            if padding is not None:
                entries[PADDING] = padding
            made = opened.transformed(sample, seed, part, entries)
        except Exception as error:
            if not self._is_replaced(number, error):
                raise
            return BAD
        if padding is not None and isinstance(made, dict) and PADDING not in made:
            return {**made, PADDING: padding}
        return made

    def _value(self, field: str, column: _Column, number: int) -> Any:
        if number < len(column.values):
            return column.values[number]
        data = column.parts[number]
        if column.read is not None:
            with suppress(Exception):  # which decoding meets again and names
                return column.read(data)
        opened, sample, seed, _, part = self.rows[number]
        if data is _LACKING:  # of a bad sample, or of a batch whose samples differ in their fields
            return BAD
        return opened.decoded(sample, seed, part, field, column.extensions[number], data, field in self._optional)

    def _is_replaced(self, number: int, error: Exception) -> bool:
        """Note that a sample is bad; return whether its policy replaces it."""
        if not (self._replaces and self.rows[number][0].spec.policy.replaces and is_fault_of_sample(error)):
            return False
        self.bad.setdefault(number, described(error))  # not the error, whose traceback holds views of the shard
        return True

    def _fields_of(self, number: int, key: str) -> Sample:
        """Return a sample without its members' data."""
        fields = {field: None for field, column in self._columns.items() if column.parts[number] is not _LACKING}
        return {"__key__": key, "__dataset__": self.rows[number][0].shard.dataset, **fields}
