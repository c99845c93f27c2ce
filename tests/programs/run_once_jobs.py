"""A program: one process of a test of `data_download`. Arguments: the name of a function of this file, and its own."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import wdsdist
from tests.programs.staged import HERE, announce, call, hear, log, report, say, wait
from wdsdist.distributed import data_download

CLUSTER = {"scope": "cluster", "directory": HERE / "shared"}


class WrongError(Exception):
    """Can be pickled."""


class AwkwardError(Exception):
    """Cannot be pickled, for it is made from more than its message."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


def held(scope: str = "node") -> None:
    """Say who runs, and wait."""

    @data_download(**(CLUSTER if scope == "cluster" else {}))
    def prepare() -> int:
        log()
        announce()
        wait()
        return os.getpid()

    call(prepare)


def failing() -> None:
    """Say who runs, wait, and fail."""

    @data_download
    def prepare() -> None:
        log()
        announce()
        wait()
        raise WrongError("no route to host")

    call(prepare)


def failing_on_all_nodes() -> None:
    """Fail on behalf of all nodes."""

    @data_download(**CLUSTER)
    def prepare() -> None:
        log()
        announce()
        wait()
        raise ConnectionError("no route to host")

    call(prepare)


def one_of_two() -> None:
    """Call the function that the test names; ``slow`` waits."""

    @data_download
    def slow() -> str:
        announce()
        wait()
        return "slow"

    @data_download
    def other(name: str) -> str:
        return name

    say("ready")
    if hear() == "slow":
        report(slow)
    else:
        report(other, "quick")


def in_threads() -> None:
    """Call it from four threads at once."""

    @data_download
    def prepare() -> int:
        log()
        announce()
        wait()
        return 7

    with ThreadPoolExecutor(4) as pool:
        values = [future.result() for future in [pool.submit(prepare) for _ in range(4)]]
    say("returned", values)


def forced() -> None:
    """Call it twice, by force."""

    @data_download(force=True)
    def prepare() -> int:
        log()
        return os.getpid()

    call(prepare)
    report(prepare)


def forced_where_told() -> None:
    """Call it by force, and wait, where the test says so."""
    say("ready")
    by_force = hear() == "forced"

    def prepare() -> int:
        log()
        if by_force:
            announce()
            wait()
        return os.getpid()

    report(data_download(prepare, force=by_force))


def until_mended() -> None:
    """Fail until somebody has mended it."""

    @data_download
    def prepare() -> str:
        log()
        if not (HERE / "mended").exists():
            raise OSError("disk full")
        return "fine"

    report(prepare)


def at_the_second_try() -> None:
    """Fail at first; two calls."""

    @data_download
    def prepare() -> str:
        log()
        if (HERE / "tried").exists():
            return "fine"
        (HERE / "tried").touch()
        raise ConnectionResetError("try again")

    call(prepare)
    hear()
    report(prepare)


def as_often_as_told() -> None:
    """Make a file, unless the disk is full, as often as the test says."""
    made = HERE / "made"

    @data_download
    def prepare() -> str:
        log()
        if not (HERE / "mended").exists():
            raise OSError("disk full")
        made.touch()
        return str(made)

    say("ready")
    while hear():
        report(prepare)


def awkward() -> None:
    """Fail with what cannot be pickled."""

    @data_download
    def prepare() -> None:
        announce()
        wait()
        raise AwkwardError(403, "forbidden")

    call(prepare)


def interrupted() -> None:
    """Say so when it is interrupted."""

    @data_download
    def prepare() -> int:
        announce()
        wait()
        return os.getpid()

    try:
        call(prepare)
    except KeyboardInterrupt:
        say("interrupted")


def impatient() -> None:
    """Wait for others a third of a second only."""

    @data_download(timeout=0.3)
    def prepare() -> None:
        announce()
        wait()

    call(prepare)


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


def with_a_child() -> None:
    """Leave a child that waits for ever, as those of a ProcessPoolExecutor do once their parent was killed."""

    @data_download
    def prepare() -> int:
        if not (HERE / "child").exists():
            child = os.fork()
            if child == 0:
                while True:
                    signal.pause()
            (HERE / "child").write_text(str(child))
        announce()
        wait()
        return os.getpid()

    call(prepare)


def ending_itself(way: str) -> None:
    """End the first process that runs it."""
    ways = {
        "an exit": lambda: sys.exit("no disk"),
        "a signal": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "a hard exit": lambda: os._exit(3),
    }

    @data_download
    def prepare() -> int:
        log()
        if len((HERE / "log").read_text().splitlines()) == 1:
            announce()
            wait()
            ways[way]()
        return os.getpid()

    call(prepare)


def failing_by(kind: str) -> None:
    """Fail with an error of a class that is known here only, and may be worse."""

    @data_download
    def prepare() -> None:
        log()
        announce()
        wait()

        class Wrong(Exception):  # noqa: N818 - shown by its name
            if kind == "unpicklable":
                __reduce__ = None
            if kind == "speechless":
                __str__ = None

        raise Wrong("disk full")

    say("ready")
    hear()
    try:
        prepare()
    except Exception as error:
        say("raised", [type(error).__name__, str(error.args[0])])


def one_within_another() -> None:
    """Call a function that calls one that fails, and that one itself."""

    @data_download
    def fetch() -> None:
        log("fetch")
        announce()
        wait()
        raise ConnectionError("no route to host")

    @data_download
    def prepare() -> None:
        log("prepare")
        return fetch()

    call(prepare)
    report(fetch)


def by_names() -> None:
    """Call it with the letters that the test gives, three times each."""

    @data_download
    def prepare(name: str) -> list[Any]:
        log(name)
        return [name, os.getpid()]

    say("ready")
    names = hear()
    say("returned", sorted(prepare(name) for name in 3 * names))


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


def rank_of_torchrun() -> None:
    """Succeed before there is a process group, and fail in one, on all ranks alike."""
    import torch.distributed as dist

    from wdsdist.distributed import barrier, identity

    me = identity()

    @data_download
    def prepare(name: str) -> str:
        log()
        if name == "bad":
            raise ValueError(name)
        return name

    assert me.source == "torchrun", me
    assert prepare("good") == "good"
    dist.init_process_group("gloo")
    barrier(30)
    try:
        prepare("bad")
    except ValueError:
        (HERE / f"raised-{me.rank}-of-{me.world_size}").touch()
    dist.barrier()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
