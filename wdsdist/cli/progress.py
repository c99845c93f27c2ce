"""Progress of a command on standard error: a progress bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from wdsdist._util.validation import duration, human
from wdsdist.cli.output import say
from wdsdist.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

    from wdsdist.shards.progress import ShardsProgress

_INTERVAL = 5.0  # seconds between lines: a log of an hour's packing stays readable


class Meter:
    """A progress display, active within a ``with`` block. This one is silent."""

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, done: int, total: int | None, note: str) -> None:
        """Show that ``done`` of ``total`` bytes are done, with a note.

        ``total`` is ``None`` where it is not known yet.
        """


def meter(what: str, *, quiet: bool = False) -> Meter:
    """Return a progress bar for a terminal, lines for a log, or a silent meter."""
    if quiet:
        return Meter()
    if sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True)
        if not console.is_dumb_terminal:
            return _Bar(what, console)
    return _Lines(what)


@contextlib.contextmanager
def shards_meter(what: str, *, quiet: bool) -> Iterator[Callable[[ShardsProgress], None]]:
    """Show the progress of work on shards: give the function to call with it."""
    with meter(what, quiet=quiet) as shown:

        def show(state: ShardsProgress) -> None:
            note = f"{state.shards_done:,} of {state.shards:,} shards, {state.samples_done:,} samples"
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
    """A progress bar. It starts no thread, because packing forks its workers while it is shown."""

    def __init__(self, what: str, console: Console) -> None:
        from rich import progress
        from rich.text import Text

        class Speed(progress.ProgressColumn):
            """Bytes per second in the units of all commands; rich's own column counts in others."""

            def render(self, task: progress.Task) -> Text:
                speed = task.finished_speed or task.speed
                return Text("?" if speed is None else f"{human(speed)}/s")

        self._progress = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[note]}", markup=False),
            Speed(),
            progress.TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
        )
        self._task = self._progress.add_task(what, total=None, note="")

    def __enter__(self) -> Meter:
        self._progress.start()
        return self

    def update(self, done: int, total: int | None, note: str) -> None:
        self._progress.update(self._task, completed=done, total=total, note=printable(note), refresh=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An error is one line; half a bar above it would say nothing more. A bar that never moved says nothing at all.
        if kind is not None or not self._progress.tasks[0].completed:
            self._progress.live.transient = True
        self._progress.stop()
