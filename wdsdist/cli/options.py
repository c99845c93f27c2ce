"""The form of a command: its help, its errors, and the options and arguments that several commands share."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import logging
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import augment_usage_errors

from wdsdist import errors
from wdsdist._util.validation import check_bytes, check_path
from wdsdist.cli.output import say
from wdsdist.errors import ArgumentError, WdsdistError

if TYPE_CHECKING:
    from wdsdist.batching.values import Batches
    from wdsdist.shards.manifest import Manifest

SHARDS = """\
SHARDS is a folder or URL with an index.json, a view, one or more .tar files, or a pattern such as
'train-{000..127}.tar'. Compressed shards are decompressed once per node, into the cache.
"""
_ACCESS = f"{__name__}.access"


class _Echo(logging.Handler):
    """Prints log messages of the library to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"wdsdist: {record.getMessage()}", err=True)


class Command(click.Command):
    """A command whose help has examples on top and its options in groups, and whose errors and warnings name options.

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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments. A usage error names the help of this command."""
        with augment_usage_errors(ctx):
            return super().parse_args(ctx, args)

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
        """Run the command. An error about an argument begins with the option of this name."""
        logger, echo = logging.getLogger("wdsdist"), _Echo()
        logger.addHandler(echo)
        before, errors.spelling = errors.spelling, self.spelled
        try:
            return super().invoke(ctx)
        except WdsdistError as error:
            argument, message = getattr(error, "argument", ""), str(error)
            if (param := self._option(argument)) is not None:
                option = max(param.opts, key=len)
                if message.startswith(f"{argument} "):
                    message = f"{option}{message.removeprefix(argument)}"
                elif f" {option}" not in message:
                    message = f"{option}: {message}"
            raise click.ClickException(message) from error
        finally:
            errors.spelling = before
            logger.removeHandler(echo)

    def spelled(self, argument: str, *value: Any) -> str:
        """Return an argument as an option of this command, ``--on-error skip``; without such an option as in Python."""
        if (param := self._option(argument)) is None:
            return errors.in_python(argument, *value)
        option, words = max(param.opts, key=len), list(map(str, value))
        if value and isinstance(value[0], bool):
            return option if value[0] else param.secondary_opts[0]
        if value and isinstance(value[0], dict):  # columns={'image': 'jpg'}
            words = [f"{name}={content}" for name, content in value[0].items()]
        return shlex.join([option, *words])

    def _option(self, argument: str) -> click.Option | None:
        options = (param for param in self.params if isinstance(param, click.Option))
        return next((option for option in options if option.name == argument), None)


def command(*examples: str, **groups: str) -> Callable[[Callable[..., None]], Command]:
    """Decorator that makes a `Command` of a function.

    Args:
        examples: lines for the top of its help.
        groups: by title, the names of the options in each group, with blanks between them: ``advanced="seed order"``.
    """
    titled = {title.replace("_", " ").capitalize(): names for title, names in groups.items()}
    return click.command(cls=Command, examples=examples, groups=titled)


def parsed(read: Callable[[str], Any]) -> Callable[..., Any]:
    """Return the callback of an option whose value is parsed by a function; an error of it names the option.

    >>> from unittest.mock import Mock
    >>> byte_count(Mock(), Mock(), "1.5KiB"), field_list(Mock(), Mock(), "jpg;png, cls")
    (1536, ('jpg;png', 'cls'))
    """

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        try:
            return None if value is None else read(value)
        except (ArgumentError, ValueError) as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return callback


byte_count = parsed(functools.partial(check_bytes, "SIZE"))
field_list = parsed(lambda value: tuple(name.strip() for name in value.split(",")))


def _batches(value: str) -> Batches:
    """Parse a value of `wdsdist.batching` as Python has it, of literals alone.

    >>> _batches("TokenBudget(8192, length='txt.bytes')")
    TokenBudget(tokens=8192, length='txt.bytes', max_samples=None, cost='linear', oversize='error', pad=0)
    """
    from wdsdist import batching

    try:
        call = ast.parse(value.strip().removeprefix("batching."), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError(f"{value!r} is not a call")
        kind = call.func.id
        if kind not in batching.__all__:
            raise ValueError(f"{kind!r} is not one of {', '.join(batching.__all__)}")
        options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        batches: Batches = getattr(batching, kind)(*map(ast.literal_eval, call.args), **options)
    except (ValueError, TypeError, SyntaxError, RecursionError) as error:
        example = "write it as in Python: 'TokenBudget(65_536, length=\"input_ids.tokens\")'"
        raise ValueError(f"{error}: {example}") from None
    return batches


number_option = functools.partial(click.option, type=int, metavar="N")
size_option = functools.partial(click.option, metavar="SIZE", callback=byte_count)
cache_dir_option = click.option(
    "--cache-dir",
    metavar="DIR",
    callback=parsed(functools.partial(check_path, "the folder")),
    help="The cache folder.  [default: in the user's cache]",
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print warnings and errors only.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

ADVANCED = "epoch order seed shuffle_window"
"""The names of `epoch_options` that few people need."""
_EPOCH = (
    number_option("--ranks", default=1, help="Ranks of the job."),
    number_option("--ranks-per-node", default=8, help="Ranks per node."),
    number_option("--batch-size", default=64, help="Samples per batch on one rank."),
    click.option(
        "--batches",
        metavar="VALUE",
        callback=parsed(_batches),
        help="Batches of variable lengths, such as 'TokenBudget(65536, length=\"txt.bytes\")', a value of "
        "wdsdist.batching.",
    ),
    number_option("--epoch", default=0, help="Number of the epoch."),
    click.option(
        "--order",
        type=click.Choice(["shard", "sampler"]),
        default="shard",
        help="Order of the samples, as in StreamingDataset.",
    ),
    number_option("--seed", default=0, help="Seed of the order."),
    number_option("--shuffle-window", help="Samples shuffled together.  [default: 16 shards' worth]"),
)


def epoch_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options of an epoch, with the names and defaults of data set and loader."""
    for option in reversed(_EPOCH):
        command = option(command)
    return command


def _keep_storage_options(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> None:
    options: dict[str, Any] = {}
    for option in values:
        name, equals, string = option.partition("=")
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
            value = json.loads(string)
        except ValueError:
            value = string
        is_text = last in ("key", "secret", "token") and not isinstance(value, str)
        group[last] = string if is_text else value
    ctx.meta.setdefault(_ACCESS, {})["storage_options"] = options or None


COMMON = (
    click.Option(
        ["--storage-option"], metavar="KEY=VALUE", multiple=True, expose_value=False, hidden=True,
        callback=_keep_storage_options, help="Option of the store's client: anon=true, profile=NAME.",
    ),
    click.Option(
        ["--allow-elsewhere"], is_flag=True, expose_value=False, hidden=True,
        callback=lambda ctx, _, value: ctx.meta.setdefault(_ACCESS, {}).update(allow_elsewhere=value),
        help="Let an index.json name shards outside its folder.",
    ),
)  # fmt: skip
"""Options of every command that opens data sets, as `wdsdist.open` takes them; ``wdsdist --help`` lists them once."""


def access(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the options by which data sets are opened, `COMMON`."""
    params = command.__dict__.setdefault("__click_params__", [])
    params[:0] = reversed(COMMON)
    return command


def of_shards(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that adds the argument SHARDS, and the options by which data sets are opened."""
    return click.argument("shards", nargs=-1, required=True)(access(command))


def how_to_open() -> dict[str, Any]:
    """Return the options of `access` as `wdsdist.open` takes them: ``allow_elsewhere``, ``storage_options``."""
    return dict(click.get_current_context().meta[_ACCESS])


def opened(*shards: str) -> Manifest:
    """Open the data set that SHARDS on the command line mean, as the options of `access` say."""
    from wdsdist.shards.open import open as open_shards

    return open_shards(shards[0] if len(shards) == 1 else shards, **how_to_open())
