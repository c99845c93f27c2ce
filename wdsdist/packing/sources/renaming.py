"""Keys that occur more than once, and what tells them apart: found by hashes in arrays, for to hold tens of millions of
keys as Python objects would take gigabytes. Equal hashes are only a hint; the keys themselves decide.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, Uint64s
from wdsdist.sampling.permutation import mix_key, mix_keys
from wdsdist.shards.index import ShardIndex

_CHUNK = 1 << 16  # keys that are looked at together
_NUMBERED = re.compile(r".+~(?P<number>[1-9][0-9]{0,17})", re.DOTALL)
_REPEATED = int.from_bytes(b"keys", "big")


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """The keys of all samples, as they are packed: without leading ``./`` and slashes."""

    letters: npt.NDArray[np.uint8]
    """uint8: UTF-8, and what is left out, one after another."""
    starts: Int64s
    """int64 [samples]: where each key starts."""
    stops: Int64s
    """int64 [samples]: and ends."""

    @classmethod
    def of(cls, indexes: Iterable[ShardIndex]) -> Keys:
        """Return the keys of some shards, in order."""
        listed = list(indexes)
        letters = np.concatenate([np.empty(0, np.uint8), *(index.key_bytes for index in listed)])
        lengths = np.concatenate([np.empty(0, np.int64), *(np.diff(index.key_starts) for index in listed)])
        stops = np.cumsum(lengths)
        keys = cls(letters, stops - lengths, stops)
        for number in np.flatnonzero(np.isin(letters[keys.starts], np.frombuffer(b"./", np.uint8))).tolist():
            keys.starts[number] += lengths[number] - len(normal(keys.key(number)))
        return keys

    def __len__(self) -> int:
        return len(self.starts)

    def key(self, number: int) -> bytes:
        """Return one key, in UTF-8."""
        return self.letters[self.starts[number] : self.stops[number]].tobytes()

    def holding(self, letters: bytes) -> Int64s:
        """int64: the keys in which some ASCII letters follow one another, and perhaps a few more."""
        last = max(len(self.letters) - len(letters) + 1, 0)
        found = np.ones(last, np.bool_)
        for place in range(len(letters)):
            found &= self.letters[place : place + last] == letters[place]
        return np.unique(np.searchsorted(self.stops, np.flatnonzero(found), side="right"))

    def beyond_ascii(self) -> Int64s:
        """int64: the keys with other letters than those of ASCII."""
        highest = np.maximum.reduceat(self.letters, self.starts) if len(self) else self.letters
        return np.flatnonzero(highest > 127)

    def hashes(self, seed: int) -> Uint64s:
        """uint64 [samples]: equal for equal keys."""
        found = np.empty(len(self), np.uint64)
        for part, letters, counts in self._parts(np.arange(len(self))):
            starts = np.cumsum(counts) - counts
            places = np.arange(len(letters)) - np.repeat(starts, counts)
            found[part] = np.add.reduceat(mix_keys(mix_key(_REPEATED, seed), places, letters), starts)
        return found

    def are_equal(self, some: Int64s, others: Int64s) -> bool:
        """Say whether each of some keys is equal to that of the others that stands in its place."""
        for (_, letters, counts), (_, more, more_counts) in zip(self._parts(some), self._parts(others), strict=True):
            if not np.array_equal(counts, more_counts) or not np.array_equal(letters, more):
                return False
        return True

    def _parts(self, numbers: Int64s) -> Iterator[tuple[slice, npt.NDArray[np.uint8], Int64s]]:
        """Yield the letters of some keys and how many each has, for parts of them; no key is empty."""
        for start in range(0, len(numbers), _CHUNK):
            part = slice(start, start + _CHUNK)
            starts = self.starts[numbers[part]]
            counts = self.stops[numbers[part]] - starts
            before = np.cumsum(counts) - counts
            yield part, self.letters[np.repeat(starts - before, counts) + np.arange(int(counts.sum()))], counts


@dataclass(frozen=True, slots=True, eq=False)
class Renamed:
    """The samples whose key has occurred before, which get a number: the second ``0001`` becomes ``0001~2``."""

    samples: Int64s
    """int64 [renamed]: their numbers, ascending."""
    suffixes: Int64s
    """int64 [renamed]: what is put behind the key of each, after ``~``."""

    def __len__(self) -> int:
        return len(self.samples)

    def key(self, sample: int, key: str) -> str:
        """Return the key that a sample gets in place of its own."""
        place = int(np.searchsorted(self.samples, sample))
        if place == len(self.samples) or self.samples[place] != sample:
            return key
        return f"{key}~{self.suffixes[place]}"


def renamed(keys: Keys) -> Renamed:
    """Number the keys that occur again, each with the least number that makes it another than all there are.

    >>> letters = np.frombuffer(b"abaa~2a", np.uint8)
    >>> found = renamed(Keys(letters, np.array([0, 1, 2, 3, 6]), np.array([1, 2, 3, 6, 7])))
    >>> found.samples.tolist(), found.suffixes.tolist()  # of a, b, a, a~2, a
    ([2, 4], [3, 4])
    """
    for seed in itertools.count():
        hashes = keys.hashes(seed)
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        del hashes
        is_again = np.append(False, ordered[1:] == ordered[:-1])[: len(ordered)]
        again, firsts = np.flatnonzero(is_again), np.flatnonzero(~is_again)
        first = firsts[np.searchsorted(firsts, again, side="right") - 1]
        if keys.are_equal(order[again], order[first]):
            break  # or else two keys that differ have one hash, once in some 100,000 sets of ten million
    suffixes = again - first + 1
    _pass_over_taken(suffixes, ordered[again], *_numbered(keys, seed))
    samples = order[again]
    by_number = np.argsort(samples)
    return Renamed(samples[by_number], suffixes[by_number])


def _numbered(keys: Keys, seed: int) -> tuple[Uint64s, Int64s]:
    """Return the keys that end like a new one: a hash of what stands before the ``~``, and the number behind it."""
    candidates = keys.holding(b"~")
    numbers = np.zeros(len(candidates), np.int64)
    stops = keys.stops[candidates]
    for place, candidate in enumerate(candidates.tolist()):
        match = _NUMBERED.fullmatch(keys.key(candidate).decode("utf-8", "surrogateescape"))
        if match:
            numbers[place] = int(match["number"])
            stops[place] -= len(match["number"]) + 1
    found = numbers > 0
    return Keys(keys.letters, keys.starts[candidates[found]], stops[found]).hashes(seed), numbers[found]


def _pass_over_taken(suffixes: Int64s, hashes: Uint64s, taken: Uint64s, numbers: Int64s) -> None:
    """Raise the suffixes, ``hashes`` of whose keys are side by side, beyond those that other samples have already."""
    order = np.argsort(taken, kind="stable")
    taken, numbers = taken[order], numbers[order]
    for one in np.intersect1d(hashes, taken):
        theirs = set(numbers[np.searchsorted(taken, one) : np.searchsorted(taken, one, side="right")].tolist())
        number = 1
        for place in range(int(np.searchsorted(hashes, one)), int(np.searchsorted(hashes, one, side="right"))):
            number = next(free for free in itertools.count(number + 1) if free not in theirs)
            suffixes[place] = number


def normal(key: bytes) -> bytes:
    """Return a key without leading ``./`` and slashes, as packing writes keys.

    >>> normal(b".//./a/./b"), normal(b".a")
    (b'a/./b', b'.a')
    """
    while key.startswith((b"./", b"/")):
        key = key.removeprefix(b".").lstrip(b"/")
    return key
