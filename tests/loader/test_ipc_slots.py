"""Slots: used again when, and only when, the last view of a batch is gone."""

from __future__ import annotations

import errno
import gc
import hashlib
import os
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.folders import forked, status
from wdsdist.errors import SharedMemoryError
from wdsdist.loader.ipc.channel import Channel
from wdsdist.loader.ipc.slots import SlotTable
from wdsdist.samples.collate import Ragged


@contextmanager
def a_worker(prefetch_factor: int = 2) -> Iterator[tuple[Callable[[Any], Any], SlotTable]]:
    """Give what carries a batch from a worker and back, all in this process, and its table of slots."""
    channel, writer = (Channel(1, prefetch_factor, 0, group=1) for _ in range(2))
    assert channel._table is not None
    # The worker's side keeps its own maps, as in a process of its own.
    writer._table = SlotTable.__new__(SlotTable)
    writer._table.__setstate__(channel._table.__getstate__())
    yield lambda batch: pickle.loads(pickle.dumps(writer.send(batch))), channel._table


def taken(table: SlotTable) -> int:
    gc.collect()
    return table.num_slots - table._taken[:].count(0)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "the batch": lambda batch: batch,
    "a tensor": lambda batch: batch["x"],
    "a slice": lambda batch: batch["x"][2:3],
    "another dtype": lambda batch: batch["x"].view(torch.uint8),
    "its array": lambda batch: batch["x"].numpy(),
    "a slice of its array": lambda batch: batch["x"].numpy()[1:2],
    "its storage": lambda batch: batch["x"].untyped_storage(),
    "an array": lambda batch: batch["array"],
    "a part of an array": lambda batch: batch["array"].reshape(2, 2)[1],
    "raw bytes": lambda batch: batch["raw"][1],
    "a part of raw bytes": lambda batch: batch["raw"][1][1:],
    "an array of raw bytes": lambda batch: np.frombuffer(batch["raw"][0], np.uint8)[1:],
    "a raw column's data": lambda batch: batch["raw"].data,
    "a raw column's offsets": lambda batch: batch["raw"].offsets,
    "the parts of a raw column": lambda batch: list(batch["raw"]),
    "a model's input that needs gradients": lambda batch: (batch["x"] * torch.ones(1, requires_grad=True)).sum(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_slot_is_held_for_as_long_as_a_view_of_its_batch_lives(name: str) -> None:
    with a_worker() as (carry, table):
        view = VIEWS[name](carry({"x": torch.arange(4.0), "array": np.arange(4), "raw": Ragged.of([b"one", b"three"])}))
        assert taken(table) == 1
        del view
        assert taken(table) == 0


def test_random_sizes_kept_and_dropped_at_random_are_never_overwritten() -> None:
    chosen = random.Random(5)
    bulk = chosen.randbytes(64 << 20)

    def part() -> bytes:
        start = chosen.randrange(len(bulk) // 2)
        return bulk[start : start + int(chosen.choice([0, 1, 100, 1e4, 1e6]) * chosen.random())]

    def digest(batch: dict[str, Any]) -> str:
        state = hashlib.sha256(batch["x"].numpy().tobytes())
        for view in batch["raw"]:
            state.update(view)
        return state.hexdigest()

    with a_worker() as (carry, table):
        kept: list[tuple[str, dict[str, Any]]] = []
        for number in range(200):
            parts = [part() for _ in range(chosen.randrange(1, 8))]
            if number == 100:
                parts.append(bulk)
            batch = {"raw": Ragged.of(parts), "x": torch.frombuffer(bytearray(part() + b"."), dtype=torch.uint8)}
            kept.append((digest(batch), carry(batch)))
            while kept and chosen.random() < 0.5:
                expected, old = kept.pop(chosen.randrange(len(kept)))
                assert digest(old) == expected
                del old
            assert all(digest(batch) == expected for expected, batch in chosen.sample(kept, min(2, len(kept))))
        assert all(digest(batch) == expected for expected, batch in kept)
        del kept, batch
        assert taken(table) == 0
        assert all(len(held) < 32 << 20 for held in table._maps.values())  # one giant grows none


def test_a_forked_child_that_drops_a_batch_frees_no_slot() -> None:
    with a_worker() as (carry, table):
        kept = [carry({"x": torch.ones(10)})]
        assert status(forked(lambda: (kept.clear(), gc.collect()))) == 0
        assert taken(table) == 1
        assert kept[0]["x"].tolist() == [1] * 10


def test_too_little_memory_is_refused_before_anything_starts() -> None:
    Channel(4, 2, 600_000, group=1)
    with pytest.raises(
        SharedMemoryError,
        match=r"4 workers with 4 batches of about 1,000,000,000,000 bytes each need 16,000,000,000,000 bytes of shared "
        r"memory, and [\d,]+ are left: lower batch_size, num_workers or prefetch_factor",
    ):
        Channel(4, 2, 10**12, group=1)


def test_a_batch_that_does_not_fit_names_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    channel = Channel(1, 2, 0, group=1)
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(SharedMemoryError, match=r"batches of 8,0\d\d bytes do not fit: .* [\d,]+ are left: lower"):
        channel.send({"x": torch.zeros(1000, dtype=torch.int64)})
