"""A program: ends while a thread of it holds the lock under which files are opened and closed.

Argument: a file to lock.
"""

from __future__ import annotations

import sys
import threading
import types
from pathlib import Path

from wdsdist.cache import locks


def hold() -> None:
    lock.acquire()  # noqa: F821
    held.set()
    threading.Event().wait()


if __name__ == "__main__":
    file = locks.LockableFile(Path(sys.argv[1]), writable=True, create=True)
    held = threading.Event()
    # A thread keeps what its functions know.
    others = {"lock": locks._changing, "held": held, "threading": threading}
    threading.Thread(target=types.FunctionType(hold.__code__, others), daemon=True).start()
    held.wait()
