"""A program: one rank of a job that torchrun starts again, whose ranks meet before they make a process group."""

from __future__ import annotations

import os
import signal
import sys

from tests.programs.staged import log
from wdsdist.distributed.barriers import barrier


def meet(attempt: int, number: int) -> None:
    log(f"came-{attempt}-{number}")
    barrier(30)
    log(f"passed-{attempt}-{number}")


if __name__ == "__main__":
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    meet(attempt, 1)
    if attempt == 0:
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        barrier(30)  # until the launcher ends this rank
        sys.exit("a barrier without rank 1 passed")
    meet(attempt, 2)
