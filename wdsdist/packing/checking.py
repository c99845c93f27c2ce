"""Check samples while they are packed, and leave out those that a quarantine file lists."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wdsdist._util.pools import apart
from wdsdist.errors import SourceError
from wdsdist.packing.payloads import BrokenPayload, Payload, Sample, payload_size, whole
from wdsdist.packing.sources.source import Contents, Source, Stream
from wdsdist.samples.check import SampleCheck
from wdsdist.samples.fields import ABSENT, Fields
from wdsdist.shards import quarantine

_log = logging.getLogger("wdsdist")

_REMEDY = "mend it, remove it, or leave such samples out with --on-error skip (on_error=)"


def joined(fields: Sequence[str]) -> str:
    """Return ``fields=`` as one text, with commas; raise `ArgumentError` for fields that cannot be."""
    Fields(fields)
    return ",".join(fields)


def checked(samples: Iterable[Sample], check: SampleCheck) -> Iterator[Sample]:
    """Yield samples, checked: one that is bad has a broken member."""
    for key, members in samples:
        yield key, _checked(check, key, members)


def _checked(check: SampleCheck, key: str, members: list[tuple[str, Payload]]) -> list[tuple[str, Payload]]:
    if any(isinstance(payload, BrokenPayload) for _, payload in members):
        return members
    found = list(members)

    def read(place: int) -> bytes:
        extension, payload = found[place]
        data = whole(payload)
        found[place] = extension, data  # which need not be read again
        return data

    layout = tuple(extension.lower() for extension, _ in members)
    try:
        problem = next(check.problems(layout, [payload_size(payload) for _, payload in members], read), None)
    except SourceError:
        return members  # whoever writes them meets it again
    if problem is None:
        return found
    name = f"sample {key!r}" if problem.place == ABSENT else f"{key}.{members[problem.place][0]}"
    place = max(problem.place, 0)
    broken = BrokenPayload(f"{name}: {problem.reason}: {_REMEDY}", payload_size(members[place][1]))
    return [*members[:place], (members[place][0], broken), *members[place + 1 :]]


@dataclass(frozen=True, slots=True)
class Excluded:
    """The samples that a quarantine file lists: by their shard and key, or by the key alone where it names no shard."""

    path: str
    by_shard: frozenset[tuple[str, str]]
    keys: frozenset[str]
    keys_in_shards: frozenset[str]

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Excluded:
        """Read a quarantine file, also one that packing wrote as its report of what it left out."""
        entries = quarantine.read(path)
        # A report of packing names the shard that a sample was meant for, not the one that it comes from.
        placed = [one for one in entries if one.fingerprint and one.shard]
        loose = [one for one in entries if not (one.fingerprint and one.shard)]
        by_shard = frozenset((one.shard, one.key) for one in placed)
        keys = frozenset(one.key for one in loose)
        return cls(os.fspath(path), by_shard, keys, frozenset(one.key for one in placed))

    @property
    def count(self) -> int:
        """Samples that are listed."""
        return len(self.by_shard) + len(self.keys)

    @property
    def digest(self) -> str:
        """What tells it from other lists, for the record of a job."""
        text = repr((sorted(self.by_shard), sorted(self.keys)))
        return f"{self.count:,} samples, {hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"

    def without(self, source: Source | Stream) -> Source | Stream:
        """Return a source less the samples that are listed."""
        if isinstance(source, Source):
            return replace(source, load=lambda _: self._contents(source))
        notes = dict(source.notes)
        return replace(source, samples=self._rest(source.samples, notes), notes=notes)

    def lists(self, key: str) -> bool:
        """Say whether a sample of a source without shards is listed."""
        return key in self.keys or key in self.keys_in_shards

    def _contents(self, source: Source) -> Contents:
        contents = source.contents
        kept = np.flatnonzero(~np.fromiter(self._listed(source), np.bool_, len(contents.sizes)))
        count = len(contents.sizes) - len(kept)
        if not len(kept):
            raise SourceError(f"{self.path} lists all {count:,} samples of {source.location}: nothing is left to pack")
        if not count:
            _log.warning(
                "%s lists %s samples, none of which is in %s",
                self.path,
                f"{self.count:,}",
                source.location,
            )

        return replace(contents.only(kept), notes={**contents.notes, "excluded": count} if count else contents.notes)

    def _listed(self, source: Source) -> Iterable[bool]:
        """Return a mask of the samples whose keys are in the exclusion list."""
        contents = source.contents
        if contents.origins is None:  # a data set may open files when it is asked for items: workers would inherit them
            return apart(self._flags, contents.take(np.arange(len(contents.sizes))))
        return (
            (shard, key) in self.by_shard or key in self.keys if shard else self.lists(key)
            for shard, key in contents.origins()
        )

    def _flags(self, samples: Iterable[Sample]) -> list[bool]:
        return [self.lists(key) for key, _ in samples]

    def _rest(self, samples: Iterable[Sample], notes: dict[str, Any]) -> Iterator[Sample]:
        """Yield the samples that are not listed; note how many are."""
        for sample in samples:
            if self.lists(sample[0]):
                notes["excluded"] = notes.get("excluded", 0) + 1
            else:
                yield sample
