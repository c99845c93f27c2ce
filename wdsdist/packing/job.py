"""A packing job: one source, the options that decide what its shards hold, and the record of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wdsdist._util.validation import check_integer
from wdsdist.errors import SourceError
from wdsdist.packing.options import Options
from wdsdist.packing.payloads import BrokenPayload, Payload, Sample, payload_size, whole
from wdsdist.packing.plan import shard_name, shard_number
from wdsdist.packing.reencoding import Reencoding
from wdsdist.samples.check import SampleCheck
from wdsdist.samples.fields import ABSENT

VERSION = 3  # of the record, and of the bytes that packing writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One source packed with one set of options."""

    kind: str
    location: str
    """Where the source lay, for messages only: a source that is moved as it is stays the same source."""
    fingerprint: str
    options: Mapping[str, Any]
    """The options that decide what the shards hold, as `Options.fingerprint` returns them."""

    def differences(self, other: Job) -> list[str]:
        """Return in which ways this job, from a record, differs from the other one, which is asked for."""
        found = []
        if self.fingerprint != other.fingerprint:
            if (self.kind, self.location) != (other.kind, other.location):
                found.append(f"it was packed from {self.location}, not {other.location}")
            else:
                found.append(f"{self.location} has changed since it was packed")
        names = {**self.options, **other.options}
        mine, asked = ({name: one.options.get(name) for name in names} for one in (self, other))
        return found + [f"it has {name}={mine[name]}, not {asked[name]}" for name in names if mine[name] != asked[name]]


@dataclass(frozen=True, slots=True)
class Record:
    """A job as a destination keeps it."""

    job: Job
    shards: int
    """How many it writes, or 0 if that shows only at the end; of an append, how many there were before."""

    @classmethod
    def parsed(cls, content: dict[str, Any]) -> Record:
        """Return a record from JSON. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for what is no record."""
        return cls(Job(**content["job"]), check_integer("shards", content["shards"] or 0, 0))

    def writes(self, name: str) -> bool:
        """Return whether a file has the name of a shard that the job writes."""
        number = shard_number(name)
        if number is None or number >= self.shards > 0:
            return False
        return name == shard_name(number, self.shards or 1, compressed=self.job.options.get("compress") is not None)


def prepared(samples: Iterable[Sample], options: Options) -> Iterable[Sample]:
    """Return samples as they are written: checked, and with images as they are stored."""
    reencoding = None if options.reencoding is None else Reencoding(options.reencoding)
    if reencoding is None and not options.check_decode:
        return samples
    return _PreparedSamples(samples, options.check_decode, options.max_pixels, reencoding)


@dataclass(frozen=True, slots=True)
class _PreparedSamples:
    """Some samples that are checked and changed as they are read; picklable, as they are."""

    samples: Iterable[Sample]
    check_decode: bool
    max_pixels: int
    reencoding: Reencoding | None

    def __iter__(self) -> Iterator[Sample]:
        samples = self.samples
        if self.check_decode:
            check = SampleCheck(None, decode=True, max_pixels=self.max_pixels)
            samples = ((key, _checked(check, key, members)) for key, members in samples)
        yield from samples if self.reencoding is None else self.reencoding.of(samples)


def _checked(check: SampleCheck, key: str, members: list[tuple[str, Payload]]) -> list[tuple[str, Payload]]:
    """Return the members of a sample; one that does not decode becomes a broken member."""
    if any(isinstance(payload, BrokenPayload) for _, payload in members):
        return members
    found = list(members)

    def read(place: int) -> bytes:
        extension, payload = found[place]
        data = whole(payload)
        found[place] = extension, data  # it need not be read again
        return data

    layout = tuple(extension.lower() for extension, _ in members)
    try:
        problem = next(check.problems(layout, [payload_size(payload) for _, payload in members], read), None)
    except SourceError:
        return members  # the writer meets it again
    if problem is None:
        return found
    name = f"sample {key!r}" if problem.member == ABSENT else f"{key}.{members[problem.member][0]}"
    place = max(problem.member, 0)
    reason = f"{name}: {problem.reason}: leave such samples out with on_error='skip', or replace it"
    return [*members[:place], (members[place][0], BrokenPayload(reason)), *members[place + 1 :]]
