"""What a step of the catalog of a cache costs while 64 processes read, reserve and evict, half of which are killed.

Each process publishes what it needs from batch to batch, and adds copies to a full cache, so that others are evicted,
with a pause between two steps. Every second step of the run a process is killed and another one started. CPU is that of
one step; wall time has the waits for other processes, and for a core, for which the empty steps beside stand.

    python tools/bench/bench_cache.py --processes 64 --seconds 10 --pause 0.3
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2])]

from wdsdist.cache.catalog import Catalog  # noqa: E402 - found only by the line above
from wdsdist.cache.folder import CATALOG  # noqa: E402

_COPIES, _BYTES = 2000, 100
_STEP = struct.Struct("<idd")
_STEPS = ("publish needs", "add and evict", "empty", "connect and publish")


def work(folder: Path, log: Path, pause: float) -> None:
    """Repeat catalog steps without end, and record the time of each."""
    rng = random.Random(os.getpid())
    catalog = Catalog(folder, _COPIES * _BYTES, lambda key: True)
    at = rng.randrange(_COPIES)
    with log.open("ab", buffering=0) as out:
        for number in range(10**9):
            time.sleep(rng.expovariate(1 / pause))
            kind = 3 if number == 0 else rng.choices((0, 1, 2), (4, 2, 4))[0]
            began, cpu = time.perf_counter(), time.thread_time()
            if kind in (0, 3):
                at += 1
                catalog.expect("job", at, {f"f/{(at + ahead) % (2 * _COPIES)}": at + ahead for ahead in range(100)})
            elif kind == 1:
                catalog.reserve(f"f/{rng.randrange(2 * _COPIES)}", _BYTES, most=_BYTES, source="s3://bucket")
            else:
                sum(range(10_000))
            out.write(_STEP.pack(kind, time.perf_counter() - began, time.thread_time() - cpu))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--pause", type=float, default=0.3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, log = Path(temporary) / "cache", Path(temporary) / "log"

        def start() -> int:
            child = os.fork()
            if not child:
                try:
                    work(folder, log, given.pause)
                finally:
                    os._exit(1)
            return child

        filled = Catalog(folder, None, lambda key: True)
        for number in range(_COPIES):
            filled.reserve(f"f/{number}", _BYTES, most=_BYTES, source="s3://bucket")
        children = [start() for _ in range(given.processes)]
        for _ in range(given.processes // 2):
            time.sleep(2 * given.seconds / given.processes)
            victim = children.pop(random.randrange(len(children)))
            os.kill(victim, signal.SIGKILL)
            assert os.waitpid(victim, 0)[1] == signal.SIGKILL, "a process ended by itself"
            children.append(start())
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        content = log.read_bytes()
        steps = list(_STEP.iter_unpack(content[: len(content) // _STEP.size * _STEP.size]))
        copies = filled.copies()
        used = sum(copy.bytes for copy in copies)
        assert used <= _COPIES * _BYTES
        assert all(copy.next_use is None for copy in copies)
        with sqlite3.connect(folder / CATALOG) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    print("| step | number | CPU ms: median, 99 %, most | wall ms: median, 99 %, most |\n| --- | --- | --- | --- |")
    for kind, name in enumerate(_STEPS):
        cells = []
        for column in (2, 1):
            values = sorted(1e3 * step[column] for step in steps if step[0] == kind)
            shown = (values[len(values) // 2], values[len(values) * 99 // 100], values[-1]) if values else ()
            cells.append(", ".join(f"{value:.2f}" for value in shown) or "none ended")
        print(f"| {name} | {len(values):,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
