"""Pools of workers, by what runs where and what is cancelled."""

from __future__ import annotations

import errno
import multiprocessing.synchronize
import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from wdsdist._util.pools import pool
from wdsdist.errors import WdsdistError


def test_remote_tasks_run_in_threads_of_this_process_some_at_once() -> None:
    together = threading.Barrier(3)  # broken, unless three tasks run at once

    def work() -> int:
        together.wait(10)
        return os.getpid()

    with pool(3, 6, remote=True) as executor:
        futures = [executor.submit(work) for _ in range(6)]
    assert {future.result() for future in futures} == {os.getpid()}


def test_an_error_cancels_remote_tasks_that_have_not_begun() -> None:
    begun: list[int] = []
    futures: list[Future[None]] = []
    both, cancelled = threading.Barrier(3), threading.Event()

    def work(number: int) -> None:
        begun.append(number)
        both.wait(10)
        cancelled.wait(10)

    def interrupted() -> None:
        with pool(2, 5, remote=True) as executor:
            futures.extend(executor.submit(work, number) for number in range(5))
            futures[-1].add_done_callback(lambda _: cancelled.set())
            both.wait(10)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sorted(begun) == [0, 1]
    assert all(future.cancelled() for future in futures[2:])


def test_by_default_there_is_a_process_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, kind in ((3, ProcessPoolExecutor), (1, ThreadPoolExecutor)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        with pool(None, 9) as executor:  # which starts a process as it is given a task
            assert isinstance(executor, kind)
            assert executor._max_workers == cores


def test_where_processes_can_share_no_locks_one_does_the_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read_only(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(multiprocessing.synchronize, "Lock", read_only)
    with pool(2, 2) as executor:
        assert executor.submit(os.getpid).result() == os.getpid()
    assert caplog.messages == [
        "working in one process: the locks that processes share cannot be made in /dev/shm (Read-only file system)"
    ]


def test_a_process_that_is_killed_is_an_error_that_says_so() -> None:
    with pytest.raises(WdsdistError, match="a worker process died, perhaps because memory ran out"), pool(2, 2) as each:
        each.submit(signal.raise_signal, signal.SIGKILL).result()
