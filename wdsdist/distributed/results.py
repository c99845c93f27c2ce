"""The outcome of a ``data_download`` call, and the files that share it between processes.

Outcomes are pickled. That is safe only because the files are in a directory that this user alone can enter, and because
a file of another owner is not read.
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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from wdsdist._util.files import atomic_write
from wdsdist.errors import DestinationError, DistributedError

_FORMAT = 2
_TEMPORARY = "tmp-"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The return value or the exception of one call."""

    function: str
    """Name of the function, for messages."""
    run: str
    """Id of the run that made the call."""
    payload: bytes
    """The pickled value or exception; empty for an exception that cannot be pickled."""
    raised: bool = False
    paths: tuple[str, ...] = ()
    """Paths in the value that existed: if one is gone, the function must run again."""
    message: str = ""
    """Type and message of the exception."""
    trace: str = ""
    """Traceback of the exception."""
    time: float = field(default_factory=time.time)
    """When the call ended, in seconds since 1970."""
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
        return Outcome(function, run, payload, paths=tuple(_existing_paths(value)))

    @staticmethod
    def failed(function: str, run: str, error: Exception) -> Outcome:
        """Return the outcome of a call that raised an exception, which need not pickle."""
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        payload = b""
        with contextlib.suppress(Exception):  # a pickle may raise anything, and the message will do
            payload = pickle.dumps(error)
        return Outcome(function, run, payload, raised=True, message=described(error), trace=trace)

    def complete(self) -> bool:
        """Return whether the call succeeded and all paths that it returned still exist."""
        return not self.raised and all(map(_exists, self.paths))

    def value(self) -> Any:
        """Unpickle the return value; raises whatever unpickling raises."""
        return pickle.loads(self.payload)

    def error(self) -> Exception:
        """Unpickle the exception, with the process that raised it as its cause."""
        origin = DistributedError(f"{self.function}() failed in {self.process}: {self.message}\n\n{self.trace}")
        error: object = None
        with contextlib.suppress(Exception):  # exceptions with arguments of their own often cannot be rebuilt
            error = pickle.loads(self.payload)
        if not isinstance(error, Exception):
            return origin
        error.__cause__ = origin
        return error


@dataclass(frozen=True, slots=True)
class Records:
    """The files of one call in a private directory: its lock, the holder of the lock, and the outcome."""

    directory: Path
    key: str

    @property
    def lock(self) -> Path:
        """The lock file, held by the process that runs the function; the file is never deleted."""
        return self.directory / f"{self.key}.lock"

    def read(self) -> Outcome | None:
        """Return the outcome of the call; ``None`` if there is none, or its file cannot be used."""
        try:
            descriptor = self._open_outcome()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DestinationError(f"cannot read {self._outcome}: {error.strerror}") from error
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            # Unpickling runs code. The open file is checked: its path may point to another file at any time.
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise DestinationError(f"{self._outcome} was not written by this user: remove it")
            with contextlib.suppress(Exception):  # a damaged record counts for nothing
                version, values = pickle.load(file)
                return Outcome(**values) if version == _FORMAT else None
        return None

    def _open_outcome(self) -> int:
        """Open the outcome's file, after a check of the directory, which may be another by now."""
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            status = os.fstat(folder)
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise DestinationError(f"others can write {self.directory}: see who changed it")
            # Without O_NONBLOCK, a named pipe would block until somebody writes to it.
            return os.open(self._outcome.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)

    def write(self, outcome: Outcome) -> None:
        """Write an outcome atomically."""
        values = {part.name: getattr(outcome, part.name) for part in fields(outcome)}
        self._replace(self._outcome, pickle.dumps((_FORMAT, values)))

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
            note = json.loads(self._holder.read_bytes())
            return f"process {note['pid']} on {note['host']}"
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
            # For this user alone, whatever the umask: `read` refuses a file that a group can write.
            with atomic_write(path, 0o600, prefix=f"{self.key}.{_TEMPORARY}") as file:
                file.write(content)
        except OSError as error:
            raise DestinationError(f"cannot write {path}: {error.strerror}") from error


def described(error: Exception) -> str:
    """Return type and message of an exception, also if its ``__str__`` fails."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _existing_paths(value: object, inside: tuple[int, ...] = ()) -> list[str]:
    """Return the existing paths in a value: itself, or inside containers and dataclasses."""
    if id(value) in inside:
        return []
    items: Iterable[object] | None = None
    if isinstance(value, Mapping):
        items = value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = value
    elif is_dataclass(value):  # such as the manifest that packing returns
        items = [getattr(value, part.name) for part in fields(value)]
    if items is not None:
        return [path for item in items for path in _existing_paths(item, (*inside, id(value)))]
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
