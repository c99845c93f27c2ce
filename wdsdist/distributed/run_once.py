"""Once per node: ``data_download`` runs a function, and shares its result or its error; `kept` what is computed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import io
import logging
import os
import pickle
import pprint
import re
import socket
import stat
import tempfile
import textwrap
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

from wdsdist._util.files import atomic_write, locked, writing
from wdsdist._util.host import private_dir, private_under
from wdsdist._util.validation import check_flag, check_path, check_seconds
from wdsdist.distributed.barriers import post_failure
from wdsdist.distributed.identity import process_start, run_id
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

_MOST_KEPT = 64
"""Values of `kept` on a node, the latest ones; older ones are computed again when needed."""

_thread = threading.local()
"""The files of the calls that this thread runs: to wait for such a call would deadlock."""


class _Options(TypedDict, total=False):
    scope: Scope
    timeout: float | None
    directory: str | os.PathLike[str] | None
    force: bool


@overload
def data_download(function: Callable[P, T], /, **options: Unpack[_Options]) -> Callable[P, T]: ...


@overload
def data_download(**options: Unpack[_Options]) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


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
        timeout: longest wait in seconds for the process that runs it, above 0; ``None`` waits as long as it lives.
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
        kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        is_plain = isinstance(function, types.FunctionType) and not any(is_kind(function) for is_kind in kinds)
        if not is_plain:
            raise ArgumentError(
                f"data_download is for plain functions that return when their work is done, not for {function!r}: "
                f"define a function that calls it; above @staticmethod and the like, swap the two",
                argument="function",
            )
        name = f"{function.__module__}.{function.__qualname__}"

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            post_failure("")  # a call after a failure has handled it
            try:
                key = call_key(function, inspect.signature(function).bind(*args, **kwargs))
                # A subdirectory of our own: project directories on a cluster are usually open to a group.
                records = private_under(folder.absolute(), f".wdsdist-{os.geteuid()}") if folder else private_dir()
                path = records / f"{key}.outcome"
                return _once(name, functools.partial(function, *args, **kwargs), path, scope, timeout, force=force)
            except Exception as error:
                post_failure(f"data_download of {name}() raised {_described(error)}")
                raise

        return wrapper

    return decorate if function is None else decorate(function)


dataDownload = data_download  # noqa: N816 - the spelling that some platforms use


def is_running() -> bool:
    """Return whether this thread runs a function that `data_download` decorates."""
    return bool(_thread.__dict__.get("running"))


def call_key(function: Callable[..., Any], arguments: inspect.BoundArguments) -> str:
    """Return a digest of a function and the arguments of a call, the same in every process.

    Included: the file that defines the function (its module, for code in no file), its qualified name, its source from
    ``def`` on (its instructions, without source), and all arguments by name with their defaults.

    Raises:
        ArgumentError: the ``repr`` of an argument shows an address or leaves something out, as for locks and arrays.
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


def _once(name: str, perform: Callable[[], T], path: Path, scope: Scope, timeout: float | None, *, force: bool) -> T:
    """Perform a call in one elected process; return its result, or the recorded one, in all processes.

    ``path`` is the file of its outcome, beside which lies the lock that elects the process that makes the call.
    """
    run, began = run_id(across_nodes=scope == "cluster"), process_start()

    def result(*, raises: bool) -> tuple[T] | None:
        """Return the value of another process or run; raise the exception of another process of this run."""
        outcome = _read(path)
        if outcome is None:
            return None
        is_of_run = outcome.run == run and outcome.time >= began
        is_complete = outcome.state == "returned" and all(map(os.path.exists, outcome.paths))
        if is_complete and (is_of_run or not force):
            with contextlib.suppress(Exception):  # pickled by another version of its class: run again
                return (pickle.loads(outcome.payload),)
        if raises and outcome.state == "raised" and is_of_run and outcome.time > _failures.get(path, 0.0):
            _failures[path] = outcome.time
            raise outcome.error(name)
        return None

    def runner() -> str:
        outcome = _read(path)
        return outcome.process if outcome else "another process"

    # Without the lock: all processes of a node may read it at every start.
    if (known := result(raises=False)) is not None:
        return known[0]
    running: set[Path] = _thread.__dict__.setdefault("running", set())
    if path in running:
        raise DistributedError(f"{name}() calls itself with the same arguments: it would wait for itself")
    with contextlib.ExitStack() as stack:
        lock = locked(
            path.with_suffix(".lock"),
            on_wait=lambda: _log.info("waiting for %s, which runs %s()", runner(), name.rpartition(".")[2]),
            timeout=timeout,
            poll_seconds=_POLL_SECONDS[scope],
        )
        try:
            stack.enter_context(lock)
        except TimeoutError:
            raise DistributedTimeoutError(
                f"{name}() was not finished within {timeout:g} s by {runner()}: see what it is doing, end it so "
                "that another process takes over, or wait longer with timeout=..."
            ) from None
        except OSError as error:
            raise DestinationError(f"cannot lock {path.parent} ({error}): choose another directory=...") from error
        running.add(path)
        stack.callback(running.discard, path)
        # Over NFS, only a change to the directory expires a cached lookup that found no file.
        with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=path.parent):
            pass
        if (known := result(raises=True)) is not None:  # another process has finished while this one waited
            return known[0]
        _write(path, _Outcome(run))  # after a crash from here on, the call does not count as complete
        try:
            value = perform()
            outcome = _Outcome(run, "returned", *_pickled(value, name))
        except Exception as error:
            message = "".join([_described(error), "\n\n", *traceback.format_exception(error)])
            payload = b""
            with contextlib.suppress(Exception):  # a pickle may raise anything, and the message will do
                payload = pickle.dumps(error)
            outcome = _Outcome(run, "raised", payload, message=message)
            _failures[path] = outcome.time
            with contextlib.suppress(DestinationError):  # the failure matters more than that others cannot read it
                _write(path, outcome)
            raise
        _write(path, outcome)
        return value


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The state of one call, in a file that shares it between processes: it runs, it returned, or it raised.

    It is pickled. That is safe only because the file is in a directory that this user alone can enter, and because a
    file of another owner is not read.
    """

    run: str
    """Id of the run that made the call."""
    state: Literal["running", "returned", "raised"] = "running"
    payload: bytes = b""
    """The pickled value or exception; empty for an exception that cannot be pickled."""
    paths: tuple[str, ...] = ()
    """Existing paths in the value: if one is gone, the function must run again."""
    message: str = ""
    """Type, message and traceback of the exception."""
    time: float = field(default_factory=time.time)
    """When the call reached this state, in seconds since 1970."""
    process: str = field(default_factory=lambda: f"process {os.getpid()} on {socket.gethostname()}")

    def error(self, function: str) -> Exception:
        """Unpickle the exception, with the process that raised it as its cause."""
        origin = DistributedError(f"{function}() failed in {self.process}: {self.message}")
        with contextlib.suppress(Exception):  # exceptions with arguments of their own often cannot be rebuilt
            error: Exception = pickle.loads(self.payload)
            error.__cause__ = origin
            return error
        return origin


class _NotingPaths(pickle.Pickler):
    """Pickles a value, and notes the paths in it that exist: each ``Path``, and each string that begins with ``/``."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.paths: list[str] = []

    def persistent_id(self, value: Any) -> None:
        # A relative string is more often a word than a path.
        if isinstance(value, os.PathLike) or (isinstance(value, str) and value.startswith("/")):
            with contextlib.suppress(OSError, ValueError):  # too long, or with a NUL
                if Path(value).exists():
                    self.paths.append(str(Path(value).absolute()))


def _pickled(value: object, name: str) -> tuple[bytes, tuple[str, ...]]:
    """Pickle the return value of a function, and return the pickle and the existing paths in the value.

    Raises:
        DistributedError: the value cannot be pickled, so the other processes could not receive it.
    """
    content = io.BytesIO()
    pickler = _NotingPaths(content)
    try:
        pickler.dump(value)
        pickle.loads(content.getvalue())
    except Exception as error:
        raise DistributedError(
            f"{name}() returned a {type(value).__qualname__} that cannot be handed to other processes "
            f"({type(error).__name__}: {error}): return a path, or another value that can be pickled"
        ) from error
    return content.getvalue(), tuple(pickler.paths)


def _read(path: Path) -> _Outcome | None:
    """Return the outcome of a call from its file; ``None`` without a usable file.

    Raises:
        DestinationError: the file cannot be read, or was not written by this user.
    """
    try:
        # Without O_NONBLOCK, a named pipe would block until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DestinationError(f"cannot read {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        # Unpickling runs code.
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise DestinationError(f"{path} was not written by this user: remove it")
        with contextlib.suppress(Exception):  # a damaged record counts for nothing
            return _Outcome(**pickle.load(file))
    return None


def _write(path: Path, outcome: _Outcome) -> None:
    """Write the outcome of a call atomically."""
    with writing(path), atomic_write(path, 0o600) as file:
        pickle.dump(asdict(outcome), file)


def _described(error: Exception) -> str:
    """Return type and message of an exception, also if its ``__str__`` fails."""
    return "".join(traceback.format_exception_only(error)).strip()


def kept(about: str, compute: Callable[[], T]) -> T:
    """Return a value that another process of this node has computed, or compute it while the others wait.

    It lies in the private directory of the node. If nothing can be kept there, each process computes for itself.
    ``about`` says everything that the value depends on.
    """
    name = hashlib.sha256(about.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    try:
        path = private_under(private_dir(), "kept") / f"{name}.outcome"
        value = _once("compute", compute, path, "node", None, force=False)
    except DestinationError:
        return compute()
    with contextlib.suppress(OSError):
        for old in sorted(path.parent.glob("*.outcome"), key=lambda path: path.stat().st_mtime)[:-_MOST_KEPT]:
            old.unlink(missing_ok=True)
            old.with_suffix(".lock").unlink(missing_ok=True)
    return value
