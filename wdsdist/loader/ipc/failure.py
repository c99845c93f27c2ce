"""An error of a worker on its way to the main process, which ends in one line with the cause.

Torch sends the whole traceback as the message: some 90 lines, most of them of libraries. The message of a wdsdist error
is enough; other errors keep the lines of the user's code.
"""

from __future__ import annotations

import os
import pickle
import sysconfig
import traceback
from pathlib import Path
from typing import NoReturn

import torch

from wdsdist import errors
from wdsdist.errors import WdsdistError

_LIBRARIES = (
    *(f"{Path(str(module.__file__)).parent}{os.sep}" for module in (torch, errors)),
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
)
"""Folders of code that users did not write."""


class WorkerFailure:
    """The error of a worker, in place of the batch that it was making.

    Args:
        error: what was raised, in the process that makes this.
        worker: its number.
    """

    def __init__(self, error: Exception, worker: int) -> None:
        self._type: type[Exception] = next(filter(_pickles, type(error).__mro__))
        origin = f"in data loading worker {worker}, pid {os.getpid()}"
        cause, frames = _of_user(error)
        if isinstance(error, WdsdistError) and not frames:
            self._message = f"{error} ({origin})"
            return
        frames = frames or traceback.extract_tb(error.__traceback__)
        causes = [cause, error] if cause is not error else [error]
        lines = [*frames.format(), *(line for cause in causes for line in traceback.format_exception_only(cause))]
        self._message = f"{origin}:\n" + "".join(lines).rstrip()

    def reraise(self) -> NoReturn:
        """Raise an error of the same type, with the message of this one."""
        try:
            error = self._type(_Lines(self._message) if issubclass(self._type, KeyError) else self._message)
        except Exception:  # its constructor does not accept a single string
            error = RuntimeError(self._message)
        vars(error)["is_of_worker"] = True
        raise error from None


def _of_user(error: BaseException) -> tuple[BaseException, traceback.StackSummary]:
    """Return the first cause of an error that was raised below the user's code, with the frames from there on.

    Returns the error itself without frames if no code of the user is involved.
    """
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        first = next((i for i, frame in enumerate(frames) if not frame.filename.startswith(_LIBRARIES)), None)
        if first is not None:
            return cause, traceback.StackSummary.from_list(frames[first:])
        cause = cause.__cause__
    return error, traceback.StackSummary()


def _pickles(kind: type) -> bool:
    """Return whether a type can be sent; a class that a function defines cannot, and its message would be lost."""
    try:
        pickle.dumps(kind)
    except Exception:
        return False
    return True


class _Lines(str):
    """A message that ``KeyError`` prints as it is, and not by its ``repr``."""

    def __repr__(self) -> str:
        return str(self)
