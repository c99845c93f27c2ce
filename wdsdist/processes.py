"""One place that decides how wdsdist starts processes of its own."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import threading

from wdsdist.node import cpu_count


def pool(workers: int | None, tasks: int) -> concurrent.futures.Executor:
    """Return an executor for ``tasks`` pieces of work: processes, or a thread where there is only one to do.

    ``workers`` is the most processes to start; by default one for each core that this process may use.

    Processes are forked where this process has a single thread: that needs no ``if __name__ == "__main__"`` in the
    caller's script and copies nothing. A second thread could hold a lock at the moment of the fork, and the child
    would wait for it for ever; then the processes start from a clean server, as ``spawn`` does.
    """
    count = min(workers or cpu_count(), tasks)
    if count <= 1:
        return concurrent.futures.ThreadPoolExecutor(1)
    method = "fork" if threading.active_count() == 1 else "forkserver"
    return concurrent.futures.ProcessPoolExecutor(count, mp_context=multiprocessing.get_context(method))
