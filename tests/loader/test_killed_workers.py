"""Workers that are killed: an error, never a wait for ever, and the next epoch is whole."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from wdsdist import StreamingDataLoader, StreamingDataset


@pytest.fixture
def loader(shards: Path) -> StreamingDataLoader:
    return StreamingDataLoader(StreamingDataset(shards), 10, num_workers=2, drop_last=False, prefetch_factor=1)


def kill_a_worker(loader: StreamingDataLoader) -> None:
    workers: Any = loader._iterator
    os.kill(workers._workers[1].pid, signal.SIGKILL)


def samples(loader: StreamingDataLoader) -> int:
    return sum(len(batch["__key__"]) for batch in loader)


def test_one_that_held_a_lock_of_torch_keeps_nobody_waiting(loader: StreamingDataLoader) -> None:
    iterator = iter(loader)
    next(iterator)
    torch_iterator: Any = loader._iterator
    event = torch_iterator._workers_done_event
    getattr(event, "_event", event)._cond.acquire()  # as it is when a worker is killed while it looks
    kill_a_worker(loader)
    with pytest.raises(RuntimeError, match="worker"):
        list(iterator)
    assert samples(loader) == 103


def test_one_that_dies_while_the_loop_is_training_is_replaced_in_the_next_epoch(loader: StreamingDataLoader) -> None:
    next(iter(loader))
    kill_a_worker(loader)
    with pytest.raises(RuntimeError, match="killed by signal"):
        time.sleep(60)  # torch's signal handler ends it
    assert samples(loader) == 103
