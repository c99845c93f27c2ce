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


@contextlib.contextmanager
def meter(what: str, *, quiet: bool = False) -> Iterator[Callable[[ShardsProgress], None]]:
    """Show progress while the block runs: by a bar on a terminal, by lines in a log, or not at all.

    It starts no thread, because packing forks its workers while it is shown.
    """
    if quiet:
        yield lambda state: None
        return
    is_drawn = False
    if sys.stderr.isatty():
        import curses

        with contextlib.suppress(curses.error):
            curses.setupterm(fd=2)
            is_drawn = bool(curses.tigetstr("el"))  # it can erase a line
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
