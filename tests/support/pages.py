"""The pages of the documentation as programs: what their blocks of Python and of commands show is run in order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import forked

ROOT = Path(__file__).parents[2]

# A block that cannot run here says why in the line before it: <!-- not run: needs a cluster -->
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    line: int
    """Where its text begins, from 1."""
    language: str
    text: str
    reason: str | None
    """Why it is not run; ``None`` where it is."""


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [
        Block(page.count("\n", 0, found.start("text")) + 1, found["language"], found["text"], found["reason"])
        for found in _BLOCK.finditer(page)
    ]


def section(page: str, heading: str) -> str:
    """Return the part of a page below a ``##`` heading, after empty lines, so that lines keep their numbers."""
    start = page.index(f"\n## {heading}\n") + 1
    end = page.find("\n## ", start)
    return "\n" * page.count("\n", 0, start) + page[start : end + 1 if end >= 0 else None]


def commands(block: Block) -> Iterator[tuple[int, list[str]]]:
    """Yield the commands of wdsdist that a block of shell shows: the line and the arguments of each."""
    whole = ""
    for number, line in enumerate(block.text.splitlines() if block.language == "shell" else (), block.line):
        whole += line.removesuffix("\\")
        if not line.endswith("\\"):
            if whole.startswith("wdsdist "):
                yield number, shlex.split(whole, comments=True)[1:]
            whole = ""


def program(page: str) -> str:
    """Return the Python program that a page is: each line stands where it stands in the page, as tracebacks say."""
    lines = [""] * (page.count("\n") + 1)
    lines[0] = "from wdsdist.cli import _wdsdist"
    for block in blocks(page):
        if block.reason is None and block.language == "python":
            text = block.text.splitlines()
            lines[block.line - 1 : block.line - 1 + len(text)] = text
        for number, arguments in commands(block) if block.reason is None else ():
            quick = ["--seconds", "0.05"] if arguments[0] == "bench" else []
            lines[number - 1] = f"assert not _wdsdist({arguments + quick!r}, standalone_mode=False)"
    return "\n".join(lines)


def run(text: str, folder: Path) -> str:
    """Run a program in a folder, on two ranks where it has a process group, and return what it printed."""
    script = folder / "page.py"
    script.write_text(text)
    ranks = 2 if "init_process_group" in text else 1
    done = forked.launch(script, ranks=ranks, cwd=folder) if ranks > 1 else forked.run(script, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
