"""Samples and batches from (shard, sample) pairs: open the shards, make the samples, replace bad samples."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.errors import SampleError
from wdsdist.samples.bad_samples import Replaced, described
from wdsdist.samples.collate import collate
from wdsdist.samples.marks import Part, is_seeded
from wdsdist.samples.members import Members
from wdsdist.samples.sample_spec import SampleSpec
from wdsdist.sampling.permutation import mix_key, mix_keys, permute
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest
from wdsdist.shards.quarantine import BadEntry
from wdsdist.shards.source import Members as ShardMembers
from wdsdist.shards.source import ShardSource, picks_of

_AUGMENTATION, _SUBSTITUTE = 3, 4
"""Keep the seeds of samples and the choice of substitutes apart; in keys of the order no words follow such words."""

Misfits = Callable[[int, Int64s, int], Int64s]
"""(shard, samples, index) -> penalty for replacing ``samples[index]`` by each sample; 0 fits."""


@dataclass(eq=False)
class SampleReader:
    """Makes samples and batches; the part of a data set that does its work in the workers."""

    source: ShardSource
    """Opens the shards."""
    specs: Mapping[int, SampleSpec]
    """How samples are made, by the first shard of each data set."""
    seed: int
    """The seed of the data set."""
    misfits: Misfits | None = None
    """Says which samples fit as substitutes, when batches are planned by lengths; without it all do."""

    def __post_init__(self) -> None:
        self._manifest, self._seed = self.source.manifest, self.seed
        self._first_shards, self._specs = list(self.specs), list(self.specs.values())
        self._needs_seeds = any(spec.decoder.is_seeded or is_seeded(spec.transform) for spec in self._specs)
        self._has_transform = any(spec.transform is not None for spec in self._specs)
        self._optional = frozenset[str]().union(*(spec.fields.optional for spec in self._specs))
        self._num_replaced = 0  # samples of the batch that are substitutes
        self._bad: dict[tuple[int, str], tuple[BadEntry, str]] = {}  # the bad samples that the batch met

    @property
    def is_light(self) -> bool:
        """Whether making a batch is little work and gives about as many bytes as it reads."""
        return all(spec.transform is None and spec.decoder.is_light for spec in self._specs)

    @property
    def itemsizes(self) -> dict[str, int]:
        """Bytes of an element of each raw array that all specifications decode alike, by extension."""
        sizes = [spec.decoder.itemsizes for spec in self._specs]
        return {name: size for name, size in sizes[0].items() if all(other.get(name) == size for other in sizes)}

    def with_manifest(self, manifest: Manifest) -> SampleReader:
        """Return a reader of other shards, or of the same for another thread, through the same cache."""
        return replace(self, source=self.source.with_manifest(manifest))

    def _spec(self, shard: int) -> SampleSpec:
        return self._specs[bisect_right(self._first_shards, shard) - 1]

    def epoch_members(self, shard: int) -> ShardMembers | None:
        """Return which members of a shard an epoch reads; ``None`` for all."""
        return self._spec(shard).fields.of_epoch(picks_of(self._manifest, shard))

    def sample(self, shard: int, sample: int, epoch: int, padding: bool | None = None, *, strict: bool = False) -> Any:
        """Return one sample, decoded and transformed; a substitute if it is bad and its policy replaces it.

        Args:
            shard, sample: the shard, and the number of the sample there.
            epoch: sets the seed and the substitute.
            padding: the mark of padding, if the data set marks it.
            strict: raise the error of a bad sample whatever its policy.

        Raises `SampleError`, naming shard and member, when a field is missing or does not decode.
        """
        padded = None if padding is None else np.array([padding])
        try:
            members = self._members(np.array([shard]), np.array([sample]), np.array([epoch]), padded)
            return self._sample(members, 0, epoch, strict=strict)
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
        try:
            members = self._members(shards, samples, epochs, padding)
            if collate_fn is None and not self._has_transform:
                batch = members.columns(deferred=deferred, copied=self.source.is_bounded and not deferred)
                if batch is not None:
                    return batch
            values = [self._sample(members, row, epoch) for row, epoch in enumerate(epochs.tolist())]
            if collate_fn is not None:
                return collate_fn(values)
            keys = [] if isinstance(values[0], dict) else members.keys
            return collate(values, deferred=deferred, lists=self._optional, keys=keys)
        finally:
            if not deferred:
                self.source.release()

    def replaced(self) -> Replaced | None:
        """Return the replacements in the sample or batch that was made last, or ``None`` without any."""
        return Replaced(self._num_replaced, tuple(self._bad.values())) if self._num_replaced else None

    def _members(
        self, shards: Int64s, samples: Int64s, epochs: Int64s, padding: npt.NDArray[np.bool_] | None
    ) -> Members:
        """Open the shards of a batch until they are released, and gather the members of its samples."""
        self._num_replaced, self._bad = 0, {}
        numbers = shards.tolist()

        def needed(number: int, index: ShardIndex) -> Int64s:
            """Return the members of a shard that the samples of the batch are made of."""
            picks, own = picks_of(self._manifest, number), samples[shards == number]
            stored = own if picks is None else picks[own].astype(np.int64)
            return self._spec(number).fields.members(index, stored)

        opened = self.source.open({number: partial(needed, number) for number in sorted(set(numbers))})
        stored = samples.tolist()
        if any(shard.picks is not None for shard in opened.values()):  # a view numbers the samples that it has
            stored = [opened[number].stored(sample) for number, sample in zip(numbers, stored, strict=True)]
        seeds = [0] * len(numbers)
        if self._needs_seeds:
            keys = mix_keys(mix_key(self._seed), epochs, _AUGMENTATION, shards, samples)
            seeds = (keys >> np.uint64(1)).tolist()
        return Members(
            specs={shard: self._spec(number) for number, shard in opened.items()},
            optional=self._optional,
            shards=[opened[number] for number in numbers],
            samples=stored,
            seeds=seeds,
            padding=[None] * len(numbers) if padding is None else padding.tolist(),
            parts=self._parts(shards, samples),
        )

    def _parts(self, shards: Int64s, samples: Int64s) -> Sequence[Part | None]:
        """Return which part of its record each sample is; ``None`` for each if the data set has whole samples."""
        parts = self._manifest.parts_of(shards, samples)
        return [None] * len(shards) if parts is None else [Part(*numbers) for numbers in parts.T.tolist()]

    def _sample(self, members: Members, row: int, epoch: int, *, strict: bool = False) -> Any:
        """Return a sample of a batch, or its substitute: the first good sample of its shard in the order of a hash.

        Samples that fit into the batch come first. The hash is of the seed, the epoch and the sample: the substitute is
        the same on a rerun, after a resume, and with any number of workers and ranks.
        """
        try:
            return members.sample(row)
        except Exception as error:
            if strict or not members.replaces(row, error):
                raise
            bad = self._note(members, row, error)
        self._num_replaced += 1
        shard, replaced, part = members.shards[row], members.samples[row], members.parts[row]
        key = mix_key(self._seed, epoch, _SUBSTITUTE, shard.number, replaced, *(part[:1] if part else ()))
        numbers = permute(np.arange(shard.num_samples), shard.num_samples, np.uint64(key))
        stored = (numbers if shard.picks is None else shard.picks[numbers]).tolist()
        if self.misfits is not None:
            misfits = self.misfits(shard.number, numbers, stored.index(replaced))
            order = np.argsort(misfits, kind="stable")
            numbers, stored = numbers[order], [stored[number] for number in order.tolist()]
        for number, sample in zip(numbers.tolist(), stored, strict=True):
            if sample == replaced:
                continue
            (part,) = self._parts(np.array([shard.number]), np.array([number]))
            substitute = members.substitute(row, sample, part)
            try:
                return substitute.sample(0)
            except Exception as error:
                if not substitute.replaces(0, error):
                    raise
                self._note(substitute, 0, error)
        raise SampleError(
            f"{shard.name} has no good sample among its {shard.num_samples:,} to replace {bad.key!r} "
            f"({bad.field or 'sample'}: {bad.reason}): leave the shard out, or correct its data, fields=, decode= or "
            f"transform="
        )

    def _note(self, members: Members, row: int, error: Exception) -> BadEntry:
        """Note a bad sample of the batch, and return its entry in a quarantine file."""
        (field, reason), shard, part = described(error), members.shards[row], members.parts[row]
        if part and part.total > 1:
            reason += f" (in part {part.number} of {part.total})"
        manifest, number = self._manifest.part(shard.number)
        entry = BadEntry(
            shard.key(members.samples[row]), manifest.shown_name(number), field, reason, manifest.whole.fingerprint,
            shard.dataset,
        )  # fmt: skip
        return self._bad.setdefault((shard.number, entry.key), (entry, members.specs[shard].policy.quarantine))[0]
