"""Batches from a worker to the main process, through shared memory.

A message costs more than making a small batch, so small batches are sent in groups.
"""

from __future__ import annotations

from typing import Any

from wdsdist.errors import ArgumentError, SharedMemoryError
from wdsdist.loader.ipc.envelope import seal, unseal
from wdsdist.loader.ipc.slots import TABLES, SlotTable
from wdsdist.samples.collate import gather

_WAYS_OUT = "lower batch_size, num_workers or prefetch_factor"

_SPARE_SLOTS = 2
"""For each worker, beyond the groups that it makes ahead: the groups whose batches a training loop usually holds."""

_CAUTION = 4
"""Groups may take this fraction of the free memory: a quarter."""

_LONG_PICKLE = 8 << 10
"""Bytes of a group's pickle from which it travels in a slot too: a short one costs less in the message itself."""

_ALIGNMENT = 64
_SMALL = 8 << 20
"""Bytes up to which a slot grows whatever groups were like before."""
_OUTLIER = 4
"""Times the mean size at which a group is not worth a slot of its size."""

_MOST_BATCHES = 32
_MOST_BYTES = 16 << 20
"""Most bytes of a group."""
_LEAST_GROUPS = 4
"""Least groups of a worker in an epoch."""


class Channel:
    """The channel of a loader's batches from its workers, made before they start. It sends pickles of groups of them.

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
        self.worker = 0
        """The worker in whose process this is; each writes to slots of its own."""
        self._table = table
        self._mean = 0.0  # bytes of this worker's groups

    def send(self, group: Any) -> Parcel:
        """Return a group of batches in the form in which it is sent, with a copy of their buffers.

        They travel in the message itself if all slots are held, or if the group is so much larger than the others that
        its slot would lie idle from then on. Raises `SharedMemoryError` if a slot for it does not fit into memory.
        """
        try:
            rest, pieces = seal(group)
        except Exception as error:  # each type that does not pickle raises its own
            raise ArgumentError(
                f"a batch cannot be sent from its worker ({error}): let transform= and collate_fn= return what "
                f"pickles, such as tensors, numbers and strings"
            ) from error
        if len(rest) > _LONG_PICKLE:
            pieces.append([rest])
            rest = b""
        sizes = [sum(map(len, piece)) for piece in pieces]
        starts, end = [], 0
        for size in sizes:
            starts.append(end)
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        usual = self._mean or end
        self._mean = usual + (end - usual) / 16
        try:
            taken = self._table.take(self.worker, max(end, 1), max(_SMALL, _OUTLIER * usual))
        except SharedMemoryError as error:
            raise SharedMemoryError(f"batches of {sum(sizes):,} bytes do not fit: {error}: {_WAYS_OUT}") from error
        if taken is None:
            return Parcel(rest, [bytearray().join(piece) for piece in pieces])
        slot, memory = taken
        with memoryview(memory) as view:
            for piece, start, size in zip(pieces, starts, sizes, strict=True):
                gather(piece, view[start : start + size])
        return Parcel(rest, sizes, (self._table.token, slot, len(memory), starts))


class Parcel:
    """A group of batches on its way; unpickling it gives the group."""

    __slots__ = ("_contents",)

    def __init__(self, *contents: Any) -> None:
        self._contents = contents

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, self._contents


def _unpacked(rest: bytes, pieces: list[Any], place: tuple[tuple[int, int], int, int, list[int]] | None = None) -> Any:
    """Return the group; ``pieces`` are buffers, or the sizes of its parts in a slot; a long pickle is the last one."""
    if place is not None:
        token, slot, capacity, starts = place
        table = TABLES.get(token)
        if table is None:
            return None  # the pinning thread reads a message of an iteration that was given up, with its slots
        memory = table.lease(slot, capacity)
        pieces = [memory[start : start + size] for start, size in zip(starts, pieces, strict=True)]
    return unseal(rest or pieces.pop(), pieces)


def group_size(batches: int, batch_bytes: int, num_workers: int) -> int:
    """Return how many batches a worker should send together, if making one is little work.

    Args:
        batches: of an epoch; each worker should have some groups of them, or one would have much more to do.
        batch_bytes: of one batch; a group has at most 16 MiB.
        num_workers: worker processes.

    >>> group_size(10_000, 200_000, 4), group_size(10_000, 5_000_000, 4), group_size(32, 200_000, 4)
    (32, 3, 2)
    """
    share = batches // (max(1, num_workers) * _LEAST_GROUPS)
    return max(1, min(_MOST_BATCHES, _MOST_BYTES // max(1, batch_bytes), share))
