"""What a program says to the test that started it and hears from it, as `tests.support.jobs.Stage` arranges."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path.cwd()
"""The folder of the stage, where its programs start."""


def say(word: str, content: Any = None) -> None:
    """Tell the test a word, which it expects."""
    print(json.dumps([word, content]), flush=True)


def hear() -> str:
    """Wait for a line from the test."""
    return sys.stdin.readline().strip()


def log(word: str = "") -> None:
    """Add a line of this process to the log of the stage."""
    with (HERE / "log").open("a") as file:
        file.write(f"{os.getpid()} {word}\n")


def announce() -> None:
    """Tell the test that this process runs the function."""
    (HERE / "started").write_text(str(os.getpid()))


def wait() -> None:
    """Wait for the test to let the function finish."""
    (HERE / "gate").read_text()


def report(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Call the function and tell the test how it ended."""
    try:
        say("returned", function(*args, **kwargs))
    except Exception as error:
        message = "".join(traceback.format_exception_only(error)).partition(": ")[2].strip()
        say("raised", {"type": type(error).__name__, "message": message, "cause": str(error.__cause__)})
    except KeyboardInterrupt:
        say("interrupted")


def call(function: Callable[..., Any]) -> None:
    """Call the function once the test says so, and tell it how that ended."""
    say("ready")
    hear()
    report(function)
