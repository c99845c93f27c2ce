"""The page of the command line."""

from __future__ import annotations

import runpy
from itertools import chain

import click

from tests.support.pages import ROOT
from wdsdist.cli import _wdsdist


def test_the_page_of_the_command_line_has_every_command_and_option() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "docs" / "command_line.py"))
    page = tool["page"](_wdsdist)
    commands = dict(tool["commands"](_wdsdist, "wdsdist"))
    assert all(f"## {name}\n" in page for name in commands)
    options = [one for command in commands.values() for one in command.params if isinstance(one, click.Option)]
    assert all(option.opts[-1] in page for option in options if not option.hidden)


def test_every_option_says_what_it_does() -> None:
    groups = [one.commands.values() if isinstance(one, click.Group) else [one] for one in _wdsdist.commands.values()]
    options = [
        (command.name, one) for command in chain(*groups) for one in command.params if isinstance(one, click.Option)
    ]
    assert [f"{name} {one.opts[0]}" for name, one in options if not one.help] == []
