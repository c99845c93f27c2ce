"""Progress of work on the shards of a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardsProgress:
    """Progress of indexing or verifying shards, or of making columns from them."""

    shards_done: int
    shards: int
    """That have to be read; columns may cover others already."""
    bytes_done: int
    """Bytes of these shards, though not all of them may be read."""
    bytes: int
    samples_done: int
    damaged: int | None = None
    """Shards found damaged so far; ``None`` if they are not verified."""


Report = Callable[[ShardsProgress], None] | None
"""What is called before the first shard and after each; or ``None``."""
