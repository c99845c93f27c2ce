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
    from rich.progress import Progress, TaskID

    from wdsdist.shards.progress import ShardsProgress

_INTERVAL = 5.0  # seconds between lines: a log of an hour's packing stays readable


class Meter:
    """A progress display. This one is silent."""

    def update(self, done: int, total: int | None, note: str) -> None:
        """Show that ``done`` of ``total`` bytes are done, with a note.

        ``total`` is ``None`` where it is not known yet.
        """


@contextlib.contextmanager
def meter(what: str, *, quiet: bool = False) -> Iterator[Meter]:
    """Show progress while the block runs: by a bar on a terminal, by lines in a log, or not at all."""
    if quiet:
        yield Meter()
        return
    if sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_dumb_terminal:
            with bar(what, console) as shown:
                yield shown
            return
    yield _Lines(what)


@contextlib.contextmanager
def shards_meter(what: str, *, quiet: bool) -> Iterator[Callable[[ShardsProgress], None]]:
    """Show the progress of work on shards: give the function to call with it."""
    with meter(what, quiet=quiet) as shown:

        def show(state: ShardsProgress) -> None:
            note = f"{state.shards_done:,} of {counted(state.shards, 'shard')}, {counted(state.samples_done, 'sample')}"
            shown.update(state.bytes_done, state.bytes, note)

        yield show


class _Lines(Meter):
    """Prints a line at most every few seconds, and one at the end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._printed = time.monotonic()
        self._first: tuple[float, int] | None = None

    def update(self, done: int, total: int | None, note: str) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = now, done  # what an earlier run did must not count as speed
        if done != total and now - self._printed < _INTERVAL:
            return
        self._printed = now
        share = "" if total is None else f"{100 * done // max(total, 1)}%, "
        say(f"{self._what}: {share}{note}{self._speed(now, done, total)}", err=True)

    def _speed(self, now: float, done: int, total: int | None) -> str:
        start, at_start = self._first or (now, done)
        if now <= start or done <= at_start:
            return ""
        rate = (done - at_start) / (now - start)
        left = f", {duration((total - done) / rate)} left" if total is not None and done < total else ""
        return f", {human(rate)}/s{left}"


class _Bar(Meter):
    def __init__(self, shown: Progress, task: TaskID) -> None:
        self._shown, self._task = shown, task

    def update(self, done: int, total: int | None, note: str) -> None:
        self._shown.update(self._task, completed=done, total=total, note=printable(note), refresh=True)


@contextlib.contextmanager
def bar(what: str, console: Console) -> Iterator[Meter]:
    """Show a progress bar. It starts no thread, because packing forks its workers while it is shown."""
    from rich import progress
    from rich.text import Text

    class Speed(progress.ProgressColumn):
        """Bytes per second in the units of all commands; rich's own column counts in others."""

        def render(self, task: progress.Task) -> Text:
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
        yield _Bar(shown, task)
        shown.live.transient = not shown.tasks[0].completed
