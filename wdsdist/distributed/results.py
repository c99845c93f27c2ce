"""The record of a ``data_download`` call: a file that shares its outcome between processes.

Outcomes are pickled. That is safe only because the files are in a directory that this user alone can enter, and because
a file of another owner is not read.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import stat
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from wdsdist._util.files import atomic_write
from wdsdist.errors import DestinationError, DistributedError

_FORMAT = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """State of one call: it runs, it returned a value, or it raised an exception."""

    function: str
    """Name of the function, for messages."""
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

    @staticmethod
    def returned(function: str, run: str, value: object) -> Outcome:
        """Return the outcome of a call that returned a value.

        Raises:
            DistributedError: the value cannot be pickled, so the other processes could not receive it.
        """
        try:
            payload = pickle.dumps(value)
            pickle.loads(payload)
        except Exception as error:
            raise DistributedError(
                f"{function}() returned a {type(value).__qualname__} that cannot be handed to other processes "
                f"({type(error).__name__}: {error}): return a path, or another value that can be pickled"
            ) from error
        return Outcome(function, run, "returned", payload, tuple(_existing_paths(value)))

    @staticmethod
    def raised(function: str, run: str, error: Exception) -> Outcome:
        """Return the outcome of a call that raised an exception, which need not pickle."""
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        payload = b""
        with contextlib.suppress(Exception):  # a pickle may raise anything, and the message will do
            payload = pickle.dumps(error)
        return Outcome(function, run, "raised", payload, message=f"{described(error)}\n\n{trace}")

    def is_complete(self) -> bool:
        """Return whether the call succeeded and all paths that it returned still exist."""
        return self.state == "returned" and all(map(_exists, self.paths))

    def value(self) -> Any:
        """Unpickle the return value; raises whatever unpickling raises."""
        return pickle.loads(self.payload)

    def error(self) -> Exception:
        """Unpickle the exception, with the process that raised it as its cause."""
        origin = DistributedError(f"{self.function}() failed in {self.process}: {self.message}")
        with contextlib.suppress(Exception):  # exceptions with arguments of their own often cannot be rebuilt
            error: Exception = pickle.loads(self.payload)
            error.__cause__ = origin
            return error
        return origin


def read_outcome(path: Path) -> Outcome | None:
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
            version, values = pickle.load(file)
            return Outcome(**values) if version == _FORMAT else None
    return None


def write_outcome(path: Path, outcome: Outcome) -> None:
    """Write the outcome of a call atomically."""
    try:
        with atomic_write(path, 0o600) as file:
            pickle.dump((_FORMAT, asdict(outcome)), file)
    except OSError as error:
        raise DestinationError(f"cannot write {path}: {error.strerror}") from error


def described(error: Exception) -> str:
    """Return type and message of an exception, also if its ``__str__`` fails."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _existing_paths(value: object, inside: tuple[int, ...] = ()) -> list[str]:
    """Return the existing paths in a value: itself, or inside containers and dataclasses."""
    items: Iterable[object] | None = None
    if isinstance(value, Mapping):
        items = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = value
    elif is_dataclass(value):  # such as the manifest that packing returns
        items = [getattr(value, part.name) for part in fields(value)]
    if items is not None:
        outer = (*inside, id(value))
        return [path for item in items if id(item) not in outer for path in _existing_paths(item, outer)]
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    # A relative str is more often a word than a path.
    if isinstance(path, str) and (path.startswith("/") or isinstance(value, os.PathLike)) and _exists(path):
        return [str(Path(path).absolute())]
    return []


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long or with a NUL, hence no path; or in a folder we may not enter
        return False
