"""A rank that waits for data says for what: the shard, the worker that waits for it, or that no store is to blame."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.heard import heard
from tests.support.policies import use_policy
from tests.support.web import Answer, Asked, answering
from wdsdist import StreamingDataLoader, StreamingDataset

SOON = {"first_warning": 0.05, "next_warning": 0.05}


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


def test_a_process_that_reads_names_the_shard_that_it_waits_for(stalled: Stalled) -> None:
    def release(line: str) -> None:
        if "003.tar (" in line and "attempt" in line:  # not when another thread fetches its index
            stalled.released.set()

    with use_policy(**SOON), heard(release) as lines:
        assert play(stalled.url, 0) == 100
    (line,) = [line for line in lines if "003.tar (" in line and "attempt" in line][:1]
    assert line.startswith(f"still waiting for {stalled.url}/003.tar (")
    assert "attempt 1, 0 B of" in line


def test_a_rank_names_the_worker_that_it_waits_for(shards: Path) -> None:
    go_on = multiprocessing.get_context("fork").Event()

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        go_on.wait()
        return sample

    with use_policy(**SOON), heard(lambda _: go_on.set()) as lines:
        assert play(shards, 1, transform=slow) == 100
    assert "s for data from worker 0 (pid " in lines[0]
    assert lines[0].startswith("rank 0 has waited ")
