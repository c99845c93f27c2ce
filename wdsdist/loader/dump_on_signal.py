"""Where a job stands, on a signal: the stacks of all threads and the requests under way, of a rank and its workers."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from wdsdist._util.validation import check_integer, check_path
from wdsdist.errors import ArgumentError
from wdsdist.storage import waits

_installed: tuple[int, str | None, int] | None = None
"""The signal, and the file: its path where one was given, and its descriptor, which must stay open."""

_FAULTHANDLER_THREADS = 100
"""The most whose stacks `faulthandler` writes, the latest first: of more, the main thread is left out."""


def dump_on_signal(signum: int = signal.SIGUSR1, *, path: str | os.PathLike[str] | None = None) -> None:
    """Dump the stacks and running requests of this process and its data loading workers whenever a signal comes.

    Written are the Python stacks of all threads, by ``faulthandler``, and the requests to stores under way: shard,
    seconds, attempt, bytes so far, last error. Nothing else changes, and training goes on. Call it in each rank before
    workers start; then ``kill -USR1 PID``, with the process id of the rank. Where its main thread is inside of a long
    call into C, such as a collective, stacks come at once, requests and workers when that returns; a worker may be
    sent the signal itself.

    Args:
        signum: the signal.
        path: file to append to, the same for all processes; by default standard error.

    Raises:
        ArgumentError: the signal is handled already or cannot be, the call is not from the main thread, or nothing can
            be written.

    >>> dump_on_signal(path="/tmp/no/such/folder/stacks.txt")
    Traceback (most recent call last):
    wdsdist.errors.ArgumentError: path is '/tmp/no/such/folder/stacks.txt', which cannot be written (No such file or \
directory): name a file in a folder that exists
    """
    global _installed
    signum = check_integer("signum", signum, 0)
    place = None if path is None else str(check_path("path", path))
    if _handler(signum) not in (signal.SIG_DFL, signal.SIG_IGN, _write):
        name = signal.Signals(signum).name
        raise ArgumentError(f"signum is {name}, which this program handles already: choose another, such as SIGUSR2")
    file = _opened(place)
    signal.signal(signum, _write)
    # Its handler is in C, and works where the interpreter is stuck; then it calls ours, which Python runs when it can.
    faulthandler.unregister(signum)  # that of an earlier call, whose place ours has taken
    faulthandler.register(signum, file=file, all_threads=True, chain=True)
    before, _installed = _installed, (signum, place, file)
    if before is not None and before[0] == signum and before[1] is not None:
        os.close(before[2])


def installed() -> tuple[int, str | None] | None:
    """Return the signal and the path that `dump_on_signal` was given in this process, for workers that are spawned."""
    return None if _installed is None else _installed[:2]


def _handler(signum: int) -> Any:
    """Return the handler of a signal that this thread can handle, and `faulthandler` too; raise for any other."""
    try:
        handler = signal.getsignal(signum)
        if handler in (signal.SIG_DFL, signal.SIG_IGN):
            faulthandler.unregister(signum)
        if handler is not None:
            signal.signal(signum, handler)
    except (ValueError, OSError, RuntimeError) as error:
        raise ArgumentError(
            f"signum is {int(signum)}, which cannot be handled here ({error}): choose another, such as SIGUSR2, and "
            f"call this in the main thread"
        ) from None
    return handler


def _opened(path: str | None) -> int:
    try:
        if path is not None:
            return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        for stream in (sys.stderr, sys.__stderr__):
            with contextlib.suppress(AttributeError, ValueError, OSError):  # of a notebook, or closed
                return stream.fileno()  # type: ignore[union-attr]
    except OSError as error:
        raise ArgumentError(
            f"path is {path!r}, which cannot be written ({error.strerror}): name a file in a folder that exists"
        ) from error
    raise ArgumentError("standard error is no file here: name one with path=")


def _write(signum: int, frame: FrameType | None) -> None:
    """Write the requests under way, behind the stacks, and pass the signal on."""
    if _installed is None:
        return
    parent = multiprocessing.parent_process()
    name = multiprocessing.current_process().name
    whose = f"process {os.getpid()}" + (f" ({name} of process {parent.pid})" if parent else "")
    found = waits.requests()
    lines = [f"  {one}{'' if one.waited_for else ', fetched ahead'}" for one in found] or ["  none"]
    if threading.active_count() > _FAULTHANDLER_THREADS:
        lines += ["the main thread, which is not among the stacks above:", "".join(traceback.format_stack(frame))]
    text = "\n".join([f"wdsdist: above are the stacks of {whose}; its requests to stores under way:", *lines, "", ""])
    with contextlib.suppress(OSError):  # nothing that looks at a job may end it
        os.write(_installed[2], text.encode(errors="replace"))
    for child in multiprocessing.active_children():
        if child.pid is not None and _catches(child.pid, signum):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signum)


def _catches(process: int, signum: int) -> bool:
    """Return whether a process has a handler for a signal, which would else end it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False
