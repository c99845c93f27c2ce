"""A program: one process of a test of `data_download`. Arguments: the name of a function of this file, and its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import wdsdist
from tests.programs.staged import HERE, announce, call, hear, log, report, say, wait
from wdsdist.distributed.run_once import data_download


class WrongError(Exception):
    """Can be pickled."""


class AwkwardError(Exception):
    """Cannot be pickled, for it is made from more than its message."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")


def _raise(error: Exception) -> None:
    raise error


def _raise_local(**attributes: Any) -> None:
    raise type("LocalError", (Exception,), attributes)("disk full")


def _fork() -> int:
    """Leave a child that waits, as a killed process with a ProcessPoolExecutor does."""
    child = os.fork()
    while child == 0:
        signal.pause()
    (HERE / "child").write_text(str(child))
    return child


ACTIONS: dict[str, Any] = {
    "returns": os.getpid,
    "returns a function": lambda: lambda: 1,
    "raises": lambda: _raise(WrongError("no route to host")),
    "raises what cannot be pickled": lambda: _raise(AwkwardError(403, "forbidden")),
    "raises a local class": _raise_local,
    "raises without a message": lambda: _raise_local(__str__=None),
    "exits": lambda: sys.exit("no disk"),
    "ends at once": lambda: os._exit(3),
}


def held(action: str, options: str = "{}") -> None:
    """Say who runs it, wait, and act; only the first process ends itself or forks."""

    @data_download(**json.loads(options))
    def prepare() -> Any:
        log()
        is_first = len((HERE / "log").read_text().splitlines()) == 1
        if action == "forks" and is_first:
            _fork()
        announce()
        wait()
        ends = action.startswith(("e", "f"))
        return ACTIONS["returns" if ends and (action == "forks" or not is_first) else action]()

    call(prepare)


def quick(options: str = "{}") -> None:
    """Return the process that ran it, twice."""

    @data_download(**json.loads(options))
    def prepare() -> int:
        log()
        return os.getpid()

    call(prepare)
    report(prepare)


def repeated() -> None:
    """Make a file, unless the disk is full, as often as the test says."""
    made = HERE / "made"

    @data_download
    def prepare() -> str:
        log()
        if not (HERE / "repaired").exists():
            raise OSError("disk full")
        made.touch()
        return str(made)

    say("ready")
    while hear():
        report(prepare)


def forced_on_demand() -> None:
    """Call it by force, and wait, if the test says so."""
    say("ready")
    by_force = hear() == "forced"

    def prepare() -> int:
        log()
        if by_force:
            announce()
            wait()
        return os.getpid()

    report(data_download(prepare, force=by_force))


def in_steps(steps: str) -> None:
    """Make files one after another, in some time: no event marks the moment between two lines of our own."""
    made = HERE / "made"

    @data_download
    def prepare() -> str:
        log()
        made.mkdir(exist_ok=True)
        announce()
        for step in range(int(steps)):
            (made / str(step)).touch()
            time.sleep(0.002)
        return str(made)

    call(prepare)


def returning(expression: str) -> None:
    """Make a file, and return a value that an expression makes of its path."""
    made = HERE / "made"
    known = {"made": made, "Path": Path, "wdsdist": wdsdist}

    @data_download
    def prepare() -> Any:
        log()
        made.touch()
        return eval(expression, known)

    prepare()
    say("done")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
