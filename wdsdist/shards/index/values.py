"""`ShardIndex`: the samples and members of one shard, as arrays, and how it is built from the members of a tar."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, runs
from wdsdist._util.validation import check_flag
from wdsdist.errors import ArgumentError, ShardDamagedError
from wdsdist.shards.tar import (
    AUTO,
    FIRST_DOT,
    LAST_DOT,
    Evidence,
    Members,
    evidence,
    group,
    split_stored_name,
    why_skipped,
)

_LEAVE_OUT = "leave its sample out by `wdsdist index` or `wdsdist pack` with `--on-error skip`"


@dataclass(frozen=True, slots=True)
class Stored:
    """Size and digest of a shard's file, which may be compressed."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What is left out of a tar's index rather than being an error. By default nothing is."""

    skip: bool = False
    """Leave out samples that readers could not tell apart, such as those with the same member twice."""
    keep_first: bool = False
    """Of a member that is there twice keep the first copy, rather than leaving out its sample."""
    salvage: bool = False
    """Index the samples before the damage of a tar that is cut short, garbled, or lacks its closing blocks."""
    excluded: tuple[str, ...] = ()
    """Keys of samples that are left out whatever they hold."""


STRICT = Tolerance()


def tolerance_of(on_error: str, keep_first: bool, salvage: bool) -> Tolerance:
    """Return the tolerance that arguments ask for. Raises `ArgumentError` for those that contradict one another.

    >>> tolerance_of("skip", True, False)
    Tolerance(skip=True, keep_first=True, salvage=False, excluded=())
    """
    if on_error not in ("raise", "skip"):
        raise ArgumentError(f'on_error is {on_error!r}: it must be "raise" or "skip"')
    check_flag("keep_first", keep_first)
    check_flag("salvage", salvage)
    if (keep_first or salvage) and on_error != "skip":
        name = "keep_first" if keep_first else "salvage"
        raise ArgumentError(f'{name} says what on_error="skip" (`--on-error skip`) keeps: give both')
    return Tolerance(on_error == "skip", keep_first, salvage)


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Samples and members of one shard; ``n`` samples with ``m`` members in all."""

    size: int
    """Bytes of the tar."""
    sha256: str
    """Digest of the tar, hexadecimal."""
    extensions: tuple[str, ...]
    """Each extension that occurs, as stored."""
    sample_starts: Int64s
    """int64 [n + 1]: the first member of each sample, and ``m``."""
    offsets: Int64s
    """int64 [m]: where each member's data starts in the tar."""
    sizes: Int64s
    """int64 [m]: bytes of each member's data."""
    extension_ids: npt.NDArray[np.uint32]
    """uint32 [m]: each member's place in ``extensions``."""
    key_starts: Int64s
    """int64 [n + 1]: where each sample's key starts in ``key_bytes``."""
    key_bytes: npt.NDArray[np.uint8]
    """uint8: all keys, UTF-8, one after another."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Number of entries of the tar that belong to no sample, by kind."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Samples that packing or indexing left out, as (key, reason); the key of what has none is empty."""
    key_rule: str = FIRST_DOT
    """Where names were cut into keys and extensions."""
    evidence: Evidence = field(default_factory=Evidence, compare=False)
    """What names show about the rule, where it is still to be decided; no part of the file."""
    stored: Stored | None = None
    """The shard's file where it is compressed: all other fields describe the decompressed tar."""
    tolerance: Tolerance = STRICT
    """What the tar was indexed with, where it holds what this index leaves out: another scan needs the same."""
    checksums: npt.NDArray[np.uint32] | None = None
    """uint32 [m]: of each member's data, as `index.checksums` computes it; ``None`` where its bytes were not read, or
    the index was made before there were any."""

    @property
    def file(self) -> Stored:
        """The shard's file, compressed or not."""
        return self.stored or Stored(self.size, self.sha256)

    @property
    def num_samples(self) -> int:
        return len(self.sample_starts) - 1

    @property
    def is_uniform(self) -> bool:
        """Whether all samples have the same extensions in the same order; false without samples."""
        members, rest = divmod(len(self.offsets), max(self.num_samples, 1))
        if rest or not members:
            return False
        ids = self.extension_ids.reshape(-1, members)
        return bool((np.diff(self.sample_starts) == members).all() and (ids == ids[0]).all())

    @property
    def num_scattered(self) -> int:
        """Number of samples whose members do not follow one another in the tar."""
        if not (np.diff(self.offsets) < 0).any():
            return 0
        places = np.empty(len(self.offsets), np.int64)
        places[np.argsort(self.offsets)] = np.arange(len(self.offsets))
        starts = self.sample_starts[:-1]
        spans = np.maximum.reduceat(places, starts) - np.minimum.reduceat(places, starts) + 1
        return int((spans != np.diff(self.sample_starts)).sum())

    def key(self, sample: int) -> str:
        """Return the key of a sample."""
        start, stop = self.key_starts[sample : sample + 2]
        return self.key_bytes[start:stop].tobytes().decode("utf-8", "surrogateescape")

    def of_samples(self, samples: npt.NDArray[np.integer]) -> ShardIndex:
        """Return the index that has some of the samples, in the given order."""
        members, places = runs(self.sample_starts, samples)
        letters, key_starts = runs(self.key_starts, samples)
        return replace(
            self,
            sample_starts=places,
            offsets=self.offsets[members],
            sizes=self.sizes[members],
            extension_ids=self.extension_ids[members],
            checksums=None if self.checksums is None else self.checksums[members],
            key_starts=key_starts,
            key_bytes=self.key_bytes[letters],
        )

    def members(self, sample: int) -> list[tuple[str, int, int]]:
        """Return the members of a sample as (extension, offset, size)."""
        start, stop = self.sample_starts[sample : sample + 2]
        return [
            (self.extensions[self.extension_ids[m]], int(self.offsets[m]), int(self.sizes[m]))
            for m in range(start, stop)
        ]


class ShardIndexBuilder:
    """Builds a shard index from the members of a tar, whose samples may be scattered over it.

    What would lose or mix samples is a `ShardDamagedError` of `add`, or is left out, as the tolerance says: an
    extension that occurs twice in a sample, and a member named like an entry that readers add themselves.
    """

    def __init__(self, label: str, tolerance: Tolerance = STRICT) -> None:
        self.label = label
        self._tolerance = tolerance
        self._excluded = frozenset(tolerance.excluded)
        self._samples: dict[str, dict[str, tuple[str, int, int]]] = {}  # by key, and by extension in lower case
        self._key = ""
        self._is_scattered = False
        self._left_out: dict[str, str] = {}
        self._doubled: dict[str, str] = {}  # samples of which the first copies are kept

    def add(self, key: str, extension: str, offset: int, size: int) -> None:
        """Add the next member in file order."""
        if key in self._excluded:
            self._left_out[key] = "it is in the list of samples to exclude"
            return
        lower = extension.lower()
        sample = self._samples.setdefault(key, {})
        self._is_scattered = self._is_scattered or bool(sample and key != self._key)
        self._key = key
        if lower.startswith("__") and lower.endswith("__"):
            problem = f"member {key}.{extension} has the name of an entry that readers add"
            advice = f"rename it, or {_LEAVE_OUT}"
        elif lower in sample:
            problem = f"sample {key!r} has two members with extension {lower!r}"
            advice = f"{_LEAVE_OUT}, or with `--keep-first` too, which keeps the first copy"
        else:
            sample[lower] = extension, offset, size
            return
        if not self._tolerance.skip:
            raise ShardDamagedError(f"{self.label}: {problem}: {advice}")
        if self._tolerance.keep_first and lower in sample:
            self._doubled.setdefault(key, f"{problem}: the first is kept")
        else:
            self._left_out.setdefault(key, problem)

    def drop_partial(self, problem: str) -> None:
        """Leave samples that may be truncated out of the index of a tar with damage behind them.

        That is the last one, or any where samples are scattered, unless it has the members of the one before it, or of
        the first one.
        """
        keys = list(self._samples)
        whole, suspects = (keys[:1], keys[1:]) if self._is_scattered else (keys[-2:-1], keys[-1:])
        for key in suspects if whole else ():
            if self._samples[key].keys() != self._samples[whole[0]].keys():
                self._left_out.setdefault(key, "it may lack members behind the damage of its tar")
        self._left_out[""] = problem

    def finish(self, *, size: int, sha256: str, skipped: dict[str, int] | None = None) -> ShardIndex:
        """Return the index, given the size and digest of the whole tar."""
        samples = {key: members for key, members in self._samples.items() if key not in self._left_out}
        members = [member for own in samples.values() for member in own.values()]
        extensions = {extension: None for extension, _, _ in members}
        numbers = {extension: number for number, extension in enumerate(extensions)}
        excluded = tuple(sorted(self._excluded & self._left_out.keys()))
        left_out = {**{key: why for key, why in self._doubled.items() if key in samples}, **self._left_out}
        return ShardIndex(
            size=size,
            sha256=sha256,
            extensions=tuple(extensions),
            sample_starts=np.cumsum([0, *map(len, samples.values())], dtype=np.int64),
            offsets=np.array([offset for _, offset, _ in members], np.int64),
            sizes=np.array([length for _, _, length in members], np.int64),
            extension_ids=np.array([numbers[extension] for extension, _, _ in members], np.uint32),
            skipped=dict(skipped or {}),
            left_out=tuple((key.encode("utf-8", "backslashreplace").decode(), why) for key, why in left_out.items()),
            tolerance=dataclasses.replace(self._tolerance, excluded=excluded) if left_out else STRICT,
            **_key_arrays([key.encode("utf-8", "surrogateescape") for key in samples]),
        )


def _key_arrays(keys: list[bytes]) -> dict[str, Any]:
    return {
        "key_starts": np.append(0, np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)))),
        "key_bytes": np.frombuffer(b"".join(keys), np.uint8),
    }


def from_members(
    members: Members, *, size: int, sha256: str, label: str, tolerance: Tolerance = STRICT, key_rule: str = FIRST_DOT
) -> ShardIndex:
    """Build the index of a tar from its scanned members.

    Args:
        members: all of the tar.
        size, sha256: of the tar.
        label: its name in errors.
        tolerance: what is left out rather than being damage.
        key_rule: where names are cut. With ``"auto"`` the index has the ``evidence`` of the names, and is made by the
            first dot where that loses nothing: the names of all shards decide.
    """
    file: dict[str, Any] = {"size": size, "sha256": sha256}
    if key_rule not in (AUTO, FIRST_DOT):
        return _by_rule(members, file, ShardIndexBuilder(label, tolerance), key_rule)
    samples = None if members.damage or tolerance.excluded else group(members.names)
    found = evidence(members.names, samples) if key_rule == AUTO else Evidence()
    if samples is not None:
        return ShardIndex(
            **file,
            extensions=samples.extensions,
            sample_starts=samples.starts,
            offsets=members.offsets,
            sizes=members.sizes,
            extension_ids=samples.extension_ids,
            skipped=dict(members.skipped),
            evidence=found,
            **_key_arrays(samples.keys),
        )
    try:
        index = _by_rule(members, file, ShardIndexBuilder(label, tolerance), FIRST_DOT)
    except ShardDamagedError:
        if not found:
            raise
        index = _by_rule(members, file, ShardIndexBuilder(label, tolerance), LAST_DOT)
    return dataclasses.replace(index, evidence=found)


def _by_rule(members: Members, file: dict[str, Any], builder: ShardIndexBuilder, key_rule: str) -> ShardIndex:
    """Build an index name by name."""
    skipped = Counter(members.skipped)
    for name, offset, length in zip(members.names, members.offsets.tolist(), members.sizes.tolist(), strict=True):
        try:
            parts = split_stored_name(name, key_rule)
        except ValueError as error:
            raise ShardDamagedError(f"{builder.label}: {error}") from None
        if parts is None:
            skipped[why_skipped(name)] += 1
        else:
            builder.add(*parts, offset, length)
    if members.damage:
        builder.drop_partial(members.damage)
    return dataclasses.replace(builder.finish(**file, skipped=skipped), key_rule=key_rule)
