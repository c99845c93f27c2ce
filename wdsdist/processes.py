"""One place that decides how wdsdist starts processes of its own."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

from wdsdist.node import cpu_count


@contextlib.contextmanager
def pool(workers: int | None, tasks: int) -> Iterator[concurrent.futures.Executor]:
    """Give an executor for ``tasks`` pieces of work: processes, or a thread where there is only one to do.

    ``workers`` is the most processes to start; by default one for each core that this process may use.

    Processes are forked where this process has a single thread: that needs no ``if __name__ == "__main__"`` in the
    caller's script and copies nothing. A second thread could hold a lock at the moment of the fork, and the child
    would wait for it for ever; then the processes start from a clean server, which does not run the script either.
    A process that may have no children, such as the worker of a ``DataLoader``, does the work in a thread.

    Leaving the block waits for the work that is under way. An exception in the block, also that of Ctrl-C, cancels
    all work that has not begun.
    """
    executor = _executor(min(workers or cpu_count(), tasks))
    try:
        yield executor
    except BaseException:
        executor.shutdown(cancel_futures=True)
        raise
    finally:
        executor.shutdown()


def _executor(count: int) -> concurrent.futures.Executor:
    if count <= 1 or multiprocessing.current_process().daemon:
        executor = concurrent.futures.ThreadPoolExecutor(1)
        # An interrupt while its thread starts would leave that running, unknown to the executor: it starts before work.
        executor.submit(int).result()
        return executor
    alone = threading.active_count() == 1
    context = multiprocessing.get_context("fork") if alone else _CleanContext()
    return concurrent.futures.ProcessPoolExecutor(count, mp_context=context, initializer=_settle)


class _CleanProcess(multiprocessing.context.ForkServerProcess):
    """A process that knows nothing of the script that starts it."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - multiprocessing's name
        # A script without ``if __name__ == "__main__"`` would run again in the child, come to the same call, and wait
        # there for the lock that its parent holds. What the workers run is all in wdsdist, so main can stay out.
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            return multiprocessing.context.ForkServerProcess._Popen(process_obj)
        finally:
            sys.modules["__main__"] = main


class _CleanContext(multiprocessing.context.ForkServerContext):
    Process = _CleanProcess


def _settle() -> None:
    """Tie a worker's end to that of the process that started it."""
    # Ctrl-C reaches the whole group: the parent decides what follows, and the workers print no tracebacks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker whose parent was killed would wait for work for ever, and go on writing beside the next run's workers.
    threading.Thread(target=_follow_parent, name="wdsdist-follow-parent", daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
