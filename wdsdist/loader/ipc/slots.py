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
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsdist._util.shared_memory import AnonymousMemory

_STRIDE = 1 << 36
"""Bytes of the sparse file that each slot may grow to use; only what batches have needed is in memory."""

_numbers = itertools.count()
TABLES: weakref.WeakValueDictionary[tuple[int, int], SlotTable] = weakref.WeakValueDictionary()
"""The tables of this process, by their tokens, while loaders use them."""

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
        TABLES[self.token] = self

    def _attach(self) -> None:
        self._taken = self.memory.map(0, self.num_slots)  # a byte for each slot
        self._maps: dict[int, mmap.mmap] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_taken": None, "_maps": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()

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
