"""One epoch from a store, in a fresh process: ``python -m peers.far '{...}'`` prints one line of JSON.

It says that it is ready once the system is imported, and begins when a line comes in: so several begin together. The
clients of stores are imported before that too. A trial that counts as a new process began with the process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from peers.kinds import OBJECTS, Tally
from peers.registry import system
from peers.system import Job, Remote, System
from peers.trial import PREFIX, Figures

READY = "ready"
_CLIENTS = ("aiohttp", "s3fs", "boto3", "obstore")


@dataclass(frozen=True, slots=True)
class Visit:
    """What a trial shall read, and from where."""

    system: str
    files: str
    packed: str
    workers: int
    samples: int
    remote: dict[str, str | bool] | None
    """The fields of a `Remote`; without it the packed data are read where they are."""
    is_new: bool = False
    """Whether the time begins with the process, and clients of stores are imported only when they are used."""

    def job(self) -> Job:
        remote = None if self.remote is None else Remote(**self.remote)  # type: ignore[arg-type]
        return Job(OBJECTS, Path(self.files), Path(self.packed), self.workers, self.samples, remote)

    def text(self) -> str:
        return json.dumps(asdict(self))


def cpu_seconds() -> float:
    """Return what this process and all those that it has started and that have ended have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def process_began() -> float:
    """Return when this process was started, in seconds since 1970."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def epoch(chosen: System, job: Job) -> tuple[Tally, float]:
    """Return what an epoch gave, and when its first batch was there."""
    tally, first = Tally(), 0.0
    for batch in chosen.open(job).epoch(0):
        first = first or time.time()
        tally.add(job.kind.form, batch)
    return tally, first


def main() -> None:
    """Run the trial that the first argument orders."""
    visit = Visit(**json.loads(sys.argv[1]))
    chosen = system(visit.system)
    chosen.load()
    for client in () if visit.is_new else _CLIENTS:
        try:
            importlib.import_module(client)
        except ImportError:
            continue
    print(READY, flush=True)
    sys.stdin.readline()
    used, began = cpu_seconds(), process_began() if visit.is_new else time.time()
    tally, first = epoch(chosen, visit.job())
    ended = time.time()
    gc.collect()  # the loader, so that its workers end and are counted
    figures: Figures = {"began": began, "first": first, "ended": ended, "samples": tally.samples, "bytes": tally.size,
                        "checksum": tally.checksum, "cpu": cpu_seconds() - used}  # fmt: skip
    print(PREFIX + json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
