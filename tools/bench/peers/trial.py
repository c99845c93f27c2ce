"""One trial in a fresh process: ``python -m peers.trial '{...}'`` prints one line of JSON."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peers import images
from peers.kinds import ALL_KINDS, Tally
from peers.registry import OWN_IMAGES, system
from peers.system import Job, System

Figures = dict[str, float]
PREFIX = "figures: "


@dataclass(frozen=True, slots=True)
class Order:
    """What a trial shall measure."""

    measure: str
    system: str
    kind: str
    files: str
    packed: str
    workers: int
    expected: tuple[int, int, int]
    seconds: float
    """How long a rate is measured, at least: in whole epochs."""
    epochs: int = 1
    """How many epochs memory is watched."""

    def job(self) -> Job:
        return Job(ALL_KINDS[self.kind], Path(self.files), Path(self.packed), self.workers, self.expected[0])

    def text(self) -> str:
        return json.dumps(asdict(self))


def private_bytes(pid: int) -> int:
    """Return the memory that a process shares with no other and that cannot be dropped.

    Clean pages of mapped files are page cache, whoever maps them; mappings that are made to be shared, such as those
    of batches on their way, are not the process's own, though another may not have looked at a page of them yet.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    size, is_private = 0, False
    for line in lines:
        name, *rest = line.split()
        if not name.endswith(":"):
            is_private = rest[0].endswith("p")  # address, permissions, ...
        elif is_private and name in ("Private_Dirty:", "Swap:"):
            size += int(rest[0])
    return 1024 * size


def cpu_seconds() -> float:
    """Return the CPU time of this process and its workers so far: other programs hardly change it."""
    ticks = 0
    for pid in loader_workers():
        with suppress(FileNotFoundError, ProcessLookupError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def loader_workers() -> list[int]:
    """Return the processes that this one started, without Python's own helpers."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    helpers = (b"resource_tracker", b"forkserver")
    return [pid for pid in found if not any(word in _command(pid) for word in helpers)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _play(batches: Iterator[Any], order: Order, each: Callable[[int], None] | None = None) -> Tally:
    tally, form = Tally(), ALL_KINDS[order.kind].form
    for number, batch in enumerate(batches):
        tally.add(form, batch)
        if each is not None:
            each(number)
    return tally


def _rate(chosen: System, order: Order) -> Figures:
    session = chosen.open(order.job())
    expected, form = Tally(*order.expected), ALL_KINDS[order.kind].form
    _play(session.epoch(0), order).check(expected, form)
    epochs, started, spent, cpu = 0, time.perf_counter(), 0.0, cpu_seconds()
    while not epochs or spent < order.seconds:
        epochs += 1
        _play(session.epoch(epochs), order).check(expected, form)
        spent = time.perf_counter() - started
    samples = epochs * expected.samples
    return {"value": samples / spent, "epochs": epochs, "cpu": (cpu_seconds() - cpu) / samples}


def _first(chosen: System, order: Order) -> Figures:
    started = time.perf_counter()
    batches = iter(chosen.open(order.job()).epoch(0))
    Tally().add(ALL_KINDS[order.kind].form, next(batches))
    return {"value": time.perf_counter() - started}


def _pack(chosen: System, order: Order) -> Figures:
    job = order.job()
    for folder in (job.packed, job.packed.with_name(job.packed.name + "-cache")):
        shutil.rmtree(folder, ignore_errors=True)
    started = time.perf_counter()
    chosen.pack(job)
    seconds = time.perf_counter() - started
    shutil.rmtree(job.packed.with_name(job.packed.name + "-cache"), ignore_errors=True)
    folder = job.packed if job.packed.exists() else job.files
    return {"value": seconds, "bytes": sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())}


def _memory(chosen: System, order: Order) -> Figures:
    session = chosen.open(order.job())
    session_first = session.epoch(0)
    first = next(session_first)
    Tally().add(ALL_KINDS[order.kind].form, first)
    peaks: list[float] = []

    def look(number: int) -> None:
        if number % 32 == 0:
            peak[0] = max(peak[0], *(private_bytes(pid) for pid in workers))

    workers = loader_workers()
    if not workers:
        raise RuntimeError("no worker processes were found")
    for epoch in range(order.epochs):
        peak = [0.0]
        _play(session_first if epoch == 0 else session.epoch(epoch), order, look)
        look(0)
        peaks.append(peak[0])
    # Last, so that its imports and pages do not become the workers': it starts from the same parent.
    del session_first
    idle = _idle_worker(workers)
    return {"value": max(peaks) - idle, "idle": idle, **{f"epoch {n}": p - idle for n, p in enumerate(peaks)}}


def _idle_worker(others: list[int]) -> float:
    """Return the private memory of a DataLoader worker that does nothing, started by this process."""
    import torch

    loader = torch.utils.data.DataLoader(range(256), batch_size=8, num_workers=2, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    return statistics.median(private_bytes(pid) for pid in loader_workers() if pid not in others)


def _state_file(order: Order) -> Path:
    return Path(f"{order.packed}.state-{order.system}-{order.workers}")


def _save(chosen: System, order: Order) -> Figures:
    session, form, tally = chosen.open(order.job()), ALL_KINDS[order.kind].form, Tally()
    for batch in session.epoch(0):
        tally.add(form, batch)
        if tally.samples >= 0.9 * order.expected[0]:
            break
    _state_file(order).write_bytes(pickle.dumps((session.state(), tally.samples)))
    return {"value": tally.samples}


def _resume(chosen: System, order: Order) -> Figures:
    state, seen = pickle.loads(_state_file(order).read_bytes())
    form, tally = ALL_KINDS[order.kind].form, Tally()
    started = time.perf_counter()
    batches = iter(chosen.open(order.job()).resume(state))
    tally.add(form, next(batches))
    spent = time.perf_counter() - started
    for batch in batches:
        tally.add(form, batch)
    return {"value": spent, "left": tally.samples, "should be left": order.expected[0] - seen}


MEASURES: dict[str, Callable[[System, Order], Figures]] = {
    "rate": _rate,
    "first": _first,
    "pack": _pack,
    "memory": _memory,
    "save": _save,
    "resume": _resume,
}


def main() -> None:
    """Run the trial that the first argument orders."""
    order = Order(**json.loads(sys.argv[1]))
    chosen = system(order.system)
    chosen.load()
    if ALL_KINDS[order.kind].form == "images" and order.system not in OWN_IMAGES:
        images.load()
    figures = MEASURES[order.measure](chosen, order)
    print(PREFIX + json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
