"""Batches from a worker to the main process, through shared memory.

A message costs more than making a small batch, so small batches are sent in groups.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from wdsdist.errors import ArgumentError, SharedMemoryError
from wdsdist.loader.ipc.envelope import seal, unseal
from wdsdist.loader.ipc.slots import SlotTable, SlotWriter

_SPARE_SLOTS = 2
"""For each worker, beyond the batches that it makes ahead: the batches that a training loop usually holds."""

_CAUTION = 4
"""Groups may take this fraction of the free memory: a quarter."""

_LONG_PICKLE = 8 << 10
"""Bytes of a batch's pickle from which it travels in a slot as well."""

_MOST_BATCHES = 32
_MOST_BYTES, _MOST_REMOTE_BYTES = 16 << 20, 2 << 20
"""Most bytes of a group. The first group of remote data waits for everything that it needs of its shards."""
_LEAST_GROUPS = 4
"""Least groups of a worker in an epoch."""


class Channel:
    """The channel of a loader's batches from its workers, made before they start. It sends pickles of the batches.

    Args:
        num_workers: worker processes.
        prefetch_factor: batches, or groups of them, that each makes ahead.
        batch_bytes: how large a batch is expected to be.
        group: batches that a worker is to send together.

    Raises:
        SharedMemoryError: there is less memory than the batches made ahead need.
    """

    def __init__(self, num_workers: int, prefetch_factor: int, batch_bytes: int, *, group: int) -> None:
        per_worker = prefetch_factor + _SPARE_SLOTS
        table = SlotTable(num_workers, per_worker)
        needed, available = table.num_slots * batch_bytes, table.memory.available
        if needed > available:
            raise SharedMemoryError(
                f"{num_workers} workers with {per_worker} batches of about {batch_bytes:,} bytes each need "
                f"{needed:,} bytes of shared memory, and {available:,} are left: {_WAYS_OUT}"
            )
        self.group = group if group * needed * _CAUTION <= available else 1
        """Batches that a worker sends together: 1 if memory is short."""
        self._table = table

    def sender(self, worker: int) -> Callable[[Any], Parcel]:
        """Return a worker's function from a group to the form in which it is sent.

        The function raises `SharedMemoryError` if a slot for the group does not fit into memory.
        """
        return functools.partial(_send, SlotWriter(self._table, worker))


_WAYS_OUT = "lower batch_size, num_workers or prefetch_factor"


class Parcel:
    """A batch on its way; unpickling it gives the batch."""

    __slots__ = ("_contents",)

    def __init__(self, *contents: Any) -> None:
        self._contents = contents

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, self._contents


def _send(writer: SlotWriter, batch: Any) -> Parcel:
    try:
        rest, pieces = seal(batch)
    except Exception as error:  # each type that does not pickle raises its own
        raise ArgumentError(
            f"a batch cannot be sent from its worker ({error}): let transform= and collate_fn= return what pickles, "
            f"such as tensors, numbers and strings"
        ) from error
    if len(rest) > _LONG_PICKLE:
        pieces.append([rest])
        rest = b""
    sizes = [sum(map(len, piece)) for piece in pieces]
    try:
        written = writer.write(pieces, sizes)
    except SharedMemoryError as error:
        raise SharedMemoryError(f"a batch of {sum(sizes):,} bytes does not fit: {error}: {_WAYS_OUT}") from error
    if written is None:
        return Parcel(rest, [bytearray().join(piece) for piece in pieces])
    return Parcel(rest, sizes, writer.token, *written)


def _unpacked(
    rest: bytes,
    pieces: list[Any],
    token: tuple[int, int] | None = None,
    slot: int = 0,
    capacity: int = 0,
    starts: list[int] | None = None,
) -> Any:
    """Return the batch; ``pieces`` are buffers, or with a slot the sizes of its parts."""
    if token is not None and starts is not None:
        table = SlotTable.find(token)
        if table is None:
            return None  # the pinning thread reads a message of an iteration that was given up, with its slots
        memory = table.lease(slot, capacity)
        pieces = [memory[start : start + size] for start, size in zip(starts, pieces, strict=True)]
    return unseal(rest or pieces.pop(), pieces)


def group_size(batches: int, batch_bytes: int, num_workers: int, *, is_remote: bool = False) -> int:
    """Return how many batches a worker should send together, if making one is little work.

    Args:
        batches: of an epoch; each worker should have some groups of them, or one would have much more to do.
        batch_bytes: of one batch; a group has at most 16 MiB, or 2 MiB of remote data.
        num_workers: worker processes.
        is_remote: whether shards are fetched from a store.

    >>> group_size(10_000, 200_000, 4), group_size(10_000, 5_000_000, 4), group_size(32, 200_000, 4)
    (32, 3, 2)
    """
    share = batches // (max(1, num_workers) * _LEAST_GROUPS)
    most = _MOST_REMOTE_BYTES if is_remote else _MOST_BYTES
    return max(1, min(_MOST_BATCHES, most // max(1, batch_bytes), share))
