"""Progress of work on the shards of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from wdsdist._util.array_types import Int64s
from wdsdist._util.pools import completed

T = TypeVar("T")


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


def reported(
    futures: Mapping[Future[T], int],
    sizes: Int64s | Sequence[int],
    samples: Int64s | Callable[[T], int],
    report: Report,
) -> Iterator[tuple[int, T]]:
    """Yield the number of each shard and the result of its future, as they complete, and report the progress.

    Args:
        futures: the number of the shard of each.
        sizes: bytes of each shard, by its number; -1 if unknown.
        samples: of each shard, by its number, or a function that takes them out of a result.
        report: called before the first shard, and after the caller has taken each.
    """
    total, size, count = sum(max(0, int(sizes[number])) for number in futures.values()), 0, 0
    if report:
        report(ShardsProgress(0, len(futures), 0, total, 0))
    for done, future in enumerate(completed(futures), 1):
        number, result = futures[future], future.result()
        yield number, result
        size += max(0, int(sizes[number]))
        count += samples(result) if callable(samples) else int(samples[number])
        if report:
            report(ShardsProgress(done, len(futures), size, total, count))
