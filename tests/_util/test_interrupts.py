"""Interrupts that wait for the end of a block."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from tests.support.folders import forked, status
from wdsdist._util.pools import Threads, completed, deferred, pool


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    known = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in known.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_in_the_block_is_handled_at_its_end(number: signal.Signals) -> None:
    handled: list[int] = []
    signal.signal(number, lambda number, _: handled.append(number))
    with deferred():
        os.kill(os.getpid(), number)
        assert handled == []
    assert handled == [number]
    os.kill(os.getpid(), number)
    assert handled == [number, number]


def test_signals_without_a_handler_of_python_keep_theirs() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with deferred():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_process_that_is_forked_in_the_block_handles_signals_at_once() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    with deferred():
        child = forked(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert status(child) == 7


def test_other_threads_have_nothing_to_wait_for() -> None:
    def enter() -> None:
        with deferred():
            known.append(signal.getsignal(signal.SIGINT))

    before, known = signal.getsignal(signal.SIGINT), list[object]()
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert known == [before]


class Interrupted(threading.Condition):
    """A condition whose first lock is followed by Ctrl-C, before anybody could know that it is held."""

    came = False

    def __enter__(self) -> bool:
        held = super().__enter__()
        if not self.came:
            self.came = True
            signal.raise_signal(signal.SIGINT)
        return held

    def is_free(self) -> bool:
        """Return whether another thread can acquire the lock."""
        with ThreadPoolExecutor(1) as other:
            return other.submit(self.acquire, blocking=False).result(10)


def test_an_interrupt_between_submissions_leaves_no_lock_of_the_pool_held() -> None:
    interrupted = Interrupted()

    def submit() -> None:
        with pool(1, 2) as executor:
            executor._idle_semaphore._cond = interrupted  # type: ignore[attr-defined]
            executor.submit(int)

    with pytest.raises(KeyboardInterrupt):
        submit()
    assert interrupted.is_free()


def test_an_interrupt_while_threads_start_leaves_none_that_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process waits for all of its threads before it ends."""
    submit, begun, together = Threads.submit, list[Future[Any]](), threading.Barrier(3)

    def interrupted(*args: Any) -> Future[Any]:
        begun.append(submit(*args))
        signal.raise_signal(signal.SIGINT)
        return begun[-1]

    def begin() -> None:
        with pool(3, 3, remote=True):
            pass

    monkeypatch.setattr(Threads, "submit", interrupted)
    monkeypatch.setattr(threading, "Barrier", lambda _: together)
    with pytest.raises(KeyboardInterrupt):
        begin()
    waiting = wait(begun, timeout=2).not_done
    together.abort()
    assert waiting == set()


def test_an_interrupt_before_results_are_waited_for_leaves_no_lock_of_them_held() -> None:
    future: Future[int] = Future()
    future._condition = interrupted = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        next(completed([future]))
    assert interrupted.is_free()
