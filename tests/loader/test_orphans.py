"""Workers whose rank was killed end soon, whatever they are doing: they hold no lock, no copy and no memory."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
from pathlib import Path
from wdsdist import StreamingDataLoader, StreamingDataset

HERE = Path(__file__).parent

def hang(*_):
    with open(HERE / "hanging", "w") as pipe:
        pipe.write(f"{os.getpid()}\\n")
    os.read(os.open(HERE / "gate", os.O_RDONLY), 1)

if __name__ == "__main__":
    shards, when, method = sys.argv[1:]
    dataset = StreamingDataset(shards, transform=hang if when == "while they read" else None)
    init = hang if when == "as they start" else None
    for _ in StreamingDataLoader(dataset, 10, num_workers=2, worker_init_fn=init, multiprocessing_context=method):
        pass
"""
SOON = 20.0
"""Seconds: far below the time for which a shard is waited for, far above what a busy machine takes to end a process."""


@pytest.mark.parametrize(
    ("when", "method"),
    [
        ("as they start", "fork"),
        ("while they read", "fork"),
        pytest.param("as they start", "forkserver", marks=pytest.mark.slow),
    ],
)
def test_they_end_with_the_one_that_started_them(shards: Path, tmp_path: Path, when: str, method: str) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    for name in ("hanging", "gate"):
        os.mkfifo(tmp_path / name)
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    rank = subprocess.Popen([sys.executable, tmp_path / "job.py", shards, when, method], env=environment)
    numbers: list[int] = []
    while len(numbers) < 2:
        numbers += [int(line) for line in (tmp_path / "hanging").read_text().split()]
    workers = [os.pidfd_open(number) for number in numbers]
    try:
        rank.kill()
        rank.wait()
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
