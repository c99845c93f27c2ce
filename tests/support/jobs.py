"""Scripts that run in several real processes, which a test holds and lets go by pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

PREAMBLE = """
import json, os, sys
from pathlib import Path
from wdsdist.distributed import data_download

HERE = Path(__file__).parent

def say(word, content=None):
    print(json.dumps([word, content]), flush=True)

def hear():
    return sys.stdin.readline().strip()

def log(word=""):
    with open(HERE / "log", "a") as file:
        file.write(f"{os.getpid()} {word}\\n")

def announce():
    "Tell the test that this process runs the function."
    with open(HERE / "started", "w") as pipe:
        pipe.write(str(os.getpid()))

def wait():
    "Wait for the test to let the function finish."
    with open(HERE / "gate") as pipe:
        pipe.read()

def report(function, *args, **kwargs):
    "Call the function and tell the test how it ended."
    try:
        say("returned", function(*args, **kwargs))
    except Exception as error:
        say("raised", {"type": type(error).__name__, "message": str(error), "cause": str(error.__cause__)})
"""

CALL = """
say("ready")
hear()
report(prepare)
"""


def launch(processes: list[Process]) -> None:
    """Have all processes call the function, once all of them have started."""
    for process in processes:
        process.expect("ready")
    for process in processes:
        process.tell()


class Process:
    """A Python process that says lines of JSON and hears plain lines."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def tell(self, line: str = "") -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def expect(self, word: str) -> Any:
        """Return what the process says with ``word``, which must be the next thing that it says."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        if not line:
            assert self.popen.stderr is not None
            pytest.fail(f"the process ended without saying {word!r}:\n{self.popen.stderr.read()}")
        said, content = json.loads(line)
        assert said == word, f"said {said!r}: {content}"
        return content

    def end(self) -> None:
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                pipe.close()
        self.popen.kill()
        self.popen.wait()


class Stage:
    """A script, the processes that run it, and the pipes by which its functions can be held and let go."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.script = directory / "job.py"
        self.processes: list[Process] = []
        os.mkfifo(directory / "started")
        os.mkfifo(directory / "gate")

    def write(self, body: str) -> None:
        self.script.write_text(PREAMBLE + body)

    def start(self, count: int = 1, *, command: list[str] | None = None, **environment: str) -> list[Process]:
        """Start processes, which end up waiting where the script first calls ``hear()``, if it does."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        command = [*(command or [sys.executable]), str(self.script)]
        started = [Process(command, environment) for _ in range(count)]
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
