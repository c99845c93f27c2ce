"""A program: ``wdsdist pack``, but in every worker's first shard it says so by a byte, and waits for standard input.

Arguments: those of ``wdsdist pack``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from wdsdist.cli import main
from wdsdist.packing.members import Samples

real = Samples.__iter__
waited: list[bool] = []


def wait_once(self: Samples) -> Iterator[Any]:
    if not waited:
        waited.append(True)
        main_thread = threading.main_thread()
        if main_thread is not threading.current_thread():
            # An interrupt while it submits could leave a lock of the standard library locked: it is to wait first.
            while sys._current_frames()[main_thread.ident or 0].f_code.co_name != "write_planned":
                time.sleep(0.001)
        os.write(1, b"x")
        os.read(0, 1)
    yield from real(self)


if __name__ == "__main__":
    Samples.__iter__ = wait_once
    sys.argv = ["wdsdist", "pack", *sys.argv[1:]]
    main()
