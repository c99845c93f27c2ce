"""The programs of tests/programs: the commands that run them, and the environment in which they find the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs"


def command(name: str, *arguments: object) -> list[str]:
    """Return the command line of a program, as ``python tests/programs/NAME.py ARGUMENTS``."""
    return [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment, with the repository where a program imports from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **more}
