"""A program: one rank of a job that torchrun starts again after rank 1 was killed between two barriers.

Its ranks meet before they make a process group, and in it.
"""

from __future__ import annotations

import contextlib
import os
import signal

import torch.distributed as dist

from tests.programs.staged import HERE, log, wait
from wdsdist.distributed.barriers import barrier
from wdsdist.distributed.run_once import data_download
from wdsdist.errors import DistributedError

attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@data_download
def prepare() -> int:
    log(f"ran-in-{attempt}")
    if attempt == 0:
        raise OSError("disk full")
    return attempt


def meet(number: int) -> None:
    log(f"came-{attempt}-{number}")
    barrier(10)
    log(f"passed-{attempt}-{number}")


def join(rank: int) -> None:
    """Join the process group of this attempt."""
    agent = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    if rank == 0:
        # gloo would look for the dead at the addresses that they have left
        for key in agent.list_keys():
            if "default_pg" in key and "wdsdist" not in key:
                agent.delete_key(key)
        agent.set(f"swept/{attempt}", "")
    agent.wait([f"swept/{attempt}"])
    dist.init_process_group("gloo")


def fail(rank: int) -> None:
    """Fail in both ranks; one goes on to the next barrier, where the other dies before it."""
    with contextlib.suppress(OSError):
        prepare()
    if rank == 1:
        wait()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        barrier(10)
    except DistributedError as error:
        if "disk full" not in str(error):
            raise
        (HERE / "gate").write_text("")
    signal.pause()


def main() -> None:
    rank = int(os.environ["RANK"])
    meet(0)  # in the launcher's store, before there is a group
    join(rank)
    meet(1)
    if attempt == 0:
        fail(rank)
    meet(2)
    assert prepare() == 1
    meet(3)


if __name__ == "__main__":
    main()
