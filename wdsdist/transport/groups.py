"""Batches that cross together: for small ones, a message costs more than the batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch._utils import ExceptionWrapper


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
