"""Progress of work on the shards of a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardsProgress:
    """Progress of packing, indexing or verifying shards, or of making columns from them."""

    shards_done: int
    shards: int | None
    """That have to be read or written; columns may cover others already. ``None`` while an iterable is packed."""
    bytes_done: int
    """Bytes of these shards, though not all of them may be read; of planned tars, headers and padding included."""
    bytes: int | None
    samples_done: int
    samples: int | None = None
    damaged: int | None = None
    """Shards found damaged so far; ``None`` if they are not verified."""
    left_out: int = 0
    """Samples that could not be packed, of those done."""


Report = Callable[[ShardsProgress], None] | None
"""What is called before the first shard and after each; or ``None``."""
