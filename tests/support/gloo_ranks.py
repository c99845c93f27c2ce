"""Real processes of one job, by default of one gloo process group, each of which calls what a test tells it to."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from wdsdist.errors import WdsdistError

_Call = tuple[Callable[..., None], tuple[Any, ...]]


class Ranks:
    """Processes of one gloo group, each of which calls what it is told to and says how it ended.

    Rank 0 hosts the store, unless there is the port of one that somebody else hosts, as torchrun does. With the
    variables of a ``launcher`` there is no group yet. Where they ``share`` modules, one process imports those and forks
    the ranks: to import a framework takes seconds.
    """

    def __init__(
        self,
        world_size: int,
        directory: Path,
        *,
        timeout: float = 500.0,
        file_store: bool = False,
        port: int | None = None,
        launcher: Mapping[str, str] | None = None,
        share: Sequence[str] = (),
    ) -> None:
        # From a server that has imported torch, a process starts in milliseconds instead of a second.
        context = multiprocessing.get_context("forkserver")
        self.pipes: list[Connection] = []
        self.processes = []
        self.is_one_group = bool(share)
        run = _launched if launcher is not None else _rank
        pipes = [context.Pipe() for _ in range(world_size)]
        calls: list[_Call] = [
            (run, (rank, world_size, str(directory), theirs, launcher or (file_store, port, timeout)))
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for some in [calls] if share else [[call] for call in calls]:
            process = context.Process(target=_start, args=(share, some))
            process.start()
            self.processes.append(process)
        for ours, theirs in pipes:
            theirs.close()
            self.pipes.append(ours)
        if launcher is None:
            port = self.outcome(0)  # chosen by rank 0 as it binds it: a port found free before may be taken by then
            for pipe in self.pipes[1:]:
                pipe.send(port)
        assert [self.outcome(rank) for rank in range(world_size)] == ["ready"] * world_size

    def tell(self, rank: int, function: Callable[..., Any], *args: Any) -> None:
        self.pipes[rank].send((function, args))

    def outcome(self, rank: int) -> Any:
        """Return what the call of a rank returned, or the error that it raised."""
        assert self.pipes[rank].poll(500), f"rank {rank} does not answer"
        return self.pipes[rank].recv()

    def is_waiting(self, rank: int, seconds: float = 0.3) -> bool:
        return not self.pipes[rank].poll(seconds)

    def all(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        for rank in range(len(self.pipes)):
            self.tell(rank, function, *args)
        return [self.outcome(rank) for rank in range(len(self.pipes))]

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            if self.is_one_group:
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()


def fork_workers() -> None:
    """Set the start method of workers to fork: with a fork server, each worker would import torch again."""
    multiprocessing.set_start_method("fork", force=True)


def _start(share: Sequence[str], calls: list[_Call]) -> None:
    """Start the processes of all ranks after their shared imports: the first rank in this one, the others in forks.

    What they print goes to a file beside their directory, not among the dots of the test run.
    """
    output = os.open(f"{calls[0][1][2]}-output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    if share:
        os.setpgid(0, 0)
        for name in share:
            importlib.import_module(name)
    for function, args in calls[1:]:
        multiprocessing.get_context("fork").Process(target=function, args=args).start()
    function, args = calls[0]
    function(*args)


def _rank(rank: int, world_size: int, directory: str, pipe: Connection, how: tuple[bool, int | None, float]) -> None:
    import torch.distributed as dist

    file_store, hosted, timeout = how
    limit = timedelta(seconds=timeout)
    port = hosted or 0 if rank == 0 else pipe.recv() if pipe.poll(500) else None
    store: dist.Store
    if file_store:
        store = dist.FileStore(f"{directory}/store", world_size)
    else:
        is_host = rank == 0 and not hosted
        store = dist.TCPStore("127.0.0.1", port, world_size, is_host, limit, wait_for_workers=False)
    if rank == 0:
        pipe.send(0 if file_store else store.port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=limit)
    _answer(pipe, directory)


def _launched(rank: int, world_size: int, directory: str, pipe: Connection, launcher: Mapping[str, str]) -> None:
    os.environ.update(launcher, RANK=str(rank), WORLD_SIZE=str(world_size))
    _answer(pipe, directory)


def _answer(pipe: Connection, directory: str) -> None:
    """Loop of a rank: call each function that the test sends down the pipe, until the test closes it."""
    tempfile.tempdir = directory
    with contextlib.suppress(EOFError, BrokenPipeError):
        pipe.send("ready")
        while True:
            function, args = pipe.recv()
            try:
                pipe.send(function(*args))
            except Exception as error:
                pipe.send(error if isinstance(error, WdsdistError) else f"{type(error).__name__}: {error}")
