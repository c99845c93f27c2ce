"""The page of the command line."""

from __future__ import annotations

import runpy

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
