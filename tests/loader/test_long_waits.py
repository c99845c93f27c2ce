"""A rank that waits for data says for what: the shard, the worker that waits for it, or that no store is to blame."""

from __future__ import annotations

import multiprocessing
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
        if "003.tar (" in line and "attempt" in line:  # not when another thread fetches its index
            stalled.released.set()

    with storage.use_policy(SOON), heard(release) as lines:
        assert play(stalled.url, workers) == 100
    (line,) = [line for line in lines if "003.tar (" in line and "attempt" in line][:1]
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
