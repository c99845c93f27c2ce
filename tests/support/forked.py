"""Programs that tests run as users do, each in a process forked from a server that has imported torch.

A start of Python with torch takes seconds of a core, and one from the server some milliseconds. What a test says of
the start or the end of Python itself runs by `subprocess` instead.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import IO

_PACKAGE = Path(__file__).parents[2] / "wdsdist"
# What torch imports at the first step of an optimizer takes as long as torch itself.
PRELOADED = ["torch.distributed.checkpoint", "torch._dynamo", "torch.profiler", "aiohttp", "s3fs", "webdataset"] + [
    ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts)
    for path in _PACKAGE.rglob("*.py")
    if "integrations" not in path.parts and not path.stem.startswith("__")
]
PRELOADED.append("tests.support.frozen")  # the last
"""What the server imports; see conftest.py."""


def start(
    *command: object,
    stdout: str,
    stderr: str,
    stdin: str = os.devnull,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> ForkServerProcess:
    """Start ``python COMMAND``, which is ``-c CODE``, ``-m MODULE`` or ``SCRIPT``, with its streams in files."""
    words = [str(word) for word in command]
    process = multiprocessing.get_context("forkserver").Process(
        target=_run, args=(words, (stdin, stdout, stderr), str(cwd or Path.cwd()), dict(env or os.environ))
    )
    process.start()
    return process


def start_until_a_byte(*command: object, pipe: Path) -> tuple[ForkServerProcess, IO[bytes]]:
    """Start ``python COMMAND``, wait for the byte ``x`` on its standard output, and return that for `kill`."""
    os.mkfifo(pipe)
    process = start(*command, stdout=str(pipe), stderr=os.devnull)
    stream = pipe.open("rb", buffering=0)
    assert stream.read(1) == b"x"
    return process, stream


def kill(process: ForkServerProcess, stream: IO[bytes]) -> None:
    """Kill a process alone, and wait until no other is left that holds its standard output."""
    process.kill()
    with stream:
        assert stream.read().strip(b"x") == b""
    process.join()
    assert process.exitcode == -signal.SIGKILL


def run(
    *command: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 580
) -> subprocess.CompletedProcess[str]:
    """Run ``python COMMAND`` to its end and return its status and output, as `subprocess.run` does."""
    return together(command, [dict(env or os.environ)], cwd=cwd, timeout=timeout)


def launch(
    *command: object, ranks: int, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 580
) -> subprocess.CompletedProcess[str]:
    """Run ``python COMMAND`` on some ranks of one node, in an environment as torchrun makes it."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    world = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": store.port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": f"{os.getpid()}-{store.port}",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "GROUP_RANK": 0,
    }
    environments = [
        {**(env or os.environ), **{name: str(value) for name, value in world.items()}, "RANK": rank, "LOCAL_RANK": rank}
        for rank in map(str, range(ranks))
    ]
    return together(command, environments, cwd=cwd, timeout=timeout)


def together(
    command: Sequence[object], environments: list[dict[str, str]], *, cwd: Path | None = None, timeout: float = 580
) -> subprocess.CompletedProcess[str]:
    """Run a program in several environments at once; the status is the first that is not 0."""
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        started = [start(*command, stdout=str(stdout), stderr=str(stderr), cwd=cwd, env=env) for env in environments]
        end = time.monotonic() + timeout
        try:
            for process in started:
                process.join(max(0.0, end - time.monotonic()))
        finally:  # also where the time of the test is over
            late = [process for process in started if process.exitcode is None]
            for process in late:
                process.kill()
                process.join()
        said = [
            one.read_text(encoding="utf-8", errors="surrogateescape") if one.exists() else ""
            for one in (stdout, stderr)
        ]
        if late:
            raise subprocess.TimeoutExpired(list(map(str, command)), timeout, *said)
        statuses = [process.exitcode or 0 for process in started]
        return subprocess.CompletedProcess(command, next(filter(None, statuses), 0), *said)


def _run(words: list[str], streams: tuple[str, str, str], cwd: str, environment: dict[str, str]) -> None:
    """Be the Python that ``words`` start."""
    for number, name in enumerate(streams):
        stream = os.open(name, (os.O_WRONLY | os.O_CREAT | os.O_APPEND) if number else os.O_RDONLY)
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    multiprocessing.set_start_method(None, force=True)  # what it was for this process is not what users have
    first, *sys.argv = words
    if first == "-m":
        sys.path.insert(0, cwd)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path.insert(0, "")
        code, sys.argv[0] = sys.argv[0], "-c"
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.argv.insert(0, first)
        sys.path.insert(0, os.path.dirname(first))  # noqa: PTH120
        runpy.run_path(first, run_name="__main__")
