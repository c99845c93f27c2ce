"""``data_download``: run a function once per node, and share its result or its error among all processes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, ParamSpec, TypeVar, overload

from filelock import FileLock, Timeout

from wdsdist._util.host import private_dir, private_under
from wdsdist._util.validation import check_flag, check_path, check_seconds
from wdsdist.distributed.barriers import post_failure, withdraw_failure
from wdsdist.distributed.call_key import call_key
from wdsdist.distributed.launch import Run, this_run
from wdsdist.distributed.results import Outcome, Records, described
from wdsdist.errors import ArgumentError, DestinationError, DistributedError, DistributedTimeoutError

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("wdsdist")

Scope = Literal["node", "cluster"]

_POLL_SECONDS: Mapping[Scope, float] = {"node": 0.05, "cluster": 0.5}  # each poll of a shared file system is traffic

_failures: dict[str, float] = {}
"""Time of the latest failure that this process has raised, by call; only later failures are raised again."""

_thread = threading.local()
"""The keys of the calls that this thread runs: to wait for such a call would deadlock."""


@overload
def data_download(
    function: Callable[P, T],
    /,
    *,
    scope: Scope = ...,
    timeout: float | None = ...,
    directory: str | os.PathLike[str] | None = ...,
    force: bool = ...,
) -> Callable[P, T]: ...


@overload
def data_download(
    *,
    scope: Scope = ...,
    timeout: float | None = ...,
    directory: str | os.PathLike[str] | None = ...,
    force: bool = ...,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def data_download(
    function: Callable[P, T] | None = None,
    /,
    *,
    scope: Scope = "node",
    timeout: float | None = None,
    directory: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Callable[P, T] | Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function to run in one process per node, while every process gets its return value, or its error.

    Works before and without ``torch.distributed``. One of the processes that call the function with the same
    arguments runs it, and the others wait. Its return value is kept, so later processes, in this run or the next, skip
    it. If the process that runs it dies, another takes over.

    Two calls are the same if file, name and source of the function and all arguments are the same; give every rank the
    same arguments. Global variables and variables of an enclosing function do not count: pass them as arguments.
    The function runs again if a path that it returned no longer exists: a ``Path``, or a string that begins with ``/``,
    by itself or inside lists, tuples, dicts and dataclasses, such as a `Manifest`.

    An exception is raised on all processes of the same launch that had started when it happened, with the process that
    ran the function as its cause. A later run, or a second call, tries again.

    Args:
        function: a plain function; its return value must be picklable, ideally a path.
        scope: ``"node"`` runs it once on every node, ``"cluster"`` once for all nodes.
        timeout: longest wait in seconds for the process that runs it, above 0; ``None`` waits as long as that lives.
        directory: folder for the return value, in a subdirectory that only this user can enter; by default a private
            directory on the node. ``scope="cluster"`` needs one on a file system with locks that all nodes share.
        force: run once in every run, even if an earlier run has left a result.

    Raises:
        ArgumentError: ``function`` is not a plain function, an option cannot work, or an argument of a call is an
            object by which two calls cannot be told apart.

    The decorated function raises whatever the function raises, and also:
        DistributedError: it failed in another process with an exception that cannot be pickled, returned a value that
            cannot be pickled, or called itself with the same arguments.
        DistributedTimeoutError: the process that runs it did not finish in time.
        DestinationError: ``directory`` cannot be written or locked, or others could write there.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as records:
        ...     @data_download(directory=records)
        ...     def prepare(name):
        ...         print("fetching", name)
        ...         return f"data/{name}"
        ...     prepare("cifar10"), prepare("cifar10")
        fetching cifar10
        ('data/cifar10', 'data/cifar10')
    """
    where = None if directory is None else check_path("directory", directory)
    options = _Options(scope, timeout, where, check_flag("force", force))

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        _check_function(function)
        name = f"{function.__module__}.{function.__qualname__}"

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            withdraw_failure()
            try:
                key = call_key(function, inspect.signature(function).bind(*args, **kwargs))
                run = this_run(across_nodes=options.scope == "cluster")
                perform = functools.partial(function, *args, **kwargs)
                return _Call(name, perform, Records(options.records(), key), run, options).settle()
            except Exception as error:
                post_failure(f"data_download of {name}() raised {described(error)}")
                raise

        return wrapper

    return decorate if function is None else decorate(function)


def is_running() -> bool:
    """Return whether this thread runs a function that `data_download` decorates."""
    return bool(_thread.__dict__.get("running"))


@dataclass(frozen=True, slots=True)
class _Options:
    """Options of ``data_download``, checked."""

    scope: Scope
    timeout: float | None
    directory: Path | None
    force: bool

    def __post_init__(self) -> None:
        if self.scope not in ("node", "cluster"):
            raise ArgumentError(f'scope is {self.scope!r}: it must be "node" or "cluster"')
        if self.scope == "cluster" and self.directory is None:
            raise ArgumentError('scope="cluster" needs directory=..., one on a file system that all nodes share')
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)

    def records(self) -> Path:
        """Create the directory that results are kept in, and return it."""
        if self.directory is None:
            return private_dir()
        directory = self.directory.absolute()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DestinationError(f"cannot make the directory {directory}: {error.strerror}") from error
        # A subdirectory of our own: project directories on a cluster are usually open to a group, and rightly so.
        return private_under(directory, f".wdsdist-{os.geteuid()}")


@dataclass(frozen=True, slots=True)
class _Call(Generic[T]):
    """One call in this process, which may reuse the result of another process or run."""

    name: str
    perform: Callable[[], T]
    records: Records
    run: Run
    options: _Options

    def settle(self) -> T:
        result = self._recall()  # without the lock: all processes of a node may read it at every start
        if result is None:
            with _elected(self.name, self.records, self.options.timeout, _POLL_SECONDS[self.options.scope]):
                # Another process may have finished while this one waited, or died.
                result = self._recall(with_failure=True) or (self._perform(),)
        return result[0]

    def _recall(self, *, with_failure: bool = False) -> tuple[T] | None:
        """Return the stored value of another process or run, or raise the stored failure of this run."""
        outcome = self.records.read()
        if outcome is None:
            return None
        in_run = outcome.run == self.run.id
        if outcome.complete() and (not self.options.force or (in_run and outcome.time >= self.run.launched)):
            with contextlib.suppress(Exception):  # pickled by another version of its class: run again
                return (outcome.value(),)
        is_news = outcome.time >= self.run.began and outcome.time > _failures.get(self.records.key, 0.0)
        if with_failure and outcome.raised and in_run and is_news:
            _failures[self.records.key] = outcome.time
            raise outcome.error()
        return None

    def _perform(self) -> T:
        self.records.discard()
        try:
            value = self.perform()
            outcome = Outcome.returned(self.name, self.run.id, value)
        except Exception as error:
            outcome = Outcome.failed(self.name, self.run.id, error)
            _failures[self.records.key] = outcome.time
            with contextlib.suppress(DestinationError):  # the failure matters more than that others cannot read it
                self.records.write(outcome)
            raise
        self.records.write(outcome)
        return value


@contextlib.contextmanager
def _elected(name: str, records: Records, timeout: float | None, poll_seconds: float) -> Iterator[None]:
    """Hold the lock of a call, which elects this process to run it, and record for the others who holds it.

    Args:
        name: the function, for messages.
        records: the files of the call.
        timeout: longest wait for the lock in seconds; None waits while its holder lives.
        poll_seconds: seconds between attempts to lock it.

    Raises:
        DistributedError: this thread already holds the lock.
        DistributedTimeoutError: another process held it for too long.
        DestinationError: the file system has no locks.
    """
    running: set[str] = _thread.__dict__.setdefault("running", set())
    if records.key in running:
        raise DistributedError(f"{name}() calls itself with the same arguments: it would wait for itself")
    # Without flock, filelock would fall back to a file that outlives a killed holder, and all others would deadlock.
    lock = FileLock(records.lock, fallback_to_soft=False)
    try:
        try:
            lock.acquire(0)
        except Timeout:
            _log.info("waiting for %s, which runs %s()", records.holder(), name.rpartition(".")[2])
            lock.acquire(-1 if timeout is None else timeout, poll_seconds)
    except Timeout:
        raise DistributedTimeoutError(
            f"{name}() was not finished within {timeout:g} s by {records.holder()}: see what it is doing, end it so "
            "that another process takes over, or wait longer with timeout=..."
        ) from None
    except (OSError, NotImplementedError) as error:
        raise DestinationError(f"cannot lock {records.lock} ({error}): choose another directory=...") from error
    running.add(records.key)
    try:
        # Before the outcome is read: over NFS, only a change to the directory expires a cached lookup that found no
        # file.
        records.announce()
        yield
    finally:
        running.discard(records.key)
        records.withdraw()
        lock.release()


def _check_function(function: object) -> None:
    if not isinstance(function, types.FunctionType):
        raise ArgumentError(
            f"data_download is for plain functions, not for a {type(function).__qualname__}: "
            "define one that calls it; above @staticmethod and the like, swap the two"
        )
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise ArgumentError(
            f"{function.__qualname__}() is a coroutine or generator function, which returns before its work is "
            "done: data_download needs a plain function"
        )
