"""Check samples while they are packed: that they have the fields that are asked for, and that their members decode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from wdsdist.errors import SourceError
from wdsdist.packing.payloads import BrokenPayload, Payload, Sample, payload_size, whole
from wdsdist.samples.check import SampleCheck
from wdsdist.samples.fields import ABSENT, Fields

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
