"""A rank that waits for data says for what: the shard, the worker that waits for it, or that no store is to blame."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.heard import heard
from tests.support.web import Answer, Asked, answering
from wdsdist import StreamingDataLoader, StreamingDataset, storage

SOON = storage.RequestPolicy(first_warning=0.05, next_warning=0.05)


class Stalled:
    """Stalled web server: it does not answer for a shard until it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.released = threading.Event()
        self.url = ""

    def answer(self, asked: Asked) -> Answer:
        name = asked.path.lstrip("/")
        if name == "003.tar":
            self.released.wait()
        path = self.folder / name
        return (200, {}, path.read_bytes()) if path.is_file() else (404, {}, b"")


@pytest.fixture
def stalled(shards: Path) -> Iterator[Stalled]:
    server = Stalled(shards)
    with answering(server.answer) as (server.url, _):
        yield server
        server.released.set()


def play(shards: Path | str, workers: int, **options: Any) -> int:
    dataset = StreamingDataset(shards, num_replicas=1, rank=0, shuffle=False, **options)
    return sum(len(batch["__key__"]) for batch in StreamingDataLoader(dataset, 10, num_workers=workers))


@pytest.mark.parametrize(("workers", "start"), [(0, "still waiting for "), (1, "rank 0 has waited ")])
def test_a_warning_names_the_shard_that_a_rank_waits_for(stalled: Stalled, workers: int, start: str) -> None:
    def release(line: str) -> None:
        if "003.tar (" in line:
            stalled.released.set()

    with storage.use_policy(SOON), heard(release) as lines:
        assert play(stalled.url, workers) == 100
    (line,) = [line for line in lines if "003.tar (" in line][:1]
    assert line.startswith(start)
    assert ("data: worker 0 (pid " in line) == (workers > 0)
    assert f"{stalled.url}/003.tar (" in line
    assert "attempt 1, 0 B of" in line


def test_a_warning_says_that_a_worker_waits_for_no_store(shards: Path) -> None:
    go_on = multiprocessing.get_context("fork").Event()

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        go_on.wait()
        return sample

    with storage.use_policy(SOON), heard(lambda line: go_on.set() if "for no store" in line else None) as lines:
        assert play(shards, 1, transform=slow) == 100
    assert "waits for no store: it reads, decodes or transforms samples" in lines[-1]


def test_a_worker_that_is_late_for_the_next_epoch_is_warned_about(shards: Path) -> None:
    loader = StreamingDataLoader(StreamingDataset(shards, num_replicas=1, rank=0), 10, num_workers=1)
    with storage.use_policy(SOON):
        assert len(list(loader)) == 10
        (worker,) = loader._iterator._workers  # type: ignore[union-attr]
        os.kill(worker.pid, signal.SIGSTOP)
        with heard(lambda _: os.kill(worker.pid, signal.SIGCONT)) as lines:
            assert len(list(loader)) == 10
    assert f"data: worker 0 (pid {worker.pid}) waits for " in lines[0]


def test_torchs_timeout_still_ends_the_wait(shards: Path) -> None:
    never = multiprocessing.get_context("fork").Event()

    def hang(_: Any) -> None:
        never.wait(0.6)
        os._exit(0)  # or torch would wait for the worker

    dataset = StreamingDataset(shards, num_replicas=1, rank=0, transform=hang)
    loader = StreamingDataLoader(dataset, 10, num_workers=1, timeout=0.2)
    with storage.use_policy(SOON), pytest.raises(RuntimeError, match="timed out after"):
        next(iter(loader))
