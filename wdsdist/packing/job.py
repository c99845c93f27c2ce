"""A packing job: one source, the options that decide what its shards hold, and the record of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from wdsdist._util.validation import check_integer
from wdsdist.packing.checking import checked
from wdsdist.packing.payloads import Sample
from wdsdist.packing.plan import shard_name, shard_number
from wdsdist.packing.reencoding import DEFAULT_QUALITY, Reencoding, Store
from wdsdist.samples.check import SampleCheck
from wdsdist.samples.images.limits import check_max_pixels

VERSION = 2  # of the record, and of the bytes that packing writes: another one starts anew


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """The options that decide what the shards hold."""

    shard_bytes: int
    shard_samples: int | None
    shuffle_seed: int | None
    max_side: int | None = None
    quality: int | None = None
    compress: str | None = None
    """As `compression.checked` returns it."""
    max_pixels: int | None = None
    """Decides which samples can be packed, as the following."""
    fields: str | None = None
    """With commas between them."""
    check_decode: bool = False
    exclude: str | None = None
    """What tells the list of excluded samples from others."""
    store: Store | None = None
    """What becomes of all images."""

    def __post_init__(self) -> None:
        for name, *limits in (
            ("shard_bytes", 1), ("shard_samples", 1), ("shuffle_seed", 0, 2**64 - 1), ("max_side", 1),
            ("quality", 1, 95), ("max_pixels", 1),
        ):  # fmt: skip
            if (value := getattr(self, name)) is not None:  # kept as Python's number, for numpy's are no JSON
                object.__setattr__(self, name, check_integer(name, value, *limits))

    @property
    def has_checks(self) -> bool:
        """Whether each sample is checked before it is written."""
        return self.check_decode or self.fields is not None

    @property
    def reencoding(self) -> Reencoding | None:
        """What is done to images."""
        if self.max_side is None and self.store is None:
            return None
        quality = DEFAULT_QUALITY if self.quality is None else self.quality
        most = check_max_pixels(self.max_pixels)
        return Reencoding(max_side=self.max_side, store=self.store, quality=quality, max_pixels=most)

    def prepared(self, samples: Iterable[Sample]) -> Iterable[Sample]:
        """Return samples as they are written: checked, and with images as they are stored."""
        return _PreparedSamples(samples, self) if self.has_checks or self.reencoding else samples


@dataclass(frozen=True, slots=True)
class _PreparedSamples:
    """Some samples that are checked and changed as they are read; picklable, as they are."""

    samples: Iterable[Sample]
    options: PackOptions

    def __iter__(self) -> Iterator[Sample]:
        samples, options = self.samples, self.options
        if options.has_checks:
            fields = None if options.fields is None else options.fields.split(",")
            samples = checked(samples, SampleCheck(fields, decode=options.check_decode, max_pixels=options.max_pixels))
        yield from samples if options.reencoding is None else options.reencoding.of(samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One source packed with one set of options."""

    kind: str
    location: str
    """Where the source lay, for messages only: a source that is moved as it is stays the same source."""
    fingerprint: str
    options: PackOptions

    def differences(self, other: Job) -> list[str]:
        """Say in which ways this job, the one on record, is not the other one, which is asked for."""
        found = []
        if self.fingerprint != other.fingerprint:
            if (self.kind, self.location) != (other.kind, other.location):
                found.append(f"it was packed from {self.location}, not {other.location}")
            else:
                found.append(f"{self.location} has changed since it was packed")
        asked = asdict(other.options)
        found += [
            f"it has {name}={value}, not {asked[name]}"
            for name, value in asdict(self.options).items()
            if value != asked[name]
        ]
        return found


@dataclass(frozen=True, slots=True)
class Record:
    """A job as a destination keeps it."""

    job: Job
    shards: int
    """How many it writes, or 0 where that shows only at the end; of an append, how many there were before."""

    @classmethod
    def parsed(cls, content: dict[str, Any]) -> Record:
        """Return a record that was kept as JSON. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for none."""
        job = content["job"]
        options = PackOptions(**job["options"])
        return cls(Job(**{**job, "options": options}), check_integer("shards", content["shards"] or 0, 0))

    def writes(self, name: str) -> bool:
        """Say whether a file has the name of a shard that the job writes."""
        number = shard_number(name)
        if number is None or number >= self.shards > 0:
            return False
        return name == shard_name(number, self.shards or 1, compressed=self.job.options.compress is not None)
