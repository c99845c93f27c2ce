"""Progress of a command on standard error: a progress bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from wdsdist._util.validation import counted, duration, human
from wdsdist.cli.output import say
from wdsdist.errors import printable

if TYPE_CHECKING:
    from wdsdist.shards.progress import ShardsProgress

_INTERVAL = 5.0
"""Seconds between lines, so that a log of an hour's packing stays readable."""
_BAR = 24
"""Characters of a bar."""

Show = Callable[[int, int | None, str], None]
"""Shows bytes done, of how many (``None`` if that is not known yet), and a note."""


@contextlib.contextmanager
def meter(what: str, *, quiet: bool = False) -> Iterator[Show]:
    """Show progress while the block runs: by a bar on a terminal, by lines in a log, or not at all.

    It starts no thread, because packing forks its workers while it is shown.
    """
    if quiet:
        yield lambda done, total, note: None
        return
    is_drawn = False
    if sys.stderr.isatty():
        import curses

        with contextlib.suppress(curses.error):
            curses.setupterm(fd=2)
            is_drawn = bool(curses.tigetstr("el"))  # it can erase a line
    printed, line = time.monotonic(), ""
    first: tuple[float, int] | None = None

    def show(done: int, total: int | None, note: str) -> None:
        nonlocal printed, first, line
        now = time.monotonic()
        first = first or (now, done)  # what an earlier run did must not count as speed
        line = note if total is None else f"{100 * done // max(total, 1)}%, {note}"
        seconds, fresh, left = now - first[0], done - first[1], (total or done) - done
        if seconds > 0 and fresh > 0:
            line += f", {human(fresh / seconds)}/s"
            line += f", {duration(left * seconds / fresh)} left" if left > 0 else ""
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


@contextlib.contextmanager
def shards_meter(what: str, *, quiet: bool) -> Iterator[Callable[[ShardsProgress], None]]:
    """Show the progress of work on shards: give the function to call with it."""
    with meter(what, quiet=quiet) as show:

        def show_shards(state: ShardsProgress) -> None:
            note = f"{state.shards_done:,} of {counted(state.shards, 'shard')}, {counted(state.samples_done, 'sample')}"
            damaged = "" if state.damaged is None else f", {state.damaged:,} damaged"
            show(state.bytes_done, state.bytes, note + damaged)

        yield show_shards


def _draw(line: str | None) -> None:
    """Write a line on the terminal over the last one; ``None`` keeps the last one, and begins another."""
    width = shutil.get_terminal_size().columns
    with contextlib.suppress(OSError):
        sys.stderr.write("\n" if line is None else f"\r\x1b[2K{printable(line)[: width - 1]}")
        sys.stderr.flush()
