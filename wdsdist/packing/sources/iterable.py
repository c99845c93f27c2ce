"""Iterables of samples, such as generators: read once and in order, without knowing how many will come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from wdsdist.errors import SourceError
from wdsdist.packing.sources.base import LeftOut, OnError, Sample, sample_size
from wdsdist.packing.sources.items import Encode, ItemEncoder, broken, digest, numbered

_LOOKS = 64
_LOOKED_AT_BYTES = 16 << 20
"""The first samples wait in memory until they are written: no more than needed to tell one iterable from another."""


class IterableSource:
    """The samples of an iterable; they can be had once.

    Its first samples are made beforehand: whether a destination was packed from the same iterable is told by them.
    Raises `SourceError` for an iterable that gives none, or fails among them.
    """

    kind = "iterable"
    left_out: tuple[LeftOut, ...] = ()

    def __init__(self, items: Iterable[Any], location: str, encode: Encode | None, on_error: OnError) -> None:
        self.location = location
        self._rest = _samples(items, ItemEncoder.of(location, encode), on_error)
        self._first: deque[Sample] = deque()
        left = _LOOKED_AT_BYTES
        while len(self._first) < _LOOKS and left > 0 and (sample := next(self._rest, None)) is not None:
            self._first.append(sample)
            left -= sample_size(sample)
        if not self._first:
            raise SourceError(f"{location} gave no samples: was it iterated over before?")
        self._fingerprint = digest(self.kind, None, self._first)

    def fingerprint(self) -> str:
        return self._fingerprint

    def extra(self) -> dict[str, Any]:
        return {}

    def in_order(self) -> Iterator[Sample]:
        while self._first:
            yield self._first.popleft()
        yield from self._rest


def _samples(items: Iterable[Any], encode: ItemEncoder, on_error: OnError) -> Iterator[Sample]:
    for number, item in enumerate(_guarded(items, encode.source)):
        try:
            sample = encode(item, number)
        except SourceError as error:
            if on_error == "raise":
                raise
            sample = broken(numbered(number), error)
        yield sample


def _guarded(items: Iterable[Any], source: str) -> Iterator[Any]:
    """Yield the items; say which one could not be had where the iterable raises."""
    number = 0
    try:
        for item in items:
            yield item
            number += 1
    except Exception as error:
        raise SourceError(f"{source} failed at sample {number:,}: {type(error).__name__}: {error}") from error
