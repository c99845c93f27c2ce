"""The command line: parse arguments, call the library, print its results. It never imports torch or webdataset."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

import wdsdist
from wdsdist.cli.bench import bench
from wdsdist.cli.cache import cache
from wdsdist.cli.columns import columns
from wdsdist.cli.index import index
from wdsdist.cli.info import info
from wdsdist.cli.ls import cat, ls
from wdsdist.cli.options import COMMON, SHARDS
from wdsdist.cli.output import say, written
from wdsdist.cli.pack import pack
from wdsdist.cli.plan import plan
from wdsdist.cli.select import select, split
from wdsdist.cli.verify import verify
from wdsdist.cli.view import show, view
from wdsdist.errors import WdsdistError, printable

__all__ = ["main"]

# Exit statuses. 1 means that the answer is no: `verify` found damage.
_FAILED = 2
_BROKEN_PIPE = 128 + 13  # as shells report SIGPIPE
_HELP: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""The exception of newer releases of click for a group without a command: its message is the help."""
_LONGEST_END = 2
"""Seconds that a worker has to end."""


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as batch systems send it: it ends a command as Ctrl-C does, so that no temporary file stays."""


class _Ended(SystemExit):
    """The same in a worker, which prints nothing about it."""


class _Group(click.Group):
    """A command group that turns errors into one line and an exit status."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with _one_line_errors(), written():  # --help and --version print here
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _one_line_errors(ctx):
            result = super().invoke(ctx)
            with written():
                sys.stdout.flush()  # a reader that has gone away is expected here
            return result


@contextlib.contextmanager
def _one_line_errors(ctx: click.Context | None = None) -> Iterator[None]:
    """Turn errors into one line and an exit status."""
    try:
        yield
    except _HELP:
        raise
    except (click.ClickException, WdsdistError) as error:
        _fail(_message(error))
    except (KeyboardInterrupt, _Ended) as interrupt:
        continues = ctx is not None and ctx.invoked_subcommand in ("pack", "columns", "cache")
        say(f"wdsdist: interrupted{': run the same command again to continue' if continues else ''}", err=True)
        number = signal.SIGTERM if isinstance(interrupt, _Terminated | _Ended) else signal.SIGINT
        raise click.exceptions.Exit(128 + number) from None
    except BrokenPipeError:  # as `| head` leaves us
        raise click.exceptions.Exit(_BROKEN_PIPE) from None
    except MemoryError as error:
        _fail(": ".join(part for part in ("there is too little memory", str(error)) if part))
    except OSError as error:
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))


def _message(error: click.ClickException | WdsdistError) -> str:
    """Return the message of an error, for a usage error with the option at fault, or the help to read."""
    if not isinstance(error, click.UsageError):
        return str(error)
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Option) and error.message:
        option = max(error.param.opts, key=len)
        problem = error.message.rstrip(".")
        return problem if problem.startswith(option) else f"{option}: {problem}"
    problem = re.sub(r"\. \(?Did you mean( one of:)? ", ": did you mean ", error.format_message().rstrip(".)"))
    path = error.ctx.command_path if error.ctx else "wdsdist"
    return f"{problem[:1].lower()}{problem[1:]}{' See' if problem.endswith('?') else ': see'} `{path} --help`"


def _fail(message: str) -> NoReturn:
    say(f"wdsdist: error: {' '.join(printable(message, keep=chr(10)).splitlines())}", err=True)
    raise click.exceptions.Exit(_FAILED) from None


@click.group(
    cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}
)
@click.version_option(wdsdist.__version__, prog_name="wdsdist")
def _wdsdist() -> None:
    """Pack data sets into WebDataset shards, and inspect shards.

    \b
    Examples:
      wdsdist pack photos shards --class-folders
      wdsdist view shards
    """


_wdsdist.epilog = f"""\
{SHARDS}

Every command that opens a data set also takes these options:

\b
{"".join(f"  {option.opts[0]:<19}{option.help}{chr(10)}" for option in COMMON)}"""
for _command in (pack, index, columns, select, split, info, ls, cat, show, view, verify, plan, bench, cache):
    _wdsdist.add_command(_command)


def _terminate(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends what does not heed the first
    raise _Terminated


def _end_worker(*_: object) -> NoReturn:
    # Batch systems signal all processes. A task removes what it decompressed or fetched; its pool would continue.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(_LONGEST_END)
    raise _Ended(128 + signal.SIGTERM)


def _as_stored(error: UnicodeError) -> tuple[str | bytes, int]:
    """Encode the bytes of a key that is not UTF-8 as they are; escape letters that the output's encoding lacks."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


def main() -> None:
    """Run the command line on the arguments of this process, and exit."""
    signal.signal(signal.SIGTERM, _terminate)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, _end_worker))
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # as `>&-` leaves it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("wdsdist", _as_stored)
        sys.stdout.reconfigure(errors="wdsdist")
    try:
        _wdsdist(prog_name="wdsdist")
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # Python would write it again at exit, and end with another status
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
