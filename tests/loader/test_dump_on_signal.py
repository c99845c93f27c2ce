"""On a signal a rank and its workers write where they stand, go on, and end nobody who does not know the signal."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from wdsdist import StreamingDataLoader, StreamingDataset, dump_on_signal
from wdsdist.errors import ArgumentError, WdsdistError
from wdsdist.storage import waits

SIGNAL = signal.SIGUSR2
END = "its requests to stores under way:\n"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = signal.getsignal(SIGNAL)
    yield
    faulthandler.unregister(SIGNAL)
    signal.signal(SIGNAL, before)


def written(path: Path, dumps: int) -> str:
    """Return what processes write, once there are so many dumps of it."""
    until = time.monotonic() + 500
    while path.read_text().count(END) < dumps and time.monotonic() < until:
        time.sleep(0.01)
    return path.read_text()


def test_stacks_and_requests_are_written_and_the_process_goes_on(tmp_path: Path) -> None:
    dump_on_signal(SIGNAL, path=tmp_path / "stacks.txt")
    for _ in range(2):
        with waits.under_way(waits.Request("s3://bucket/7.tar", note="last error: 503 Slow Down")):
            os.kill(os.getpid(), SIGNAL)
    text = written(tmp_path / "stacks.txt", 2)
    assert text.count("test_stacks_and_requests_are_written") == 2
    assert text.count(f"above are the stacks of process {os.getpid()}; {END}") == 2
    assert "\n  s3://bucket/7.tar (0 s, attempt 1, last error: 503 Slow Down)\n" in text


def test_a_second_call_moves_the_stacks_to_another_file(tmp_path: Path) -> None:
    for name in ("first.txt", "second.txt"):
        dump_on_signal(SIGNAL, path=tmp_path / name)
    os.kill(os.getpid(), SIGNAL)
    assert "test_a_second_call_moves_the_stacks" in written(tmp_path / "second.txt", 1)
    assert (tmp_path / "first.txt").read_text() == ""


def test_the_main_thread_is_among_more_threads_than_faulthandler_writes(tmp_path: Path) -> None:
    dump_on_signal(SIGNAL, path=tmp_path / "stacks.txt")
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(110)]
    for thread in threads:
        thread.start()
    os.kill(os.getpid(), SIGNAL)
    text = written(tmp_path / "stacks.txt", 1)
    end.set()
    for thread in threads:
        thread.join()
    assert (
        "test_the_main_thread_is_among" in text.partition("the main thread, which is not among the stacks above:\n")[2]
    )


@pytest.mark.parametrize("signum", [0, 999, signal.SIGKILL, signal.SIGSEGV])
def test_what_is_no_signal_for_this_is_refused(tmp_path: Path, signum: int) -> None:
    before = signal.getsignal(signal.SIGSEGV)
    with pytest.raises(ArgumentError, match=rf"signum is {int(signum)}, .*: choose another"):
        dump_on_signal(signum, path=tmp_path / "stacks.txt")
    assert signal.getsignal(signal.SIGSEGV) == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"signum": "USR1"}, "signum is 'USR1': it must be an integer"),
        ({"signum": -1}, "signum is -1: it must be at least 0"),
        ({"path": 3}, "path is 3: it must be a path"),
    ],
)
def test_arguments_of_other_types_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(WdsdistError, match=reason):
        dump_on_signal(**arguments)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_write_where_they_stand_however_they_start(shards: Path, tmp_path: Path, method: str) -> None:
    dump_on_signal(SIGNAL, path=tmp_path / "stacks.txt")
    loader = StreamingDataLoader(
        StreamingDataset(shards, num_replicas=1, rank=0), 10, num_workers=2, multiprocessing_context=method
    )
    batches = iter(loader)
    for _ in range(2):  # one of each worker, which then has its handler
        next(batches)
    os.kill(os.getpid(), SIGNAL)
    text = written(tmp_path / "stacks.txt", 3)
    for worker in loader._iterator._workers:  # type: ignore[union-attr]
        assert f"process {worker.pid} ({worker.name} of process {os.getpid()})" in text
    assert len(list(batches)) == 8


def answer(pipe: Connection) -> None:
    signal.signal(SIGNAL, signal.SIG_DFL)
    pipe.send("ready")
    pipe.send(pipe.recv())


def test_a_child_that_does_not_know_the_signal_lives_on(tmp_path: Path) -> None:
    dump_on_signal(SIGNAL, path=tmp_path / "stacks.txt")
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=answer, args=(theirs,))
    child.start()
    assert ours.recv() == "ready"
    os.kill(os.getpid(), SIGNAL)
    assert f"process {os.getpid()}" in written(tmp_path / "stacks.txt", 1)
    ours.send("alive")
    assert ours.recv() == "alive"
    child.join()


def test_a_signal_that_the_program_handles_is_left_to_it(tmp_path: Path) -> None:
    signal.signal(SIGNAL, lambda *_: None)
    with pytest.raises(ArgumentError, match="signum is SIGUSR2, which this program handles already: choose another"):
        dump_on_signal(SIGNAL, path=tmp_path / "stacks.txt")
    assert not (tmp_path / "stacks.txt").exists()
