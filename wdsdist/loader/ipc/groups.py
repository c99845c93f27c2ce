"""Batches that cross together: for small ones, a message costs more than the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch._utils import ExceptionWrapper

_MOST = 32
_BYTES = 16 << 20
_GROUPS_OF_A_WORKER = 4


def group_size(batches: int, batch_bytes: int, num_workers: int) -> int:
    """Return how many batches a worker should send together, where making one is little work.

    Args:
        batches: of an epoch; each worker should have some groups of them, or one would have much more to do.
        batch_bytes: of one batch; a group has at most 16 MiB.
        num_workers: worker processes.

    >>> group_size(10_000, 200_000, 4), group_size(10_000, 5_000_000, 4), group_size(32, 200_000, 4)
    (32, 3, 2)
    """
    share = batches // (max(1, num_workers) * _GROUPS_OF_A_WORKER)
    return max(1, min(_MOST, _BYTES // max(1, batch_bytes), share))


def grouped(batches: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of ``size`` batches, the last one possibly shorter.

    An error takes the place of the batch that it befell, behind those of its group that were made before: they come
    from their worker in one message, and in order with those of others.

    >>> list(grouped("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    group: list[Any] = []
    try:
        for batch in batches:
            group.append(batch)
            del batch  # whoever is done with a group must not find that one of it is still held here
            if len(group) == size:
                yield group
                group = []
    except Exception:
        if not group:
            raise
        group.append(ExceptionWrapper(where="while making a batch"))  # type: ignore[no-untyped-call]
    if group:
        yield group


def opened(batch: Any) -> Any:
    """Return a batch of a group; raise the error that took its place."""
    if isinstance(batch, ExceptionWrapper):
        batch.reraise()  # type: ignore[no-untyped-call]
    return batch
