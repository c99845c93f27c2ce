"""Concatenate the manifests of several data sets; each shard keeps the label of its data set."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import counted
from wdsdist.errors import ArgumentError
from wdsdist.shards.manifest import Manifest

_NAMED = 4
"""Data sets that the text of a joined manifest names."""


@dataclass(frozen=True, eq=False, repr=False)
class JoinedManifest(Manifest):
    """A manifest of the shards of several data sets, under their full locations."""

    parts: tuple[Manifest, ...] = ()
    labels: tuple[str, ...] = ()
    """The value of ``"__dataset__"`` in the samples of each part."""

    @property
    def data_sets(self) -> tuple[Manifest, ...]:  # type: ignore[override]
        return tuple(one for part in self.parts for one in part.data_sets)

    def part(self, number: int) -> tuple[Manifest, int]:  # type: ignore[override]
        which = self._part_of(number)
        return self.parts[which].part(number - int(self.first_shards[which]))

    @property
    def versions(self) -> dict[str, str]:
        return {base: version for part in self.parts for base, version in part.versions.items()}

    @functools.cached_property
    def whole(self) -> Manifest:  # type: ignore[override]
        if all(part.picks is None for part in self.parts):
            return self
        parts = tuple(part.whole for part in self.parts)
        return replace(self, parts=parts, counts=np.concatenate([part.counts for part in parts]))

    @functools.cached_property
    def is_copied(self) -> npt.NDArray[np.bool_]:
        return np.concatenate([part.is_copied for part in self.parts])

    @property
    def has_ranges(self) -> bool:
        return all(part.has_ranges for part in self.parts)

    @functools.cached_property
    def needed_sizes(self) -> Int64s:
        return np.concatenate([part.needed_sizes for part in self.parts])

    def needed_of(self, share: float) -> Int64s:
        return np.concatenate([part.needed_of(share) for part in self.parts])

    def staged(self) -> Manifest:  # type: ignore[override]
        return replace(self, parts=tuple(part.staged() for part in self.parts))

    def explode(self, by: str | float, *, per: float = 1, near: bool = False) -> JoinedManifest:
        parts = tuple(part.explode(by, per=per, near=near) for part in self.parts)
        return replace(self, parts=parts, counts=np.concatenate([part.counts for part in parts]))

    @functools.cached_property
    def fingerprint(self) -> str:
        if self.whole is self:
            return super().fingerprint
        state = hashlib.sha256("\n".join(part.fingerprint for part in self.parts).encode())
        return state.hexdigest()[:32]

    def label(self, number: int) -> str:
        return self.labels[self._part_of(number)]

    @functools.cached_property
    def first_shards(self) -> Int64s:
        """int64 [parts]: the number of each part's first shard."""
        lengths = np.array([len(part.counts) for part in self.parts], np.int64)
        return np.cumsum(lengths) - lengths

    @property
    def shown(self) -> str:
        return counted(len(self.parts), "data set")

    def __repr__(self) -> str:
        shown = [*map(repr, self.parts[:_NAMED]), *(["..."] if len(self.parts) > _NAMED else [])]
        return f"JoinedManifest({self.shown}, {counted(self.num_samples, 'sample')}: {', '.join(shown)})"

    def _values(self) -> dict[str, Any]:
        # By value: a part that shares memory itself could not be pickled inside a value in shared memory.
        return {**super()._values(), "parts": [(type(part), part._values()) for part in self.parts]}

    @classmethod
    def _restored(cls, values: dict[str, Any]) -> Manifest:  # type: ignore[override]
        return cls(**{**values, "parts": tuple(kind._restored(part) for kind, part in values["parts"])})

    def _part_of(self, number: int) -> int:
        return int(np.searchsorted(self.first_shards, number, side="right")) - 1


def join(parts: Sequence[Manifest], labels: Sequence[str]) -> JoinedManifest:
    """Concatenate manifests into one, whose shards have the labels of their data sets.

    Raises `ArgumentError` where there is none, or where two have the same label.

    >>> from wdsdist.shards.manifest import Shard
    >>> one, other = (Manifest.of(f"/data/{name}", [Shard("0.tar", 3, -1, "")]) for name in ("a", "b"))
    >>> joined = join([one, other], ["a", "b"])
    >>> joined.num_samples, joined.location(1), joined.label(1)
    (6, '/data/b/0.tar', 'b')
    """
    if not parts:
        raise ArgumentError("there are no data sets to join: name at least one")
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ArgumentError(
            f"two data sets have the name {twice[0]!r}: give each one of its own, as in {{'a': {twice[0]!r}, 'b': ...}}"
        )
    shards = [replace(shard, name=part.location(number)) for part in parts for number, shard in enumerate(part.shards)]
    # Options stay with the parts: one store may have others in each of them.
    return JoinedManifest.of("/", shards, parts=tuple(parts), labels=tuple(labels))
