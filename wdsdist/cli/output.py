"""Output of the command line: every line goes through here, so that names and messages cannot steer a terminal.

Progress is a bar on a terminal, and a line now and then elsewhere; both go to standard error.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from wdsdist._util import strict_json
from wdsdist._util.validation import counted, duration, human
from wdsdist.errors import printable

if TYPE_CHECKING:
    from wdsdist.shards.manifest import Manifest
    from wdsdist.shards.progress import ShardsProgress

_INTERVAL = 5.0
"""Seconds between lines, so that a log of an hour's packing stays readable."""
_BAR = 24
"""Characters of a bar."""


@contextlib.contextmanager
def written() -> Iterator[None]:
    """Name standard output in its errors, as on a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or "standard output"
        raise


def say(*columns: object, err: bool = False) -> None:
    """Print a line of columns, separated by tabs, with the control characters in each escaped.

    No work ends because a message on standard error cannot be written, such as to a log on a full disk.
    """
    with contextlib.suppress(OSError) if err else written():
        click.echo("\t".join(printable(str(column)) for column in columns), err=err)


def say_json(data: Any) -> None:
    """Print data as JSON, which escapes whatever is not plain ASCII."""
    with written():
        click.echo(strict_json.dumps(data, indent=1))


def described(step: Mapping[str, Any]) -> str:
    """Return one step by which a view was made, as a string.

    >>> described({"where": '"jpg.width" >= 256', "samples_before": 10_000, "samples_after": 7_500})
    'where "jpg.width" >= 256: 7,500 of 10,000 samples'
    """
    shown = []
    for name, value in step.items():
        if name in ("keys", "exclude") and isinstance(value, dict):
            shown.append(f"{name} {value.get('from')} ({counted(value.get('samples', 0), 'sample')})")
        elif name not in ("samples_before", "samples_after", "split"):
            shown.append(f"{name} {value}")
    before, after = step.get("samples_before", 0), step.get("samples_after", 0)
    return f"{', '.join(shown)}: {after:,} {'of' if after <= before else 'from'} {counted(before, 'sample')}"


def contents(manifest: Manifest) -> str:
    """Return the samples, shards and bytes of a data set, as a string."""
    samples, shards = counted(manifest.num_samples, "sample"), counted(len(manifest.counts), "shard")
    return f"{samples} in {shards}, {human(manifest.num_bytes)}"


@contextlib.contextmanager
def meter(what: str, *, quiet: bool = False) -> Iterator[Callable[[ShardsProgress], None]]:
    """Show progress while the block runs: by a bar on a terminal, by lines in a log, or not at all.

    It starts no thread, because packing forks its workers while it is shown.
    """
    if quiet:
        yield lambda state: None
        return
    is_drawn = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"  # a line can be erased
    printed, line = time.monotonic(), ""
    first: tuple[float, ShardsProgress] | None = None

    def show(state: ShardsProgress) -> None:
        nonlocal printed, first, line
        now, done, total = time.monotonic(), state.bytes_done, state.bytes
        began, before = first = first or (now, state)  # what an earlier run did must not count as speed
        seconds, fresh, samples = now - began, done - before.bytes_done, state.samples_done - before.samples_done
        parts = [] if total is None else [f"{100 * done // max(total, 1)}%"]
        for part, whole, noun in (
            (state.samples_done, state.samples, "sample"), (state.shards_done, state.shards, "shard"),
        ):  # fmt: skip
            parts.append(counted(part, noun) if whole is None else f"{part:,} of {counted(whole, noun)}")
        parts += [f"{state.left_out:,} left out"] if state.left_out else []
        parts += [] if state.damaged is None else [f"{state.damaged:,} damaged"]
        if seconds > 0 and fresh > 0:
            parts += [f"{samples / seconds:,.0f} samples/s", f"{human(fresh / seconds)}/s"]
            parts += [f"{duration((total - done) * seconds / fresh)} left"] if total and total > done else []
        line = ", ".join(parts)
        if is_drawn:
            filled = int(_BAR * done / total) if total else 0
            _draw(f"{what} {'━' * filled}{'╶' * (_BAR - filled)} {line}")
        elif now - printed >= _INTERVAL:
            say(f"{what}: {line}", err=True)
            printed, line = now, ""

    try:
        yield show
    except BaseException:
        if is_drawn:
            _draw("")  # an error is one line: half a bar above it would say nothing more
        raise
    if line and is_drawn:
        _draw(None)
    elif line:
        say(f"{what}: {line}", err=True)


def _draw(line: str | None) -> None:
    """Write a line on the terminal over the last one; ``None`` keeps the last one, and begins another."""
    width = shutil.get_terminal_size().columns
    with contextlib.suppress(OSError):
        sys.stderr.write("\n" if line is None else f"\r\x1b[2K{printable(line)[: width - 1]}")
        sys.stderr.flush()
