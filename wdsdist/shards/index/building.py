"""Build the shard index from the members of a tar."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from wdsdist.errors import ShardDamagedError
from wdsdist.shards.index.values import ShardIndex
from wdsdist.shards.tar import Members, group, split_stored_name, why_skipped


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


def from_members(members: Members, *, size: int, sha256: str, label: str) -> ShardIndex:
    """Build the index of a tar from its scanned members; ``label`` is its name in errors."""
    samples = group(members.names)
    if samples is not None:
        return ShardIndex(
            size=size,
            sha256=sha256,
            extensions=samples.extensions,
            sample_starts=samples.starts,
            offsets=members.offsets,
            sizes=members.sizes,
            extension_ids=samples.extension_ids,
            skipped=dict(members.skipped),
            **_key_arrays(samples.keys),
        )
    builder = ShardIndexBuilder(label)
    skipped = Counter(members.skipped)
    for name, offset, length in zip(members.names, members.offsets.tolist(), members.sizes.tolist(), strict=True):
        parts = split_stored_name(name)
        if parts is None:
            skipped[why_skipped(name)] += 1
        else:
            builder.add(*parts, offset, length)
    return builder.finish(size=size, sha256=sha256, skipped=skipped)
