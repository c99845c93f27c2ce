"""One sample: its members chosen, decoded and transformed; parts of a record share what is decoded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from wdsdist.errors import BadSample, SampleError
from wdsdist.samples.bad_samples import ADVICE, is_fault_of_sample
from wdsdist.samples.collate import Buffer, Sample
from wdsdist.samples.fields import ABSENT, Chosen
from wdsdist.samples.marks import Part
from wdsdist.samples.padding import PADDING
from wdsdist.samples.sample_spec import SampleSpec
from wdsdist.shards.columns.read import PARTS
from wdsdist.shards.source import OpenShard

_COMPRESSED = ".gz"
EMPTY = memoryview(b"")
"""The bytes of a member that a sample does not have."""

_Error = TypeVar("_Error", SampleError, SampleError)


class LastRecord:
    """The decoded members of the record that a part was made of last, for its other parts."""

    def __init__(self) -> None:
        self._last: tuple[tuple[int, int] | None, dict[str, Any]] = None, {}

    def decoded(self, record: tuple[int, int], field: str, decode: Callable[[], Any]) -> Any:
        """Return a copy of a member's value, which a transform may change; decode it where that was not done."""
        last, values = self._last  # read once: a thread beside this one may decode another record meanwhile
        if record != last:
            values = {}
            self._last = record, values
        if field not in values:
            values[field] = decode()
        try:
            return copy.deepcopy(values[field])
        except Exception:  # whatever a decoder may return, such as an open file: it is this part's alone
            return values.pop(field)

    def __reduce__(self) -> tuple[Any, ...]:
        return LastRecord, ()  # values stay behind when a reader moves to another process


class OpenedShard:
    """A shard, and how its samples are made."""

    __slots__ = ("last_record", "number", "only_members", "shard", "spec")

    def __init__(self, number: int, shard: OpenShard, spec: SampleSpec, last_record: LastRecord) -> None:
        self.number = number
        self.shard = shard
        self.spec = spec
        self.last_record = last_record
        self.only_members: Chosen | None = None
        """Those of every sample, once they are known, where all have the same."""

    def members(self, sample: int) -> Chosen:
        """Return the members that a sample is made of."""
        try:
            chosen = self.spec.fields.choose(self.shard.layout(sample))
        except SampleError as error:
            where = f"sample {self.shard.key(sample)!r} of {self.shard.name}"
            raise self._blamed(SampleError(f"{where} {error}{self._advice}"), error.field, error.reason) from None
        if self.shard.is_uniform:
            self.only_members = chosen
        return chosen

    def of_part(self, sample: int, seed: int, part: Part | None, field: str, extension: str, data: Buffer) -> Any:
        """Return the value of a member for a part of a record, which is decoded once for parts that follow another."""
        decode = partial(self.decoded, sample, seed, field, extension, data, part)
        if part is None or part.total == 1 or not self.spec.decoder.is_same_for_parts(extension, field):
            return decode()
        return self.last_record.decoded((self.number, sample), field, decode)

    def decoded(
        self, sample: int, seed: int, field: str, extension: str, data: Buffer, part: Part | None = None
    ) -> Any:
        """Return the value of a member."""
        unzip = None
        if extension.endswith(_COMPRESSED):
            unzip = self.shard.unzip(sample, self.shard.layout(sample).index(extension))
        try:
            return self.spec.decoder(extension, data, seed, unzip, field=field, part=part)
        except SampleError as error:
            raise self.undecoded(sample, field, extension, error) from error

    def undecoded(self, sample: int, field: str, extension: str, error: SampleError) -> SampleError:
        """Return the error of a member that does not decode, with its name."""
        member = f"{self.shard.name}: member {self.shard.key(sample)}.{extension}"
        advice = self._advice if is_fault_of_sample(error) else ""
        return self._blamed(SampleError(f"{member}: {error}{advice}"), field, str(error))

    def empty(self, sample: int, field: str, extension: str) -> SampleError:
        """Return the error of a member without a byte, which a policy for bad samples looks for."""
        name = f"{self.shard.name}: member {self.shard.key(sample)}.{extension}"
        return self._blamed(SampleError(f"{name} is empty"), field, "is empty")

    @staticmethod
    def _blamed(error: _Error, field: str, reason: str) -> _Error:
        error.field, error.reason = field, reason
        return error

    @property
    def _advice(self) -> str:
        return "" if self.spec.policy.replaces else ADVICE


Row = tuple[OpenedShard, int, int, bool | None, Part | None]
"""One sample of a batch: its shard, its number there, its seed, whether it is padding, where that is told, and which
part of its record it is, where the data set has parts."""


def make_sample(opened: OpenedShard, sample: int, seed: int, padding: bool | None, part: Part | None) -> Any:
    """Return one sample, decoded and transformed; a transform sees the mark of padding, and need not hand it on."""
    shard, spec = opened.shard, opened.spec
    entries: Sample = {"__key__": shard.key(sample), "__shard__": shard.name}
    if shard.dataset:
        entries["__dataset__"] = shard.dataset
    if part is not None:
        entries.update(zip(PARTS, part, strict=True))
    for field, extension, place in opened.only_members or opened.members(sample):
        data = EMPTY if place == ABSENT else shard.member(sample, place)
        is_empty = not len(data)
        if is_empty and field in spec.fields.optional:
            entries[field] = None
        elif is_empty and spec.policy.replaces:
            raise opened.empty(sample, field, extension)
        else:
            entries[field] = opened.of_part(sample, seed, part, field, extension, data)
    if padding is not None:
        entries[PADDING] = padding
    if not spec.policy.replaces:
        made = _transformed(opened, entries, sample, seed, part)
    else:
        made = spec.transformed(entries, seed, part)
        if made is None:
            raise BadSample("transform returned None")
    if padding is not None and isinstance(made, dict) and PADDING not in made:
        return {**made, PADDING: padding}
    return made


def _transformed(opened: OpenedShard, entries: Sample, sample: int, seed: int, part: Part | None) -> Any:
    """Apply the transform to a sample; its error names the sample."""
    try:
        return opened.spec.transformed(entries, seed, part)
    except Exception as error:
        name = f"sample {opened.shard.key(sample)!r} of {opened.shard.name}"
        name = name if part is None else f"part {part.number} of {part.total} of {name}"
        if isinstance(error, BadSample):
            raise BadSample(f"{name} is bad: {error}{ADVICE}") from error
        if isinstance(error, StopIteration):  # as it is, it would end the batch or the epoch as if that were over
            raise RuntimeError(f"transform= raised StopIteration for {name}: has it exhausted an iterator?") from error
        error.add_note(f"raised by transform= for {name}")
        raise


def without_data(opened: OpenedShard, sample: int) -> Sample:
    """Return a sample without its members' data."""
    fields = {field: None for field, *_ in opened.members(sample)}
    return {"__key__": opened.shard.key(sample), "__dataset__": opened.shard.dataset, **fields}
