"""The record of a ``data_download`` call: a file that shares its outcome between processes.

Outcomes are pickled. That is safe only because the files are in a directory that this user alone can enter, and because
a file of another owner is not read.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import socket
import stat
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from wdsdist._util.files import atomic_write
from wdsdist.errors import DestinationError, DistributedError


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
        content = io.BytesIO()
        pickler = _NotingPaths(content)
        try:
            pickler.dump(value)
            pickle.loads(content.getvalue())
        except Exception as error:
            raise DistributedError(
                f"{function}() returned a {type(value).__qualname__} that cannot be handed to other processes "
                f"({type(error).__name__}: {error}): return a path, or another value that can be pickled"
            ) from error
        return Outcome(function, run, "returned", content.getvalue(), tuple(pickler.paths))

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
        return self.state == "returned" and all(map(os.path.exists, self.paths))

    def error(self) -> Exception:
        """Unpickle the exception, with the process that raised it as its cause."""
        origin = DistributedError(f"{self.function}() failed in {self.process}: {self.message}")
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
            return Outcome(**pickle.load(file))
    return None


def write_outcome(path: Path, outcome: Outcome) -> None:
    """Write the outcome of a call atomically."""
    try:
        with atomic_write(path, 0o600) as file:
            pickle.dump(asdict(outcome), file)
    except OSError as error:
        raise DestinationError(f"cannot write {path}: {error.strerror}") from error


def described(error: Exception) -> str:
    """Return type and message of an exception, also if its ``__str__`` fails."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()
