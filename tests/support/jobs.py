"""Programs that run in several real processes, which a test holds and lets go by pipes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.programs import command, environment

WORDS = """
import os
from pathlib import Path
from tests.programs.staged import HERE, announce, call, hear, log, report, say, wait
from wdsdist.distributed.run_once import data_download
"""


def launch(processes: list[Process]) -> None:
    """Have all processes call the function, once all of them have started."""
    for process in processes:
        process.expect("ready")
    for process in processes:
        process.tell()


class Process:
    """A Python process that says lines of JSON and hears plain lines."""

    def __init__(self, words: list[str], folder: Path, environment: dict[str, str], *, by: list[str] | None) -> None:
        """Start the program, forked from a server that has imported what it imports; or ``by`` a shell, say."""
        pipes = Path(tempfile.mkdtemp(dir=folder, prefix=".pipes-"))
        self._errors = pipes / "stderr"
        stdin, stdout = pipes / "stdin", pipes / "stdout"
        for pipe in (stdin, stdout):
            os.mkfifo(pipe)
        files = {"stdin": str(stdin), "stdout": str(stdout), "stderr": str(self._errors)}
        self._process: ForkServerProcess | subprocess.Popen[bytes]
        if by is None:
            self._process = forked.start(*words, **files, cwd=folder, env=environment)
        else:
            redirected = f'exec "$@" < {stdin} > {stdout} 2> {self._errors}'
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", redirected, "sh", *by, *words], cwd=folder, env=environment
            )
        self._to, self._from = stdin.open("w"), stdout.open()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def tell(self, line: str = "") -> None:
        self._to.write(line + "\n")
        self._to.flush()

    def expect(self, word: str) -> Any:
        """Return what the process says with ``word``, which must be the next thing that it says."""
        line = self._from.readline()
        if not line:
            pytest.fail(f"the process ended without saying {word!r}:\n{self._errors.read_text()}")
        said, content = json.loads(line)
        assert said == word, f"said {said!r}: {content}"
        return content

    def end(self) -> None:
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._to.close()
        self._from.close()
        self._process.join() if isinstance(self._process, ForkServerProcess) else self._process.wait()


class Stage:
    """A program, the processes that run it, and the pipes by which its functions can be held and let go."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program: list[str] = []
        self.processes: list[Process] = []
        os.mkfifo(directory / "started")
        os.mkfifo(directory / "gate")

    def job(self, name: str, *arguments: object) -> None:
        """Have processes run a function of ``tests/programs/run_once_jobs.py``."""
        self.program = command("run_once_jobs", name, *arguments)[1:]

    def write(self, body: str) -> None:
        """Have processes run a script of a few lines, where the text itself matters."""
        (self.directory / "job.py").write_text(WORDS + body)
        self.program = ["job.py"]

    def start(self, count: int = 1, *, by: list[str] | None = None, **more: str) -> list[Process]:
        """Start processes, which end up waiting where the program first calls ``hear()``, if it does."""
        started = [Process(self.program, self.directory, environment(**more), by=by) for _ in range(count)]
        self.processes += started
        return started

    def runner(self) -> int:
        """Wait for a process to run the function, and return its id."""
        return int((self.directory / "started").read_text())

    def let_go(self) -> None:
        (self.directory / "gate").write_text("")

    @property
    def log(self) -> list[list[str]]:
        """What was logged: the process id and the word of each line."""
        path = self.directory / "log"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
