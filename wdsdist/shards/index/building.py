"""Build the shard index from the members of a tar."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from wdsdist.errors import ShardDamagedError
from wdsdist.shards.index.values import ShardIndex
from wdsdist.shards.tar import (
    AUTO,
    CLUTTER,
    FIRST_DOT,
    LAST_DOT,
    Evidence,
    Members,
    evidence,
    group,
    is_clutter,
    split_stored_name,
)


class ShardIndexBuilder:
    """Builds a shard index from members in file order, and checks that they form samples.

    Raises `ShardDamagedError` from `add` for what would lose or mix samples: an extension that occurs twice in a
    sample, a sample whose members are not adjacent, a member named like an entry that readers add themselves.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._extensions: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._starts: list[int] = []
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._ids: list[int] = []
        self._current: set[str] = set()
        self._key: str | None = None

    def add(self, key: str, extension: str, offset: int, size: int) -> None:
        """Add the next member."""
        if key != self._key:
            if key in self._keys:
                raise ShardDamagedError(
                    f"{self._label}: the members of sample {key!r} are not adjacent: bring them together with "
                    "`wdsdist pack OLD.tar NEW --from tar`"
                )
            self._keys[key] = len(self._starts)
            self._starts.append(len(self._offsets))
            self._key, self._current = key, set()
        lower = extension.lower()
        if lower in self._current:
            raise ShardDamagedError(f"{self._label}: sample {key!r} has two members with extension {lower!r}")
        if lower.startswith("__") and lower.endswith("__"):
            raise ShardDamagedError(
                f"{self._label}: member {key}.{extension} has the name of an entry that readers add: rename it"
            )
        self._current.add(lower)
        self._offsets.append(offset)
        self._sizes.append(size)
        self._ids.append(self._extensions.setdefault(extension, len(self._extensions)))

    def finish(self, *, size: int, sha256: str, skipped: dict[str, int] | None = None) -> ShardIndex:
        """Return the index, given the size and digest of the whole tar."""
        return ShardIndex(
            size=size,
            sha256=sha256,
            extensions=tuple(self._extensions),
            sample_starts=np.array([*self._starts, len(self._offsets)], np.int64),
            offsets=np.array(self._offsets, np.int64),
            sizes=np.array(self._sizes, np.int64),
            extension_ids=np.array(self._ids, np.uint32),
            skipped=dict(skipped or {}),
            **_key_arrays([key.encode("utf-8", "surrogateescape") for key in self._keys]),
        )


def _key_arrays(keys: list[bytes]) -> dict[str, Any]:
    return {
        "key_starts": np.append(0, np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)))),
        "key_bytes": np.frombuffer(b"".join(keys), np.uint8),
    }


def from_members(members: Members, *, size: int, sha256: str, label: str, key_rule: str = FIRST_DOT) -> ShardIndex:
    """Build the index of a tar from its scanned members.

    Args:
        members: all of the tar.
        size, sha256: of the tar.
        label: its name in errors.
        key_rule: where names are cut. With ``"auto"`` the index has the ``evidence`` of the names, and is made by the
            first dot where that loses nothing: the names of all shards decide.
    """
    file: dict[str, Any] = {"size": size, "sha256": sha256}
    if key_rule not in (AUTO, FIRST_DOT):
        return _by_rule(members, file, label, key_rule)
    samples = group(members.names)
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
        return dataclasses.replace(_by_rule(members, file, label, FIRST_DOT), evidence=found)
    except ShardDamagedError:
        if not found:
            raise
        return dataclasses.replace(_by_rule(members, file, label, LAST_DOT), evidence=found)


def _by_rule(members: Members, file: dict[str, Any], label: str, key_rule: str) -> ShardIndex:
    """Build an index name by name."""
    builder = ShardIndexBuilder(label)
    skipped = dict(members.skipped)
    for name, offset, length in zip(members.names, members.offsets.tolist(), members.sizes.tolist(), strict=True):
        try:
            parts = split_stored_name(name, key_rule)
        except ValueError as error:
            raise ShardDamagedError(f"{label}: {error}") from None
        if parts is None:
            why = CLUTTER if is_clutter(name) else "name without a key and an extension"
            skipped[why] = skipped.get(why, 0) + 1
        else:
            builder.add(*parts, offset, length)
    return dataclasses.replace(builder.finish(**file, skipped=skipped), key_rule=key_rule)
