"""Actions in a forked process."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable


def forked(action: Callable[[], object]) -> int:
    """Do something in a forked process, which exits with 0 once it is done; return the number of that process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads; none of them matters
        process = os.fork()
    if process == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return process


def status(process: int) -> int:
    """Wait for a forked process, and return how it ended."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
