"""The form of a command: its help, its errors, and the options and arguments that several commands share."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util.validation import byte_size, check_path
from wdsdist.errors import ArgumentError, WdsdistError

if TYPE_CHECKING:
    from pathlib import Path

    from wdsdist.shards.manifest import Manifest

SHARDS = """\
SHARDS is a folder or URL with an index.json, a view, one or more .tar files, a pattern such as 'train-{000..127}.tar',
or @FILE, a list of names. Compressed shards are decompressed once per node, into the cache.
"""
_ACCESS = f"{__name__}.access"


class Command(click.Command):
    """A command whose help has examples on top and its options in groups, and whose errors name options.

    Args:
        examples: lines that can be typed.
        groups: by title, the names of parameters with blanks between them. Options in no group come first.
    """

    def __init__(
        self, *args: Any, examples: tuple[str, ...] = (), groups: dict[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.groups = groups or {}
        summary, _, rest = inspect.cleandoc(self.help or "").partition("\n\n")
        listed = "".join(f"\n  {example}" for example in examples)
        if "SHARDS is" not in rest and any(param.name == "shards" for param in self.params):
            self.epilog = SHARDS
        self.help = f"{summary}\n\n\b\nExamples:{listed}\n\n{rest}"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        for title, rows in self.grouped(ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def grouped(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return the options with their help, by the title of their group."""
        titles = {name: title for title, names in self.groups.items() for name in names.split()}
        rows: dict[str, list[tuple[str, str]]] = {"Options": [], **{title: [] for title in self.groups}}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (row := param.get_help_record(ctx)):
                rows[titles.get(param.name or "", "Options")].append(row)
        return rows

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error about an argument names its option."""
        try:
            return super().invoke(ctx)
        except WdsdistError as error:
            raise click.ClickException(self.as_typed(error)) from error

    def as_typed(self, error: WdsdistError) -> str:
        """Return an error's message, with the option of the argument at fault in front."""
        argument, message = getattr(error, "argument", ""), str(error)
        for param in self.params:
            if argument and isinstance(param, click.Option) and param.name == argument:
                typed = max(param.opts, key=len)
                is_subject = message.startswith(f"{argument} ")
                return f"{typed}{message.removeprefix(argument)}" if is_subject else f"{typed}: {message}"
        return message


def command(*examples: str, **groups: str) -> Callable[[Callable[..., None]], Command]:
    """Decorator that makes a `Command` of a function.

    Args:
        examples: lines for the top of its help.
        groups: by title, the names of the options in each group, with blanks between them: ``advanced="seed order"``.
    """
    titled = {title.replace("_", " ").capitalize(): names for title, names in groups.items()}
    return click.command(cls=Command, examples=examples, groups=titled)


def _keep_elsewhere(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta.setdefault(_ACCESS, {})["allow_elsewhere"] = value


def _keep_storage_options(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> None:
    options: dict[str, Any] = {}
    for value in values:
        name, equals, string = value.partition("=")
        if not (name and equals):
            # The value may be a secret: it is not shown.
            raise click.BadParameter("give KEY=VALUE, such as anon=true or client_kwargs.region_name=eu", ctx, param)
        *folders, last = name.split(".")
        group = options
        for folder in folders:
            group = group.setdefault(folder, {})
            if not isinstance(group, dict):
                raise click.BadParameter(f"{name} lies inside {folder}, which has a value of its own", ctx, param)
        try:
            group[last] = json.loads(string)
        except ValueError:
            group[last] = string
    ctx.meta.setdefault(_ACCESS, {})["storage_options"] = options or None


COMMON = (
    click.Option(
        ["--storage-option"],
        metavar="KEY=VALUE",
        multiple=True,
        expose_value=False,
        hidden=True,
        callback=_keep_storage_options,
        help="Option of the store's client: anon=true, profile=NAME.",
    ),
    click.Option(
        ["--allow-elsewhere"],
        is_flag=True,
        expose_value=False,
        hidden=True,
        callback=_keep_elsewhere,
        help="Let an index.json name shards outside its folder.",
    ),
)
"""Options of every command that opens data sets, as `wdsdist.open` takes them; ``wdsdist --help`` lists them once."""


def access(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options by which data sets are opened, `COMMON`."""
    params = command.__dict__.setdefault("__click_params__", [])
    params[:0] = reversed(COMMON)
    return command


def how_to_open() -> dict[str, Any]:
    """Return the options of `access` as `wdsdist.open` takes them: ``allow_elsewhere``, ``storage_options``."""
    return dict(click.get_current_context().meta[_ACCESS])


def opened(*shards: str) -> Manifest:
    """Open the data set that SHARDS on the command line mean, as the options of `access` say."""
    from wdsdist.shards.open import open as open_shards

    return open_shards(shards[0] if len(shards) == 1 else shards, **how_to_open())


def field_list(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Read the value of ``--fields``: extensions with commas between them.

    >>> from unittest.mock import Mock
    >>> field_list(Mock(), Mock(), "jpg;png, cls")
    ('jpg;png', 'cls')
    """
    return None if value is None else tuple(name.strip() for name in value.split(","))


def folder(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    """Read the value of an option that names a folder; an empty one, such as an unset variable, is an error."""
    try:
        return None if value is None else check_path(param.opts[0], value)
    except ArgumentError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def byte_count(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Read the value of an option: ``64MiB``, ``1GB`` or a plain number of bytes.

    >>> from unittest.mock import Mock
    >>> byte_count(Mock(), Mock(), "1.5KiB")
    1536
    """
    try:
        return None if value is None else byte_size(value)
    except ArgumentError as error:
        raise click.BadParameter(str(error), ctx, param) from None


key_rule = click.option(
    "--key",
    metavar="RULE",
    default="first-dot",
    show_default=True,
    help="Where keys end in file names: first-dot, last-dot, or a regular expression of the key.",
)
on_damage = click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="How to handle a damaged sample or tar: stop, or leave it out and list it in a report.",
)
fields_option = click.option(
    "--fields", metavar="LIST", callback=field_list, help="Only these fields, such as 'jpg;png,cls'.  [default: all]"
)
cache_dir_option = click.option(
    "--cache-dir", metavar="DIR", callback=folder, help="The cache folder.  [default: in the user's cache]"
)
workers_option = click.option("--workers", type=int, metavar="N", help="Processes that read.  [default: one per core]")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print warnings and errors only.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
