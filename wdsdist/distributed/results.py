"""The result of a ``data_download`` call, and the files that share it between processes.

Values and exceptions are pickled. That is safe only because the files are in a directory that this user alone
can enter, and because a file of another owner is not read.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import stat
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from wdsdist._util.files import atomic_write
from wdsdist.errors import DestinationError, DistributedError

_FORMAT = 1
_TEMPORARY = "tmp-"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one call: its return value or its exception."""

    function: str
    """Name of the function, for messages."""
    run: str
    """Id of the run it was called in."""
    payload: bytes
    """The pickled value or exception; empty for an exception that cannot be pickled."""
    raised: bool = False
    """Whether it raised."""
    attempt: int = 0
    """Failures of this call that the process had seen in this run before."""
    paths: tuple[str, ...] = ()
    """The paths in the value that existed; where one of them is gone, the function must run again."""
    message: str = ""
    """Type and message of the exception."""
    trace: str = ""
    """Traceback of the exception."""
    time: float = field(default_factory=time.time)
    """When it ended, in seconds since 1970."""
    pid: int = field(default_factory=os.getpid)
    """The process that ran it."""
    host: str = field(default_factory=socket.gethostname)
    """The host of that process."""

    @staticmethod
    def returned(function: str, run: str, value: object) -> Outcome:
        """Return the outcome of a call that returned a value.

        Raises:
            DistributedError: it cannot be pickled, so the other processes could not receive it.
        """
        try:
            payload = pickle.dumps(value)
            pickle.loads(payload)
        except Exception as error:
            raise DistributedError(
                f"{function}() returned a {type(value).__qualname__} that cannot be handed to other processes "
                f"({type(error).__name__}: {error}): return a path, or another value that can be pickled"
            ) from error
        return Outcome(function, run, payload, paths=tuple(_existing_paths(value)))

    @staticmethod
    def failed(function: str, run: str, error: Exception, attempt: int) -> Outcome:
        """Return the outcome of a call that raised an exception, which need not pickle."""
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        payload = b""
        with contextlib.suppress(Exception):  # a pickle may raise anything, and the text of the error will do
            payload = pickle.dumps(error)
        return Outcome(function, run, payload, raised=True, attempt=attempt, message=worded(error), trace=trace)

    def complete(self) -> bool:
        """Return whether the call succeeded and all paths that it returned still exist."""
        return not self.raised and all(_exists(path) for path in self.paths)

    def value(self) -> Any:
        """Unpickle the return value; raises whatever unpickling raises."""
        return pickle.loads(self.payload)

    def error(self) -> Exception:
        """Unpickle the exception, with the process that raised it as its cause."""
        origin = DistributedError(
            f"{self.function}() failed in process {self.pid} on {self.host}: {self.message}\n\n{self.trace}"
        )
        if not self.payload:
            return origin
        try:
            error = pickle.loads(self.payload)
        except Exception:  # many an exception with arguments of its own can be pickled but not be rebuilt
            return origin
        if not isinstance(error, Exception):
            return origin
        error.__cause__ = origin
        return error


@dataclass(frozen=True, slots=True)
class Records:
    """The files of one call in a private directory: its lock, its holder and its outcome."""

    directory: Path
    key: str

    @property
    def lock(self) -> Path:
        """The lock file, held by the process that runs the function; the file is never deleted."""
        return self.directory / f"{self.key}.lock"

    def read(self) -> Outcome | None:
        """Return the outcome of the call; ``None`` where there is none, or its file cannot be used."""
        try:
            descriptor = self._open_outcome()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DestinationError(f"cannot read {self._outcome}: {error.strerror}") from error
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            # Unpickling runs code. The open file is checked: its path may be given to another file at any time.
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise DestinationError(f"{self._outcome} was not written by this user: remove it")
            header, _, payload = file.read().partition(b"\n")
        try:
            said = json.loads(header)
            if said.pop("format") != _FORMAT:
                return None
            return Outcome(payload=payload, **(said | {"paths": tuple(said["paths"])}))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def _open_outcome(self) -> int:
        """Open the outcome's file, after a check of the directory, which may be another by now."""
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found = os.fstat(folder)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise DestinationError(f"{self.directory} is not this user's alone any more: see who put it there")
            # Without O_NONBLOCK, a named pipe would block until somebody writes to it.
            return os.open(self._outcome.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)

    def write(self, outcome: Outcome) -> None:
        """Write an outcome atomically."""
        said = asdict(outcome)
        payload = said.pop("payload")
        self._replace(self._outcome, json.dumps({"format": _FORMAT, **said}).encode() + b"\n" + payload)

    def discard(self) -> None:
        """Delete the outcome, so that after a crash from here on the call does not count as complete."""
        self._outcome.unlink(missing_ok=True)

    def announce(self) -> None:
        """Record that this process holds the lock, and delete temporary files of killed ones; needs the lock."""
        for path in self.directory.glob(f"{self.key}.{_TEMPORARY}*"):
            path.unlink(missing_ok=True)
        self._replace(self._holder, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())

    def withdraw(self) -> None:
        """Delete the record that this process holds the lock."""
        with contextlib.suppress(OSError):
            self._holder.unlink()

    def holder(self) -> str:
        """Return the process that holds the lock, for a message."""
        try:
            said = json.loads(self._holder.read_bytes())
            return f"process {said['pid']} on {said['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            return f"the process that holds {self.lock}"

    @property
    def _outcome(self) -> Path:
        return self.directory / f"{self.key}.outcome"

    @property
    def _holder(self) -> Path:
        return self.directory / f"{self.key}.holder"

    def _replace(self, path: Path, content: bytes) -> None:
        try:
            # For this user alone, whatever the umask: `read` refuses what a group can write.
            with atomic_write(path, 0o600, prefix=f"{self.key}.{_TEMPORARY}") as file:
                file.write(content)
        except OSError as error:
            raise DestinationError(f"cannot write {path}: {error.strerror}") from error


def worded(error: Exception) -> str:
    """Return type and message of an exception, also where its ``__str__`` fails."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _existing_paths(value: object, inside: tuple[int, ...] = ()) -> list[str]:
    """Return the existing paths in a value, which may be one, or hold some as a container or dataclass."""
    if id(value) in inside:
        return []
    inside = (*inside, id(value))
    items: Iterable[object] | None = None
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = value
    elif is_dataclass(value):  # such as the manifest that packing returns
        items = [getattr(value, one.name) for one in fields(value)]
    if items is not None:
        return [path for item in items for path in _existing_paths(item, inside)]
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    # A relative str is more often a word than a path; whoever returns a PathLike has said which it is.
    if isinstance(path, str) and (path.startswith("/") or isinstance(value, os.PathLike)) and _exists(path):
        return [str(Path(path).absolute())]
    return []


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long or with a NUL, hence no path; or in a folder we may not enter
        return False
