"""Write docs/command-line.md: the commands of wdsdist with their arguments and options, made from the code.

``make docs`` runs it before it builds the site. The page is not committed.
"""

from __future__ import annotations

import html
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from wdsdist.cli import _wdsdist  # noqa: E402
from wdsdist.cli.options import Command  # noqa: E402

PAGE = ROOT / "docs" / "command-line.md"

INTRODUCTION = """\
# Command line

All commands of `wdsdist` with their options. The page is made from the code by `make docs`; `wdsdist COMMAND --help`
prints the same. The exit status is 0; 1 if `verify` found damage that it did not repair; 2 for an error; 130 after
Ctrl-C; 141 if the reader of its output has gone.
"""


def commands(group: click.Group, before: str) -> Iterator[tuple[str, Command]]:
    """Yield the commands of a group, and of the groups in it, with their whole names."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{before} {name}")
        elif isinstance(command, Command):
            yield f"{before} {name}", command


def prose(text: str) -> str:
    """Return words of a help text as Markdown, where nothing but code between backticks is markup."""
    parts = text.replace("|", "\\|").split("`")
    plain = [re.sub(r"([*_[])", r"\\\1", html.escape(part, quote=False)) for part in parts[::2]]
    return "`".join(part for pair in zip(plain, [*parts[1::2], None], strict=True) for part in pair if part is not None)


def section(name: str, command: Command) -> str:
    """Return the section of one command."""
    context = click.Context(command, info_name=name)
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"## {name}", "", f"`{name} {usage}`", ""]
    for paragraph in paragraphs:
        if paragraph.startswith("\b\n"):  # examples
            lines += ["```shell", *map(str.strip, paragraph.splitlines()[2:]), "```", ""]
        elif paragraph:
            lines += [prose(" ".join(paragraph.split())), ""]
    for title, rows in command.grouped(context).items():
        lines += [f"| {title} | |", "| --- | --- |"]
        for names, about in rows:
            lines.append(f"| `{names.replace('|', chr(92) + '|')}` | {prose(' '.join(about.split()))} |")
        lines.append("")
    return "\n".join(lines)


def page(group: click.Group) -> str:
    """Return the page."""
    found = dict(commands(group, "wdsdist"))
    table = [
        f"| [`{name}`](#{name.replace(' ', '-')}) | {prose(command.get_short_help_str(200))} |"
        for name, command in found.items()
    ]
    shards = prose(" ".join((group.epilog or "").split()))
    parts = [INTRODUCTION, f"{shards}\n", "\n".join(["| command | |", "| --- | --- |", *table, ""])]
    return "\n".join([*parts, *(section(name, command) for name, command in found.items())])


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(_wdsdist), encoding="utf-8")


if __name__ == "__main__":
    main()
