"""How far packing has come, as callers are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from wdsdist.packing.writer import WrittenShard


@dataclass(frozen=True, slots=True)
class PackProgress:
    """How far packing has come."""

    samples_done: int
    samples: int | None
    """Of the whole data set, as are the other two; ``None`` while an iterable has not ended."""
    shards_done: int
    shards: int | None
    bytes_done: int
    bytes: int | None
    """Of all tars, headers and padding included, as they were planned."""
    left_out: int = 0
    """Samples that could not be packed, of those done."""
    samples_kept: int = 0
    """Of those done, what an earlier run had written."""
    bytes_kept: int = 0


ShowProgress = Callable[[PackProgress], None]


def later(done: PackProgress, shard: WrittenShard, size: int) -> PackProgress:
    """Return how far packing has come with one shard more, which counts for ``size`` bytes."""
    left_out = len(shard.left_out)
    return replace(
        done,
        samples_done=done.samples_done + shard.listed.num_samples + left_out,
        shards_done=done.shards_done + 1,
        bytes_done=done.bytes_done + size,
        left_out=done.left_out + left_out,
    )
