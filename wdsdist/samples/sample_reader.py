"""Samples and batches from (shard, sample) pairs: choose members, decode, transform, collate; replace bad samples."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SampleError
from wdsdist.samples.bad_samples import (
    Kinds,
    Replaced,
    candidates,
    described,
    is_fault_of_sample,
    kinds,
    probes,
    unusual_field,
    usual_kinds,
)
from wdsdist.samples.collate import Batch, Ragged, check_alike, collate, column, failing_fields
from wdsdist.samples.fields import ABSENT, Fields
from wdsdist.samples.marks import Part
from wdsdist.samples.one_sample import EMPTY, LastRecord, OpenedShard, Row, make_sample, without_data
from wdsdist.samples.padding import PADDING, marks
from wdsdist.samples.sample_spec import Decoder, SampleSpec, decode_error
from wdsdist.sampling.permutation import mix_key, mix_keys
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.quarantine import BadEntry
from wdsdist.shards.source import Members, ShardSource, picks_of

_AUGMENTATION = 3
"""Sets the seeds of samples apart from the keys of the order, which hash other numbers."""

_Made = TypeVar("_Made")

Misfits = Callable[[int, Int64s, int], Int64s]
"""Returns, of a shard and int64 [n] of its samples, how badly each fits in the place of the one at an index; 0 fits."""

_Place = tuple[int, Part | None]
"""A sample of a shard: its number there, and which part of its record it is."""


class _Column:
    """Builds one column of a batch from the members of a field: decodes and collates them."""

    __slots__ = ("_field", "extensions", "parts")

    def __init__(self, field: str, extensions: list[str], parts: list[memoryview]) -> None:
        self._field = field
        self.extensions = extensions
        self.parts = parts

    def build(
        self, rows: list[Row], decoders: set[Decoder], *, deferred: bool, is_bounded: bool, is_optional: bool
    ) -> Any:
        """Return the column of a batch of ``rows``; with ``deferred`` as pieces where they are."""
        if is_optional:
            return [self._value(place, rows[place]) if len(part) else None for place, part in enumerate(self.parts)]
        if all(decoder.is_raw for decoder in decoders):
            # A batch that is kept must not keep room in the cache for ever.
            return Ragged.of(self.parts).copied() if is_bounded and not deferred else Ragged.of(self.parts)
        decoder = next(iter(decoders)) if len(decoders) == 1 else None
        pieces = None if decoder is None else decoder.stacked(self._field, self.extensions, self.parts)
        if pieces is not None:
            return pieces if deferred else pieces.tensor()
        opened, sample, *_ = rows[0]
        return column(self._field, self._values(rows, decoder), repr(opened.shard.key(sample)), deferred=deferred)

    def _values(self, rows: list[Row], decoder: Decoder | None) -> list[Any]:
        function = None if decoder is None else decoder.function(self._field, self.extensions)
        if function is None:
            return list(map(self._value, range(len(rows)), rows))
        values: list[Any] = []
        try:
            for part in self.parts:
                values.append(function(part))
        except Exception as error:
            opened, sample, *_ = rows[len(values)]
            extension, data = self.extensions[0], self.parts[len(values)]
            # Nothing here may name an error: by its traceback it would hold views of the shard in a circle.
            raise opened.undecoded(
                sample, self._field, extension, decode_error(extension.lower(), data, error)
            ) from error
        return values

    def _value(self, place: int, row: Row) -> Any:
        opened, sample, seed, *_ = row
        return opened.decoded(sample, seed, self._field, self.extensions[place], self.parts[place])


class SampleReader:
    """Makes samples and batches; the part of a data set that does its work in the workers.

    Args:
        source: opens the shards.
        specs: how samples are made, from each shard on that is named, to the next.
        seed: of the data set.
    """

    def __init__(self, source: ShardSource, specs: Mapping[int, SampleSpec], seed: int) -> None:
        self.source = source
        self._manifest = source.manifest
        self.specs = dict(specs)
        self._first_shards = list(self.specs)
        self._specs = list(self.specs.values())
        self._seed = seed
        self._needs_seeds = any(spec.needs_seeds for spec in self._specs)
        self._optional = frozenset[str]().union(*(spec.fields.optional for spec in self._specs))
        self._replaces = any(spec.policy.replaces for spec in self._specs)
        self._places = 0  # of the batch that hold a substitute
        self._bad: dict[tuple[int, str], tuple[BadEntry, str]] = {}  # what was met while the batch was made
        self._usual: dict[int, Kinds] = {}
        self.misfits: Misfits | None = None
        """Says which samples fit in the place of a bad one; without it all do."""
        self._mark: bool | None = None  # of a sample that is no padding, where that is told
        self._last_record = LastRecord()

    @property
    def is_raw(self) -> bool:
        """Whether members are left as they are."""
        return all(spec.is_raw for spec in self._specs)

    def with_manifest(self, manifest: Manifest) -> SampleReader:
        """Return a reader that makes such samples of other shards, through the same cache."""
        return SampleReader(self.source.with_manifest(manifest), self.specs, self._seed)

    def with_specs(self, specs: Mapping[int, SampleSpec]) -> SampleReader:
        """Return a reader of the same shards that makes other samples of them."""
        return SampleReader(self.source, specs, self._seed)

    @property
    def is_light(self) -> bool:
        """Whether making a batch is little work and gives about as many bytes as it reads."""
        return all(spec.is_light for spec in self._specs)

    @property
    def itemsizes(self) -> dict[str, int]:
        """Bytes of an item of each raw array that all specifications decode alike, by extension."""
        found = [spec.decoder.itemsizes for spec in self._specs]
        return {name: size for name, size in found[0].items() if all(one.get(name) == size for one in found)}

    def _spec(self, shard: int) -> SampleSpec:
        return self._specs[bisect_right(self._first_shards, shard) - 1]

    def epoch_members(self, shard: int) -> Members | None:
        """Return which members of a shard an epoch reads; ``None`` if it reads all."""
        picks, fields = picks_of(self._manifest, shard), self._spec(shard).fields
        if picks is None and fields.are_all:
            return None
        return partial(_members, fields, None if picks is None else np.unique(picks).astype(np.int64))

    def sample(self, shard: int, sample: int, epoch: int, padding: bool | None = None, *, strict: bool = False) -> Any:
        """Return one sample, decoded and transformed, or with a policy for bad ones and not ``strict`` a substitute.

        It is marked as ``padding`` or not where that is given.

        Raises `SampleError` where a field is missing and `SampleError`, naming shard and member, where one is bad.
        """
        self._places, self._bad = 0, {}
        seed = mix_key(self._seed, epoch, _AUGMENTATION, shard, sample) >> 1 if self._needs_seeds else 0
        opened = self._open((shard,), lambda number: np.array([sample]))[shard]
        try:
            number, part = self._place(opened, sample)
            row = opened, number, seed, padding, part
            return make_sample(*row) if strict else self._good(row, epoch)[0]
        finally:
            self.source.release()  # a sample holds copies

    def batch(
        self,
        shards: Int64s,
        samples: Int64s,
        epochs: Int64s,
        padding: npt.NDArray[np.bool_] | None,
        collate_fn: Callable[[list[Any]], Any] | None,
        *,
        deferred: bool,
    ) -> Any:
        """Return the batch of the given samples, made by ``collate_fn`` or as columns.

        With ``deferred``, tensors may come as `Stacked` pieces, and columns as views of the shards until these are
        released.
        """
        self._places, self._bad = 0, {}
        self._mark = None if padding is None else False
        opened = self._open(np.unique(shards).tolist(), lambda number: samples[shards == number])
        try:
            rows = self._rows(opened, shards, samples, epochs, padding)
            if (
                collate_fn is None
                and not self._manifest.has_parts
                and all(one.spec.transform is None for one in opened.values())
            ):
                try:
                    batch = self._columns(rows, deferred)
                    return batch if padding is None else {**batch, PADDING: marks(padding)}
                except Exception as error:
                    if not (self._replaces and is_fault_of_sample(error)):
                        raise
            if not self._replaces:
                made = self._by_record(rows, lambda place: make_sample(*rows[place]))
                return self._collate(made, deferred) if collate_fn is None else collate_fn(made)
            times = epochs.tolist()
            found = self._by_record(rows, lambda place: self._good(rows[place], times[place]))
            if collate_fn is not None:
                return collate_fn([value for value, _ in found])
            return self._collated(found, rows, times, deferred)
        finally:
            if not deferred:
                self.source.release()

    def replaced(self) -> Replaced | None:
        """Return the replacements in the sample or batch that was made last, or ``None`` where there are none."""
        return Replaced(self._places, tuple(self._bad.values())) if self._places else None

    def _open(self, numbers: Collection[int], samples: Callable[[int], Int64s]) -> dict[int, OpenedShard]:
        """Open the shards of a batch, of each of which it needs some ``samples``, until they are released."""
        held = self.source.open({number: partial(self._needed, number, samples) for number in numbers})
        return {number: OpenedShard(number, one, self._spec(number), self._last_record) for number, one in held.items()}

    def _needed(self, number: int, samples: Callable[[int], Int64s], index: ShardIndex) -> Int64s:
        """Return the members of some samples of a shard that are read."""
        picks = picks_of(self._manifest, number)
        stored = samples(number) if picks is None else picks[samples(number)].astype(np.int64)
        return _members(self._spec(number).fields, stored, index)

    def _parts(self, shards: Int64s, samples: Int64s) -> list[Part | None]:
        """Return which part of its record each sample is; ``None`` for each if the data set has whole samples."""
        found = self._manifest.parts_of(shards, samples)
        return [None] * len(shards) if found is None else [Part(*numbers) for numbers in found.T.tolist()]

    def _place(self, opened: OpenedShard, sample: int) -> _Place:
        """Return where a sample of the data set lies in its shard, and which part of its record it is."""
        return opened.shard.stored(sample), self._parts(np.array([opened.number]), np.array([sample]))[0]

    def _by_record(self, rows: list[Row], make: Callable[[int], _Made]) -> list[_Made]:
        """Return the values of the rows at each place, one record after another, so that each is decoded once."""
        if not self._manifest.has_parts:
            return list(map(make, range(len(rows))))
        records: dict[tuple[int, int], list[int]] = {}
        for place, (opened, sample, *_) in enumerate(rows):
            records.setdefault((opened.number, sample), []).append(place)
        made = {place: make(place) for places in records.values() for place in places}
        return [made[place] for place in range(len(rows))]

    def _good(self, row: Row, epoch: int) -> tuple[Any, _Place]:
        """Return a sample and its place; those of a substitute where it is bad."""
        opened, sample, *_, part = row
        try:
            return make_sample(*row), (sample, part)
        except Exception as error:
            if not (opened.spec.policy.replaces and is_fault_of_sample(error)):
                raise
            self._places += 1
            return self._substitute(row, epoch, self._note(opened, (sample, part), error))

    def _substitute(
        self, row: Row, epoch: int, bad: BadEntry, unusual: Callable[[Any], str | None] | None = None
    ) -> tuple[Any, _Place]:
        """Return the sample that takes the place of a bad one, and its own place."""
        opened, sample, seed, mark, part = row
        for candidate in self._candidates(opened, (sample, part), epoch):
            try:
                value = make_sample(opened, candidate[0], seed, mark, candidate[1])
            except Exception as error:
                if not is_fault_of_sample(error):
                    raise
                self._note(opened, candidate, error)
                continue
            field = unusual(value) if unusual else None
            if field is None:
                return value, candidate
            self._note(opened, candidate, _unusual(field))
        raise SampleError(
            f"{opened.shard.name} has no good sample among its {opened.shard.num_samples:,} to take the place of "
            f"{bad.key!r}, which is bad ({bad.field or 'sample'}: {bad.reason}): leave the shard out, or mend its "
            f"data, fields=, decode= or transform="
        )

    def _candidates(self, opened: OpenedShard, bad: _Place, epoch: int) -> Iterator[_Place]:
        """Return the samples of a shard by which to replace one: those that fit first, then those that nearly do.

        Other parts of its record come last: what is wrong with one may be wrong with the record.
        """
        sample, part = bad
        numbers = candidates(self._seed, epoch, opened.number, sample, opened.shard.num_samples, part)
        if self.misfits is not None:
            listed = list(numbers)
            place = [self._place(opened, number) for number in listed].index(bad)
            misfits = self.misfits(opened.number, np.array(listed), place)
            numbers = iter(np.array(listed)[np.argsort(misfits, kind="stable")].tolist())
        own = []
        for number in numbers:
            candidate = self._place(opened, number)
            if candidate[0] != sample:
                yield candidate
            elif candidate != bad:
                own.append(candidate)
        yield from own

    def _note(self, opened: OpenedShard, place: _Place, error: Exception) -> BadEntry:
        sample, part = place
        field, reason = described(error)
        if part is not None and part.total > 1:
            reason += f" (in part {part.number} of {part.total})"
        manifest, shard = self._manifest.part(opened.number)
        entry = BadEntry(
            opened.shard.key(sample), manifest.shown_name(shard), field, reason, manifest.whole.fingerprint,
            self._manifest.label(opened.number),
        )  # fmt: skip
        return self._bad.setdefault((opened.number, entry.key), (entry, opened.spec.policy.quarantine))[0]

    def _collate(self, made: list[Any], deferred: bool) -> Any:
        return collate(made, deferred=deferred, lists=self._optional)

    def _collated(self, found: list[tuple[Any, _Place]], rows: list[Row], epochs: list[int], deferred: bool) -> Any:
        """Collate samples; where they do not form a batch, replace those that are not as others of their shard."""
        made = [value for value, _ in found]
        try:
            return self._collate(made, deferred)
        except SampleError:
            failing = failing_fields(made, self._optional)
        for place, (row, epoch) in enumerate(zip(rows, epochs, strict=True)):
            opened, sample, *_, part = row
            if not opened.spec.policy.replaces:
                continue
            usual = self._usual_of(opened)
            if not usual:
                continue
            unusual = partial(unusual_field, usual=usual, fields=failing.__contains__)
            field = unusual(made[place])
            if field is not None:
                own = found[place][1]
                self._places += own == (sample, part)
                made[place], _ = self._substitute(row, epoch, self._note(opened, own, _unusual(field)), unusual)
        return self._collate(made, deferred)

    def _usual_of(self, opened: OpenedShard) -> Kinds:
        """Return the usual form of the values of a shard's samples."""
        usual = self._usual.get(opened.number)
        if usual is None:
            found = []
            for sample, part in (self._place(opened, number) for number in probes(opened.shard.num_samples)):
                seed = mix_key(self._seed, 0, _AUGMENTATION, opened.number, sample) >> 1
                try:
                    found.append(kinds(make_sample(opened, sample, seed, self._mark, part)))
                except Exception as error:
                    if not is_fault_of_sample(error):
                        raise
            usual = self._usual[opened.number] = usual_kinds(found)
        return usual

    def _rows(
        self,
        opened: Mapping[int, OpenedShard],
        shards: Int64s,
        samples: Int64s,
        epochs: Int64s,
        padding: npt.NDArray[np.bool_] | None,
    ) -> list[Row]:
        """Return the samples of a batch by their numbers in the shards: in a view, those of chosen ones differ."""
        chosen = {number: one.shard.picks for number, one in opened.items() if one.shard.picks is not None}
        stored = samples.copy() if chosen else samples
        for number, picks in chosen.items():
            of_shard = shards == number
            stored[of_shard] = picks[samples[of_shard]]
        seeds = [0] * len(shards)
        if self._needs_seeds:
            keys = mix_keys(mix_key(self._seed), epochs, _AUGMENTATION, shards, samples)
            seeds = [key >> 1 for key in keys.tolist()]
        of_rows = [opened[number] for number in shards.tolist()]
        told = [None] * len(shards) if padding is None else padding.tolist()
        return list(zip(of_rows, stored.tolist(), seeds, told, self._parts(shards, samples), strict=True))

    def _columns(self, rows: list[Row], deferred: bool) -> Batch:
        """Collect members by field, with no dict for each sample, then build each column."""
        of_rows, numbers, *_ = zip(*rows, strict=True)
        distinct = dict(zip(of_rows, numbers, strict=True))  # with a sample of each
        columns = _gathered(of_rows, numbers, distinct)
        if self._replaces and not all(all(map(len, one.parts)) or name in self._optional for name, one in
                                      columns.items()):  # fmt: skip
            raise SampleError("a member is empty")  # of which sample, and by which policy, is looked at one by one
        if any(len(one.parts) != len(rows) for one in columns.values()):
            check_alike(list(map(without_data, of_rows, numbers)))
        batch: Batch = {
            "__key__": [opened.shard.key(sample) for opened, sample in zip(of_rows, numbers, strict=True)],
            "__shard__": [opened.shard.name for opened in of_rows],
        }
        if any(opened.shard.dataset for opened in distinct):
            batch["__dataset__"] = [opened.shard.dataset for opened in of_rows]
        decoders = {opened.spec.decoder for opened in distinct}
        for field, one in columns.items():
            batch[field] = one.build(
                rows,
                decoders,
                deferred=deferred,
                is_bounded=self.source.is_bounded,
                is_optional=field in self._optional,
            )
        return batch


def _members(fields: Fields, samples: Int64s | None, index: ShardIndex) -> Int64s:
    """Return the members that fields are made of, of some samples of a shard or all."""
    return fields.members(index, np.arange(index.num_samples) if samples is None else samples)


def _gathered(
    of_rows: Sequence[OpenedShard], numbers: Sequence[int], distinct: Mapping[OpenedShard, int]
) -> dict[str, _Column]:
    """Return the columns of a batch by field, with members that are not decoded yet.

    Args:
        of_rows, numbers: the shard of each sample, and its number there.
        distinct: the shards, each with the number of some sample.
    """
    rows = list(zip(of_rows, numbers, strict=True))
    layouts = [opened.members(sample) for opened, sample in distinct.items()]
    if all(opened.only_members == layouts[0] for opened in distinct):  # all samples have the same members
        return {
            field: _Column(
                field,
                [extension] * len(rows),
                [EMPTY if place == ABSENT else opened.shard.member(sample, place) for opened, sample in rows],
            )
            for field, extension, place in layouts[0]
        }
    columns: dict[str, _Column] = {}
    for opened, sample in rows:
        for field, extension, place in opened.only_members or opened.members(sample):
            if field not in columns:
                columns[field] = _Column(field, [], [])
            columns[field].extensions.append(extension)
            columns[field].parts.append(EMPTY if place == ABSENT else opened.shard.member(sample, place))
    return columns


def _unusual(field: str) -> SampleError:
    error = SampleError(f"{field or 'the sample'} is of another type or shape than in most samples of its shard")
    error.field, error.reason = field, str(error)
    return error
