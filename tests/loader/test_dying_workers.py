"""Workers that die, outlive their rank or hang: an error or a warning, and never a wait without an end."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked as programs
from tests.support.folders import forked, status
from tests.support.heard import heard
from tests.support.policies import use_policy
from tests.support.programs import PROGRAMS
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import StateError


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


SOON = 60.0
"""Seconds: far below the time for which a shard is waited for, far above what a busy machine takes to end a process."""


@pytest.mark.parametrize(
    ("when", "method"),
    [
        pytest.param("as they start", "fork", marks=pytest.mark.slow),
        ("while they read", "fork"),
        pytest.param("as they start", "forkserver", marks=pytest.mark.slow),
    ],
)
def test_they_end_with_the_one_that_started_them(shards: Path, tmp_path: Path, when: str, method: str) -> None:
    for name in ("hanging", "gate"):
        os.mkfifo(tmp_path / name)
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    streams = {"stdout": os.devnull, "stderr": str(tmp_path / "stderr")}
    rank = programs.start(PROGRAMS / "hanging_workers.py", shards, when, method, tmp_path, **streams)
    numbers: list[int] = []
    while len(numbers) < 2:
        numbers += [int(line) for line in (tmp_path / "hanging").read_text().split()]
    workers = [os.pidfd_open(number) for number in numbers]
    try:
        rank.kill()
        rank.join()
        if when == "as they start":  # and have not looked yet who their parent is
            os.write(gate, b"12")
        for worker in workers:
            assert select.select([worker], [], [], SOON)[0], f"a worker that hangs {when} has outlived its rank"
    finally:
        os.close(gate)
        for number, worker in zip(numbers, workers, strict=True):
            if not select.select([worker], [], [], 0)[0]:
                os.kill(number, 9)
            os.close(worker)


def test_a_rank_names_the_worker_that_it_waits_for(shards: Path) -> None:
    go_on = multiprocessing.get_context("fork").Event()

    def slow(sample: dict[str, Any]) -> dict[str, Any]:
        go_on.wait()
        return sample

    waiting = StreamingDataLoader(StreamingDataset(shards, transform=slow), 10, num_workers=1)
    with use_policy(first_warning=0.05, next_warning=0.05), heard(lambda _: go_on.set()) as lines:
        assert samples(waiting) == 100
    assert "s for data from worker 0 (pid " in lines[0]
    assert lines[0].startswith("rank 0 has waited ")


def test_a_stopped_worker_does_not_keep_the_program_from_ending(shards: Path) -> None:
    loader = StreamingDataLoader(StreamingDataset(shards), 10, num_workers=1, timeout=1, prefetch_factor=1)
    iterator = iter(loader)
    next(iterator)
    workers: Any = loader._iterator
    (worker,) = workers._workers
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        list(iterator)
    worker.join(SOON)
    assert worker.exitcode == -signal.SIGKILL


def test_a_forked_process_starts_its_own_and_leaves_those_of_its_parent_alone(loader: StreamingDataLoader) -> None:
    iterator = iter(loader)
    first = next(iterator)

    def iterate() -> None:
        with pytest.raises(StateError, match="to the process that started them: iterate the loader again"):
            next(iterator)
        assert samples(loader) == 103

    assert status(forked(iterate)) == 0
    assert len(first["__key__"]) + sum(len(batch["__key__"]) for batch in iterator) == 103
