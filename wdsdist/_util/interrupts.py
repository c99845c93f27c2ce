"""Interrupts that wait for the end of a few steps, between which they would leave a lock locked."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block ends, which must not take long.

    Python runs their handlers between any two steps of the main thread. If a library is about to enter ``with lock``,
    nobody unlocks that lock, and the next thread that needs it hangs.
    """
    if threading.current_thread() is not threading.main_thread():  # in which no handler runs
        yield
        return
    process, came = os.getpid(), list[int]()
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}

    def wait(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            came.append(number)
        else:  # a process that was forked in the block
            handlers[signal.Signals(number)](number, frame)

    try:
        for number in handlers:
            signal.signal(number, wait)
        yield
    finally:
        for number in reversed(handlers):  # Ctrl-C last: its handler may raise at once
            signal.signal(number, handlers[number])
        for one in came:
            signal.raise_signal(one)
