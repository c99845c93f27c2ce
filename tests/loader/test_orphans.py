"""Workers whose rank was killed end soon, whatever they are doing: they hold no lock, no copy and no memory."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.programs import PROGRAMS

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
    rank = forked.start(PROGRAMS / "hanging_workers.py", shards, when, method, tmp_path, **streams)
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
