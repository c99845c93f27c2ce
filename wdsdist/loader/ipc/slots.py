"""Slots: shared memory that workers write batches to and the main process reads them from, over and over.

Fresh shared memory costs a page fault for every 4 KiB, on both sides; a slot has had them. Each worker owns a few
slots and alone writes to them. A slot is taken when a batch is written, and free when the last view of that batch is
gone from the main process: batches may be kept for as long as anyone likes.
"""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.shared_memory import AnonymousMemory
from wdsdist.loader.ipc.envelope import Piece
from wdsdist.samples.collate import gather

_STRIDE = 1 << 36
"""Bytes of the sparse file that each slot may grow to use; only what batches have needed is in memory."""

_ALIGNMENT = 64
_SMALL = 8 << 20
"""Bytes up to which a slot grows whatever batches were like before."""

_OUTLIER = 4
"""Times the mean size at which a batch is not worth a slot of its size."""

_numbers = itertools.count()
_tables: weakref.WeakValueDictionary[tuple[int, int], SlotTable] = weakref.WeakValueDictionary()

Bytes = npt.NDArray[np.uint8]


class SlotTable:
    """The slots of all workers of a loader; the main process makes it before it starts them."""

    def __init__(self, num_workers: int, slots_per_worker: int) -> None:
        self.slots_per_worker = slots_per_worker
        self.num_slots = num_workers * slots_per_worker
        self.memory = AnonymousMemory()
        self.memory.allocate(0, self.num_slots)
        self.token = os.getpid(), next(_numbers)
        self._attach()
        _tables[self.token] = self

    def _attach(self) -> None:
        self._taken = self.memory.map(0, self.num_slots)  # a byte for each slot
        self._maps: dict[int, mmap.mmap] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_taken": None, "_maps": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()

    @classmethod
    def find(cls, token: tuple[int, int]) -> SlotTable | None:
        """Return the table of this process that a worker wrote to, while its loader uses it."""
        return _tables.get(token)

    def take(self, worker: int, length: int, most: float) -> tuple[int, mmap.mmap] | None:
        """Take a free slot of a worker and return it with its memory, of at least ``length`` bytes.

        Returns ``None`` if all slots are held, or the slot would have to grow beyond ``most`` bytes. The same slot
        comes as often as possible, because its memory is warm. Raises `SharedMemoryError` if memory is short.
        """
        first = worker * self.slots_per_worker
        slot = self._taken.find(b"\0", first, first + self.slots_per_worker)
        held = self._maps.get(slot)
        if slot < 0 or (length > min(most, _STRIDE) and (held is None or len(held) < length)):
            return None
        if held is None or len(held) < length:
            capacity = -(-(length + length // 4) // mmap.PAGESIZE) * mmap.PAGESIZE
            self.memory.allocate(self._offset(slot), capacity)
            held = self._maps[slot] = self.memory.map(self._offset(slot), capacity)
        self._taken[slot] = 1
        return slot, held

    def lease(self, slot: int, capacity: int) -> Bytes:
        """Return the memory of a slot; the slot is free again when this array and all its views are gone."""
        held = self._maps.get(slot)
        if held is None or len(held) < capacity:
            held = self._maps[slot] = self.memory.map(self._offset(slot), capacity)
        memory = np.frombuffer(held, np.uint8)
        weakref.finalize(memory, _release, self._taken, slot, os.getpid()).atexit = False
        return memory

    @staticmethod
    def _offset(slot: int) -> int:
        return (slot + 1) * _STRIDE


def _release(taken: mmap.mmap, slot: int, owner: int) -> None:
    # A forked child inherits batches, and drops them while its parent still reads.
    if os.getpid() == owner:
        taken[slot] = 0


class SlotWriter:
    """Writes the batches of one worker to its slots."""

    def __init__(self, table: SlotTable, worker: int) -> None:
        self.token = table.token
        self._table = table
        self._worker = worker
        self._mean = 0.0

    def write(self, pieces: Sequence[Piece], sizes: Sequence[int]) -> tuple[int, int, list[int]] | None:
        """Copy pieces into a free slot.

        Returns the slot, its capacity and the start of each piece; ``None`` if the batch must travel in another way:
        all slots are held, or it is so much larger than the others that its slot would lie idle from then on.
        """
        starts, end = [], 0
        for size in sizes:
            starts.append(end)
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        usual = self._mean or end
        self._mean = usual + (end - usual) / 16
        taken = self._table.take(self._worker, max(end, 1), max(_SMALL, _OUTLIER * usual))
        if taken is None:
            return None
        slot, memory = taken
        with memoryview(memory) as view:
            for piece, start, size in zip(pieces, starts, sizes, strict=True):
                gather(piece, view[start : start + size])
        return slot, len(memory), starts
