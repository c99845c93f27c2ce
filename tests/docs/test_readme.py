"""Everything that README.md shows is run as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.pages import ROOT, blocks, run

README = (ROOT / "README.md").read_text()
BLOCKS = [block.text for block in blocks(README) if block.language == "python"]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_every_python_block_runs_as_pasted(block: str, checkout: Path) -> None:
    # Two tests at once must not share a folder in /tmp.
    run(block.replace("/tmp/", f"{checkout}/"), checkout)


def test_the_first_screen_is_a_sentence_a_picture_the_installation_and_ten_lines() -> None:
    first = README.partition("\n## ")[0]
    places = [first.index(part) for part in ("**Load", "![", "pip install", "```python\n", "| you no longer")]
    assert places == sorted(places)
    assert len(BLOCKS[0].strip().splitlines()) <= 11
    assert first[: places[-1]].count("\n") <= 35


def test_the_first_two_commands_are_make_demo_and_make_test() -> None:
    commands = re.findall(r"^    (\S.*)$", re.sub(r"```.*?```", "", README, flags=re.DOTALL), re.MULTILINE)
    assert commands[:2] == ["make demo", "make test"]


def test_the_commands_on_shards_run(checkout: Path) -> None:
    shown = re.findall(r"^    wdsdist (\S+ shards.*?)(?:  +#.*)?$", README, re.MULTILINE)
    assert len(shown) == 9
    commands = ["pack examples/data/t10k shards", *(line.replace("bench ", "bench --seconds 0.05 ") for line in shown)]
    calls = [f"assert not _wdsdist({shlex.split(command)!r}, standalone_mode=False)" for command in commands]
    run("\n".join(["from wdsdist.cli import _wdsdist", *calls]), checkout)
