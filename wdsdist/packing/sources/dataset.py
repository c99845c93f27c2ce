"""Data sets with random access as samples: a map-style ``torch.utils.data.Dataset``, a list, and their kin.

Items are made by the process that writes them. What they hold is known only then, so a few are made beforehand and
stand for all: they say how large a sample is, and whether a destination was packed from the same data set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.pools import Carried, apart
from wdsdist.errors import SourceError
from wdsdist.packing.sources.base import LeftOut, OnError, Sample, sample_size
from wdsdist.packing.sources.items import Encode, ItemEncoder, broken, digest, numbered, refuse_again

_LOOKS = 64
"""Items that are made beforehand: their mean size is within a few percent of that of most data sets."""

_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """A data set, and how its items become samples."""

    dataset: Any
    encode: ItemEncoder
    on_error: OnError

    def sample(self, number: int, seen: set[str]) -> Sample:
        """Return one sample, or what stands for it where it is to be left out; note its key."""
        try:
            sample = self._sample(number)
            refuse_again(sample[0], seen, self.encode.source)
        except SourceError as error:
            if self.on_error == "raise":
                raise
            return broken(numbered(number), error)
        return sample

    def _sample(self, number: int) -> Sample:
        try:
            item = self.dataset[number]
        except Exception as error:
            raise SourceError(
                f"item {number:,} of {self.encode.source} cannot be had: {type(error).__name__}: {error}"
            ) from error
        return self.encode(item, number)


@dataclass(frozen=True, slots=True, eq=False)
class DatasetSamples:
    """Some items of a data set, made when they are iterated over."""

    items: Carried[_Items]
    indices: list[int]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Sample]:
        items = self.items.value
        seen: set[str] = set()
        for index in self.indices:
            yield items.sample(index, seen)


@dataclass(frozen=True, slots=True, eq=False)
class DatasetSource:
    """A data set with random access, such as a map-style ``torch.utils.data.Dataset`` or a list."""

    location: str
    items: Carried[_Items]
    length: int
    sample_size: int
    """Bytes that a sample is expected to take in a tar."""
    digest: str
    kind: str = "dataset"
    has_exact_sizes: bool = False
    left_out: tuple[LeftOut, ...] = ()

    @classmethod
    def of(cls, dataset: Any, location: str, encode: Encode | None, on_error: OnError) -> DatasetSource:
        """Look at a few of the items.

        Raises `SourceError` for a data set without items, and for one that is another each time.
        """
        length = len(dataset)
        if not length:
            raise SourceError(f"{location} has no items: is it the right data set?")
        items = Carried(_Items(dataset, ItemEncoder.of(location, encode), on_error))
        # Data sets open files when they are first asked for an item, as workers of a DataLoader want it.
        size, known = apart(_look, items, length)
        return cls(location, items, length, size, known)

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"DatasetSource({self.location}: {self.length:,} items)"

    def fingerprint(self) -> str:
        return self.digest

    def extra(self) -> dict[str, Any]:
        return {}

    def stored_sizes(self) -> Int64s:
        return np.full(self.length, self.sample_size, np.int64)

    def take(self, indices: Int64s) -> DatasetSamples:
        return DatasetSamples(self.items, indices.tolist())


def _spread(length: int) -> list[int]:
    """Return the numbers of the items to look at: the first, the last, and one somewhere in each stretch between.

    Equal distances could fall in step with the data, such as with classes that take turns.
    """
    return sorted({*(int((n + n * _GOLDEN % 1) * length / _LOOKS) for n in range(_LOOKS)), length - 1})


def _look(carried: Carried[_Items], length: int) -> tuple[int, str]:
    """Return the mean size of some samples, and a digest of them."""
    items = carried.value
    looks = [items.sample(number, set()) for number in _spread(length)]
    if items.sample(0, set()) != looks[0]:
        raise SourceError(
            f"{items.encode.source} gives another item 0 each time, so that it could not be packed twice alike: turn "
            f"random transforms off"
        )
    return math.ceil(sum(map(sample_size, looks)) / len(looks)), digest("dataset", length, looks)
