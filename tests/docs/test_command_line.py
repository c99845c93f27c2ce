"""The page of the command line."""

from __future__ import annotations

import runpy
from itertools import chain

import click

from tests.support.pages import ROOT
from wdsdist.cli import _wdsdist


def test_the_page_of_the_command_line_shows_the_commands_and_options_as_they_are() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "docs" / "command_line.py"))
    made = tool["page"](_wdsdist)
    assert made == (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8"), (
        "run `python tools/docs/command_line.py`, as `make docs` does"
    )
    assert all(f"## wdsdist {name}" in made for name in _wdsdist.commands)


def test_every_option_says_what_it_does() -> None:
    groups = [one.commands.values() if isinstance(one, click.Group) else [one] for one in _wdsdist.commands.values()]
    options = [
        (command.name, one) for command in chain(*groups) for one in command.params if isinstance(one, click.Option)
    ]
    assert [f"{name} {one.opts[0]}" for name, one in options if not one.help] == []
