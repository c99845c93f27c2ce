"""An error of a worker on its way to the main process, which ends in one line with the cause.

Torch sends the whole traceback as the message: some 90 lines, most of them of libraries. The message of a wdsdist error
is enough; other errors keep the lines of the user's code.
"""

from __future__ import annotations

import os
import pickle
import sysconfig
import traceback
from itertools import dropwhile
from pathlib import Path
from typing import NoReturn

import torch
from torch._utils import KeyErrorMessage

from wdsdist import errors
from wdsdist.errors import WdsdistError, causes

_LIBRARIES = (
    *(f"{Path(str(module.__file__)).parent}{os.sep}" for module in (torch, errors)),
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
    "<string>",
)
"""Folders of code that users did not write, and the name of what `dataclasses` writes."""


class WorkerFailure:
    """The error of a worker, in place of the batch that it was making.

    Args:
        error: what was raised, in the process that makes this.
        worker: its number.
    """

    def __init__(self, error: Exception, worker: int) -> None:
        self._type = next(kind for kind in type(error).__mro__ if _pickles(kind))
        origin = f"in data loading worker {worker}, pid {os.getpid()}"
        # The error and its causes, the first one first, with the frames from the user's code on.
        chain = [*causes(error)][::-1]
        stacks = (traceback.extract_tb(cause.__traceback__) for cause in chain)
        frames = [each for stack in stacks for each in dropwhile(lambda f: f.filename.startswith(_LIBRARIES), stack)]
        if isinstance(error, WdsdistError) and not frames:
            self._message = f"{error} ({origin})"
            return
        lines = traceback.format_list(frames or traceback.extract_tb(error.__traceback__))
        lines += [line for cause in chain for line in traceback.format_exception_only(cause)]
        self._message = f"{origin}:\n" + "".join(lines).rstrip()

    def reraise(self) -> NoReturn:
        """Raise an error of the same type, with the message of this one."""
        try:
            error = self._type(KeyErrorMessage(self._message) if issubclass(self._type, KeyError) else self._message)
        except Exception:  # its constructor does not accept a single string
            error = RuntimeError(self._message)
        vars(error)["is_of_worker"] = True
        raise error from None


def _pickles(kind: type) -> bool:
    """Return whether a type can be sent; a class that a function defines cannot, and its message would be lost."""
    try:
        pickle.dumps(kind)
    except Exception:
        return False
    return True
