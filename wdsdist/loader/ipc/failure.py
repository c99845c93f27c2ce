"""An error of a worker on its way to the main process, where it ends in one line that says the cause.

Torch sends all of the traceback as the message: some 90 lines, most of them of the libraries. Errors that wdsdist
raises on purpose say everything themselves; of others, the lines of the user's code are kept.
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
    *(f"{Path(str(one.__file__)).parent}{os.sep}" for one in (torch, errors)),
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
)
"""Folders of code that is not the user's."""


class WorkerFailure:
    """The error of a worker, in place of the batch that it befell.

    Args:
        error: what was raised, in the process that makes this.
        worker: its number.
    """

    def __init__(self, error: Exception, worker: int) -> None:
        self._type: type[Exception] = next(filter(_pickles, type(error).__mro__))
        where = f"in data loading worker {worker}, pid {os.getpid()}"
        cause, frames = _of_user(error)
        if isinstance(error, WdsdistError) and not frames:
            self._text = f"{error} ({where})"
            return
        frames = frames or traceback.extract_tb(error.__traceback__)
        causes = [cause, error] if cause is not error else [error]
        lines = [*frames.format(), *(line for one in causes for line in traceback.format_exception_only(one))]
        self._text = f"{where}:\n" + "".join(lines).rstrip()

    def reraise(self) -> NoReturn:
        """Raise an error of the same type, with the text of this one."""
        try:
            error = self._type(_Lines(self._text) if issubclass(self._type, KeyError) else self._text)
        except Exception:  # its type wants other arguments than a text
            error = RuntimeError(self._text)
        vars(error)["is_of_worker"] = True
        raise error from None


def _of_user(error: BaseException) -> tuple[BaseException, traceback.StackSummary]:
    """Return the first cause of an error in the user's code, with its frames from there on; none where it has none."""
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        first = next((at for at, one in enumerate(frames) if not one.filename.startswith(_LIBRARIES)), None)
        if first is not None:
            return cause, traceback.StackSummary.from_list(frames[first:])
        cause = cause.__cause__
    return error, traceback.StackSummary()


def _pickles(kind: type) -> bool:
    """Return whether a type can be sent: a message with one that cannot, such as of a function's own, would be lost."""
    try:
        pickle.dumps(kind)
    except Exception:
        return False
    return True


class _Lines(str):
    """Message of a worker's error that ``KeyError`` prints as it is, and not by its ``repr``."""

    def __repr__(self) -> str:
        return str(self)


def is_of_worker(error: BaseException) -> bool:
    """Return whether an error was raised in a worker, so that the frames of the main process say nothing of it."""
    return bool(getattr(error, "is_of_worker", False))
