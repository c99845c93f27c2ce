"""Progress of a command on standard error: a progress bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from wdsdist._util.validation import counted, duration, human
from wdsdist.cli.output import say
from wdsdist.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Task

    from wdsdist.shards.progress import ShardsProgress

_INTERVAL = 5.0  # seconds between lines: a log of an hour's packing stays readable

Show = Callable[[int, int | None, str], None]
"""Shows bytes done, of how many (``None`` where that is not known yet), and a note."""


@contextlib.contextmanager
def meter(what: str, *, quiet: bool = False) -> Iterator[Show]:
    """Show progress while the block runs: by a bar on a terminal, by lines in a log, or not at all."""
    if quiet:
        yield lambda done, total, note: None
        return
    if sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_dumb_terminal:
            with bar(what, console) as show:
                yield show
            return
    with _lines(what) as show:
        yield show


@contextlib.contextmanager
def shards_meter(what: str, *, quiet: bool) -> Iterator[Callable[[ShardsProgress], None]]:
    """Show the progress of work on shards: give the function to call with it."""
    with meter(what, quiet=quiet) as show:

        def show_shards(state: ShardsProgress) -> None:
            note = f"{state.shards_done:,} of {counted(state.shards, 'shard')}, {counted(state.samples_done, 'sample')}"
            damaged = "" if state.damaged is None else f", {state.damaged:,} damaged"
            show(state.bytes_done, state.bytes, note + damaged)

        yield show_shards


@contextlib.contextmanager
def _lines(what: str) -> Iterator[Show]:
    """Print a line every few seconds, and the last one at the end."""
    printed = time.monotonic()
    first: tuple[float, int] | None = None
    waiting = ""

    def show(done: int, total: int | None, note: str) -> None:
        nonlocal printed, first, waiting
        now = time.monotonic()
        first = first or (now, done)  # what an earlier run did must not count as speed
        share = "" if total is None else f"{100 * done // max(total, 1)}%, "
        waiting = f"{what}: {share}{note}{_speed(now - first[0], done - first[1], (total or done) - done)}"
        if now - printed >= _INTERVAL:
            say(waiting, err=True)
            printed, waiting = now, ""

    yield show
    if waiting:
        say(waiting, err=True)


def _speed(seconds: float, done: int, left: int) -> str:
    """Return bytes per second, and the time that the bytes which are left will take at that speed, as text."""
    if seconds <= 0 or done <= 0:
        return ""
    rate = done / seconds
    return f", {human(rate)}/s" + (f", {duration(left / rate)} left" if left > 0 else "")


@contextlib.contextmanager
def bar(what: str, console: Console) -> Iterator[Show]:
    """Show a progress bar. It starts no thread, because packing forks its workers while it is shown."""
    from rich import progress
    from rich.text import Text

    class Speed(progress.ProgressColumn):
        """Bytes per second in the units of all commands; rich's own column counts in others."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("?" if speed is None else f"{human(speed)}/s")

    shown = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False),
        Speed(),
        progress.TimeRemainingColumn(),
        console=console,
        auto_refresh=False,
    )
    task = shown.add_task(what, total=None, note="")
    # An error is one line; half a bar above it would say nothing more. A bar that never moved says nothing at all.
    shown.live.transient = True
    with shown:
        yield lambda done, total, note: shown.update(
            task, completed=done, total=total, note=printable(note), refresh=True
        )
        shown.live.transient = not shown.tasks[0].completed
