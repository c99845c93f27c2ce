"""``data_download``: run a function once per node, and share its result or its error among all processes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import logging
import os
import pprint
import re
import tempfile
import textwrap
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, overload

from filelock import FileLock, Timeout

from wdsdist._util.host import private_dir, private_under
from wdsdist._util.validation import check_flag, check_path, check_seconds
from wdsdist.distributed.barriers import post_failure, withdraw_failure
from wdsdist.distributed.launch import process_start, run_id
from wdsdist.distributed.results import Outcome, described, read_outcome, write_outcome
from wdsdist.errors import ArgumentError, DestinationError, DistributedError, DistributedTimeoutError

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("wdsdist")

Scope = Literal["node", "cluster"]

_POLL_SECONDS: Mapping[Scope, float] = {"node": 0.05, "cluster": 0.5}  # each poll of a shared file system is traffic

_NOT_CONTENT = re.compile(r" at 0x[0-9a-f]+|\.\.\.|<Recursion on ")
"""Matches a ``repr`` that shows an address, or leaves something out, as numpy does for large arrays."""

_failures: dict[Path, float] = {}
"""Time of the latest failure that this process has raised, by file; only later failures are raised again."""

_thread = threading.local()
"""The files of the calls that this thread runs: to wait for such a call would deadlock."""


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

    It works before and without ``torch.distributed``. One of the processes that call the function with the same
    arguments runs it, and the others wait. The return value is kept, so later processes, in this run or the next, skip
    the function. If the process that runs it dies, another one takes over.

    Two calls are the same if file, name and source of the function and all arguments are the same, so give every rank
    the same arguments. Global variables and variables of an enclosing function do not count: pass them as arguments.
    The function runs again if a path that it returned no longer exists: a ``Path``, or a string that begins with ``/``,
    by itself or inside lists, tuples, dicts and dataclasses, such as a `Manifest`.

    An exception is raised in all processes of the same launch that had started by then; its cause names the process
    that ran the function. A later run, or a second call, tries again.

    Args:
        function: a plain function; its return value must be picklable, ideally a path.
        scope: ``"node"`` runs it once on every node, ``"cluster"`` once for all nodes.
        timeout: longest wait in seconds for the process that runs it, above 0; ``None`` waits as long as that process
            lives.
        directory: folder for the return value, in a subdirectory that only this user can enter; by default a private
            directory on the node. ``scope="cluster"`` needs one on a file system with locks that all nodes share.
        force: run the function once in every run, even if an earlier run left a result.

    Raises:
        ArgumentError: ``function`` is not a plain function, an option cannot work, or the ``repr`` of an argument of a
            call does not show its content.

    The decorated function raises what the function raises, and also:
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
    folder = None if directory is None else check_path("directory", directory)
    if scope not in ("node", "cluster"):
        raise ArgumentError(f'scope is {scope!r}: it must be "node" or "cluster"', argument="scope")
    if scope == "cluster" and folder is None:
        raise ArgumentError(
            'scope="cluster" needs directory=..., one on a file system that all nodes share', argument="directory"
        )
    if timeout is not None:
        check_seconds("timeout", timeout)
    check_flag("force", force)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        _check_function(function)
        name = f"{function.__module__}.{function.__qualname__}"

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            withdraw_failure()
            try:
                key = call_key(function, inspect.signature(function).bind(*args, **kwargs))
                path = _folder_of_records(folder) / f"{key}.outcome"
                return _once(name, functools.partial(function, *args, **kwargs), path, scope, timeout, force=force)
            except Exception as error:
                post_failure(f"data_download of {name}() raised {described(error)}")
                raise

        return wrapper

    return decorate if function is None else decorate(function)


def is_running() -> bool:
    """Return whether this thread runs a function that `data_download` decorates."""
    return bool(_thread.__dict__.get("running"))


def call_key(function: Callable[..., Any], arguments: inspect.BoundArguments) -> str:
    """Return a digest of a function and the arguments of a call, the same in every process.

    Included: the file that defines the function (its module, for code in no file), its qualified name, its source from
    ``def`` on (its instructions, without source), and all arguments by name with their defaults.

    Raises:
        ArgumentError: the ``repr`` of an argument shows an address or leaves something out, as for locks and arrays.

    Example:
        >>> def prepare(name, size=1): ...
        >>> bind = inspect.signature(prepare).bind
        >>> call_key(prepare, bind("a", 1)) == call_key(prepare, bind(size=1, name="a"))
        True
        >>> call_key(prepare, bind("a")) == call_key(prepare, bind("b"))
        False
    """
    arguments.apply_defaults()
    code = inspect.unwrap(function).__code__
    file = Path(code.co_filename)
    source = ""
    with contextlib.suppress(OSError):
        source = textwrap.dedent(inspect.getsource(code))
    # From `def` on: a changed option of the decorator must not fetch everything again. Lambdas of a line share source.
    definition = re.search(r"^def .*", source, re.MULTILINE | re.DOTALL)
    constants = [value for value in code.co_consts if isinstance(value, (str, bytes, int, float))]
    parts = [
        str(file.resolve()) if file.is_file() else f"module {function.__module__}", function.__qualname__,
        definition[0] if definition else repr((code.co_code, code.co_names, constants)),
    ]  # fmt: skip
    for name, value in arguments.arguments.items():
        # pprint sorts sets and dicts, at a width that makes it look into each container.
        content = pprint.pformat(value.absolute() if isinstance(value, Path) else value, width=1)
        if not isinstance(value, (str, bytes)) and _NOT_CONTENT.search(content):
            raise ArgumentError(
                f"argument {name!r} of {function.__qualname__}() is a {type(value).__qualname__}, whose repr does not "
                f"show its content ({value!r:.80}): pass plain values such as strings, numbers and paths",
                argument=name,
            )
        parts.append(f"{name}={content}")
    # The main script of a job is __mp_main__ in the processes that multiprocessing spawns.
    described = repr(parts).replace("__mp_main__", "__main__")
    return hashlib.sha256(described.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _folder_of_records(directory: Path | None) -> Path:
    """Create the private directory that results are kept in, and return it."""
    if directory is None:
        return private_dir()
    directory = directory.absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DestinationError(f"cannot make the directory {directory}: {error.strerror}") from error
    # A subdirectory of our own: project directories on a cluster are usually open to a group, and rightly so.
    return private_under(directory, f".wdsdist-{os.geteuid()}")


def _once(name: str, perform: Callable[[], T], path: Path, scope: Scope, timeout: float | None, *, force: bool) -> T:
    """Return what another process or run has returned for this call, or make the call while the others wait.

    Args:
        name: the function, for messages.
        perform: makes the call.
        path: the file of its outcome.
        scope: the processes that share the file: all of a node, or all of a cluster.
        timeout: longest wait in seconds for the process that makes the call.
        force: whether results of earlier runs do not count.
    """
    run, began = run_id(across_nodes=scope == "cluster"), process_start()

    def result(*, raises: bool) -> tuple[T] | None:
        """Return the value of another process or run; raise the exception of another process of this run."""
        outcome = read_outcome(path)
        if outcome is None:
            return None
        is_of_run = outcome.run == run and outcome.time >= began
        if outcome.is_complete() and (is_of_run or not force):
            with contextlib.suppress(Exception):  # pickled by another version of its class: run again
                return (outcome.value(),)
        if raises and outcome.state == "raised" and is_of_run and outcome.time > _failures.get(path, 0.0):
            _failures[path] = outcome.time
            raise outcome.error()
        return None

    known = result(raises=False)  # without the lock: all processes of a node may read it at every start
    if known is None:
        with _elected(name, path, timeout, _POLL_SECONDS[scope]):
            # Another process may have finished while this one waited.
            known = result(raises=True) or (_perform(name, perform, path, run),)
    return known[0]


def _perform(name: str, perform: Callable[[], T], path: Path, run: str) -> T:
    """Make a call and write its outcome."""
    # After a crash from here on, the call does not count as complete.
    write_outcome(path, Outcome(name, run))
    try:
        value = perform()
        outcome = Outcome.returned(name, run, value)
    except Exception as error:
        outcome = Outcome.raised(name, run, error)
        _failures[path] = outcome.time
        with contextlib.suppress(DestinationError):  # the failure matters more than that others cannot read it
            write_outcome(path, outcome)
        raise
    write_outcome(path, outcome)
    return value


@contextlib.contextmanager
def _elected(name: str, path: Path, timeout: float | None, poll_seconds: float) -> Iterator[None]:
    """Hold the lock of a call, which elects this process to run it; the lock file is never deleted.

    Raises:
        DistributedError: this thread already holds the lock.
        DistributedTimeoutError: another process held it for longer than ``timeout`` seconds.
        DestinationError: the file system has no locks.
    """
    running: set[Path] = _thread.__dict__.setdefault("running", set())
    if path in running:
        raise DistributedError(f"{name}() calls itself with the same arguments: it would wait for itself")
    # Without flock, filelock would fall back to a file that outlives a killed holder, and all others would deadlock.
    lock = FileLock(path.with_suffix(".lock"), fallback_to_soft=False)

    def holder() -> str:
        outcome = read_outcome(path)
        return outcome.process if outcome else f"the process that holds {lock.lock_file}"

    try:
        try:
            lock.acquire(0)
        except Timeout:
            _log.info("waiting for %s, which runs %s()", holder(), name.rpartition(".")[2])
            lock.acquire(-1 if timeout is None else timeout, poll_seconds)
    except Timeout:
        raise DistributedTimeoutError(
            f"{name}() was not finished within {timeout:g} s by {holder()}: see what it is doing, end it so "
            "that another process takes over, or wait longer with timeout=..."
        ) from None
    except (OSError, NotImplementedError) as error:
        raise DestinationError(f"cannot lock {lock.lock_file} ({error}): choose another directory=...") from error
    running.add(path)
    try:
        # Over NFS, only a change to the directory expires a cached lookup that found no file.
        with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=path.parent):
            pass
        yield
    finally:
        running.discard(path)
        lock.release()


def _check_function(function: object) -> None:
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if not isinstance(function, types.FunctionType):
        problem = f"is for plain functions, not for a {type(function).__qualname__}"
    elif any(is_kind(function) for is_kind in kinds):
        problem = f"is for plain functions, and {function.__qualname__}() returns before its work is done"
    else:
        return
    raise ArgumentError(
        f"data_download {problem}: define a function that calls it; above @staticmethod and the like, swap the two",
        argument="function",
    )
