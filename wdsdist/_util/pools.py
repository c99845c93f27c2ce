"""Process pools: how wdsdist starts worker processes, and ends them with their parent."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import pickle
import signal
import sys
import threading
import types
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from queue import SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar

from wdsdist._util import warn_once
from wdsdist._util.host import cpu_count, temporary_dir
from wdsdist.errors import WdsdistError

T = TypeVar("T")
P = ParamSpec("P")

_LONGEST_FOLDER = 107 - len("/pymp-00000000/listener-00000000")  # the kernel takes 107 bytes for a socket's name
_LOOK_AGAIN = 1.0  # seconds
DIED = "a worker process died, perhaps because memory ran out: run the same again, with fewer workers"
"""What is reported of a pool, of this module or lent by others, that lost a process."""
_REMOTE_TASKS = 16
"""Tasks that run at once if they wait for a store: its latency, not the CPU, limits their throughput."""
_numbers = itertools.count()
_alive: weakref.WeakValueDictionary[int, Carried[Any]] = weakref.WeakValueDictionary()
_travelling: Counter[int] = Counter()
"""How many open pools have sent each value to their workers."""
_arrived: dict[int, Carried[Any]] = {}
"""In a worker: the values that it received when it started."""
_following = 0
"""Id of the process that watches its parent; a fork of it does not watch, and has another id."""


class Carried(Generic[T]):
    """A value sent to the workers of `pool` once, when they start, not with each task.

    A data set may be large, and need not pickle if processes are forked. Pickled elsewhere, it is copied.
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self._number = next(_numbers)
        _alive[self._number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return (_take, (self._number,)) if _travelling[self._number] else (Carried, (self.value,))


def _take(number: int) -> Carried[Any]:
    return _arrived[number]


@contextlib.contextmanager
def pool(
    workers: int | None, tasks: int, *, threads: int = 1, remote: bool = False
) -> Iterator[concurrent.futures.Executor]:
    """Give a process pool for ``tasks`` tasks, or a thread pool if there is only one task, or they are ``remote``.

    Processes are forked if this process has a single thread: that needs no ``if __name__ == "__main__"`` in the
    caller's script and copies nothing. A second thread could hold a lock at the moment of the fork, and the child
    would deadlock; then the processes start from a clean server, which does not run the script either.
    A process that may have no children, such as the worker of a ``DataLoader``, does the work in a thread; so does one
    that cannot fork, if a `Carried` value does not pickle or comes from the script itself.

    Leaving the block waits for the tasks that run. An exception in the block, also by Ctrl-C, cancels all others.
    Raises `WdsdistError` if a process died whose result was asked for in the block.

    Args:
        workers: the most processes to start; by default one for each core that this process may use.
        tasks: the number of tasks.
        threads: how many tasks run at once in this process if it starts no others.
        remote: whether tasks wait for a store; they run in ``workers`` threads, by default 16.
    """
    carried = dict(_alive.items())  # unlike the dictionary itself, these may be read while values are collected
    if remote:
        executor = _threads(min(workers or _REMOTE_TASKS, tasks))
    else:
        executor = _executor(min(workers or cpu_count(), tasks), max(1, min(threads, tasks)), carried)
    _travelling.update(carried.keys())
    try:
        yield executor
    except BaseException as error:
        executor.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise WdsdistError(DIED) from error
        raise
    finally:
        executor.shutdown()
        _travelling.subtract(carried.keys())


def completed(futures: Collection[Future[T]]) -> Iterator[Future[T]]:
    """Yield futures as they complete, as ``concurrent.futures.as_completed`` does, with no lock held meanwhile.

    That function takes its locks in Python code. Ctrl-C between two of its steps leaves one of them locked: the thread
    that reports the next result hangs, and so does the thread that ends the pool.
    """
    done: SimpleQueue[Future[T]] = SimpleQueue()
    with deferred():
        for future in futures:
            future.add_done_callback(done.put)
    for _ in futures:
        yield done.get()


def run_in_subprocess(function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a function in a separate process, started as `pool` starts its processes, and return its result.

    Workers that are forked later do not inherit the files that it opens, whose positions they would share.
    """
    with pool(2, 2) as executor:
        return executor.submit(function, *args, **options).result()


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block, which must be short.

    Python runs their handlers between any two steps of the main thread. If a library is about to enter ``with lock``,
    nobody unlocks that lock, and the next thread that needs it hangs.
    """
    if threading.current_thread() is not threading.main_thread():  # in which no handler runs
        yield
        return
    process, pending = os.getpid(), list[int]()
    known = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in known.items() if callable(handler)}

    def wait(number: int, frame: types.FrameType | None) -> None:
        if os.getpid() == process:
            pending.append(number)
        else:  # a process that was forked in the block
            handlers[signal.Signals(number)](number, frame)

    try:
        for number in handlers:
            signal.signal(number, wait)
        yield
    finally:
        for number in reversed(handlers):  # Ctrl-C last: its handler may raise at once
            signal.signal(number, handlers[number])
        for arrived in pending:
            signal.raise_signal(arrived)


class _Deferring(concurrent.futures.Executor):
    """An executor in which an interrupt between submissions leaves no lock locked."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        with deferred():
            return super().submit(fn, *args, **kwargs)


class Threads(_Deferring, concurrent.futures.ThreadPoolExecutor):
    """A thread pool."""


class Processes(_Deferring, concurrent.futures.ProcessPoolExecutor):
    """A process pool."""


def _executor(count: int, threads: int, carried: dict[int, Carried[Any]]) -> concurrent.futures.Executor:
    if count <= 1 or multiprocessing.current_process().daemon:
        return _threads(threads)
    context: Any = multiprocessing.get_context("fork")
    values: dict[int, Carried[Any]] | bytes = carried
    problem = ""
    if threading.active_count() > 1:
        context = _CleanContext()
        try:
            values = pickle.dumps({number: each.value for number, each in carried.items()})
        except Exception as error:  # each class has its own
            problem = f"what is to be packed does not pickle ({type(error).__name__}: {error})"
        else:
            if b"__main__" in values:
                problem = "what is to be packed is defined in the script itself, not in a module"
            elif len(os.fsencode(temporary_dir())) > _LONGEST_FOLDER:
                problem = f"the folder for temporary files is too long for a socket (over {_LONGEST_FOLDER} bytes): "
                problem += "set TMPDIR"
        problem = problem and f"this one has threads, so that it must not fork, and {problem}"
    if not problem:
        try:
            return Processes(count, mp_context=context, initializer=_init_worker, initargs=(values,))
        except OSError as error:
            problem = f"the locks that processes share cannot be made in /dev/shm ({error.strerror})"
    warn_once.warn(f"working in one process: {problem}")
    return _threads(1)


def _threads(count: int) -> concurrent.futures.Executor:
    executor = Threads(count)
    # An interrupt while a thread starts would leave it running, unknown to the executor: all start before work begins.
    started = threading.Barrier(count)
    with deferred():  # or the started threads wait for the others and hang
        concurrent.futures.wait([executor.submit(started.wait) for _ in range(count)])
    return executor


class _CleanContext(multiprocessing.context.ForkServerContext):
    """Starts processes that do not import the main script of their parent."""

    class Process(multiprocessing.context.ForkServerProcess):
        @staticmethod
        def _Popen(process_obj: Any) -> Any:  # noqa: N802 - multiprocessing's name
            # A script without ``if __name__ == "__main__"`` would run again in the child, come to the same call, and
            # wait there for the lock that its parent holds. What the workers run is all in wdsdist.
            main = sys.modules["__main__"]
            sys.modules["__main__"] = types.ModuleType("__main__")
            try:
                return multiprocessing.context.ForkServerProcess._Popen(process_obj)
            finally:
                sys.modules["__main__"] = main


def _init_worker(values: dict[int, Carried[Any]] | bytes) -> None:
    """Initialise a worker: end it with its parent process, and store the values that it is sent."""
    # Ctrl-C reaches the whole group: the parent decides what follows, and the workers print no tracebacks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow_parent()
    if isinstance(values, bytes):
        values = {number: Carried(value) for number, value in pickle.loads(values).items()}
    _arrived.update(values)
    # There is a worker for each core; and a fork copies none of torch's threads, so that it would deadlock on them.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def follow_parent() -> bool:
    """Make a worker process exit when its ``multiprocessing`` parent dies; return false if it does already.

    A pool worker whose parent was killed would wait for tasks indefinitely, and could write beside the next run's
    workers. Torch's workers check for their parent only between two batches. They never notice that it is dead if it
    died before the first check, because they take the process that adopts them for it.
    """
    global _following
    parent = multiprocessing.parent_process()
    if parent is None or _following == os.getpid():
        return False
    _following = os.getpid()
    threading.Thread(target=_end_with, args=(parent,), name="wdsdist-follow-parent", daemon=True).start()
    return True


def _end_with(parent: Any) -> None:
    # Processes that this parent forked later keep the sentinel silent. A fork server is not the parent, though.
    this = multiprocessing.current_process()
    expected = os.getppid() if isinstance(this, multiprocessing.context.ForkServerProcess) else parent.pid
    while not multiprocessing.connection.wait([parent.sentinel], _LOOK_AGAIN) and os.getppid() == expected:
        pass
    os._exit(1)
