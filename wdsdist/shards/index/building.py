"""Build the shard index from the members of a tar."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np

from wdsdist.errors import ShardDamagedError
from wdsdist.shards.index.values import STRICT, ShardIndex, Tolerance
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
            if not self._tolerance.skip:
                raise ShardDamagedError(f"{self.label}: {problem}: rename it, or {_LEAVE_OUT}")
            self._left_out.setdefault(key, problem)
        elif lower in sample:
            problem = f"sample {key!r} has two members with extension {lower!r}"
            if not self._tolerance.skip:
                raise ShardDamagedError(
                    f"{self.label}: {problem}: {_LEAVE_OUT}, or with `--keep-first` too, which keeps the first copy"
                )
            if self._tolerance.keep_first:
                self._doubled.setdefault(key, f"{problem}: the first is kept")
            else:
                self._left_out.setdefault(key, problem)
        else:
            sample[lower] = extension, offset, size

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
    members: Members,
    *,
    size: int,
    sha256: str,
    label: str,
    tolerance: Tolerance = STRICT,
    key_rule: str = FIRST_DOT,
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
