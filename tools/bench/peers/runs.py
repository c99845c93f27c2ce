"""Rounds of trials: every system in turn, each trial in a fresh process with a time limit."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.kinds import Kind, Tally
from peers.trial import PREFIX, Figures, Order

HERE = Path(__file__).parent
MISSING = ("ModuleNotFoundError", "ImportError")
"""How the errors of systems begin that are not installed."""
_GRACE = 20.0


@dataclass(slots=True)
class Cell:
    """All rounds of one measurement: a figure for each system and round, or why there is none."""

    measure: str
    kind: str
    workers: int
    rounds: list[dict[str, Figures]] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Data:
    """A kind's files, and where systems keep what they make of them."""

    kind: Kind
    files: Path
    tally: Tally

    def packed(self, system: str) -> Path:
        return self.files.parent / system

    def order(self, measure: str, system: str, workers: int, seconds: float, epochs: int = 1) -> Order:
        expected = (self.tally.samples, self.tally.size, self.tally.checksum)
        where = str(self.packed(system))
        return Order(measure, system, self.kind.name, str(self.files), where, workers, expected, seconds, epochs)


class TrialError(Exception):
    """A trial gave no figures; the message is the last line that it wrote, or says that its time was up."""

    @property
    def is_of_install(self) -> bool:
        """Whether the system, or a library that it needs, is not installed."""
        return str(self).startswith(MISSING)


def run_trial(python: str, order: Order, limit: float) -> Figures:
    """Run a trial in a process group of its own; end that group, whatever became of it."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        command = [python, "-m", "peers.trial", order.text()]
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment(), start_new_session=True)
        try:
            process.wait(limit)
            ended = f"exit status {process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"no end within {limit:.0f} s"
        finally:
            end_group(process)
        output.seek(0)
        errors.seek(0)
        for line in output.read().splitlines():
            if line.startswith(PREFIX):
                figures: Figures = json.loads(line.removeprefix(PREFIX))
                return figures
        raise TrialError(last_line(errors.read(), ended))


def last_line(errors: str, ended: str) -> str:
    """Return the last line of what a process wrote that names an error, or how it ended."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line.split(":")[0]]
    return (named or lines or [ended])[-1] if not ended.startswith("no end") else ended


def environment() -> dict[str, str]:
    """Return the environment variables of a trial. Python keeps bytecode in it, as it does for installed packages."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found |= {"PYTHONPATH": os.pathsep.join([str(HERE.parents[2]), str(HERE.parent)])}
    found |= {"HF_HUB_OFFLINE": "1", "LITDATA_DISABLE_VERSION_CHECK": "1", "PYTHONHASHSEED": "0"}
    # Each system's workers have a core each; a thread pool in every one would fight over them.
    return found | {"OMP_NUM_THREADS": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}


def end_group(process: subprocess.Popen[Any]) -> None:
    """End a process and all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run_cell(
    python: str,
    orders: Sequence[Order],
    *,
    trials: int,
    limit: float,
    say: Callable[[str], None],
) -> Cell:
    """Run every order in turn, ``trials`` times; a system that fails twice is not tried again."""
    failures: Counter[str] = Counter()
    cell = Cell(orders[0].measure, orders[0].kind, orders[0].workers)
    for number in range(trials):
        found: dict[str, Figures] = {}
        # Rotated, so that no system always runs after the same one.
        for order in [*orders[number % len(orders) :], *orders[: number % len(orders)]]:
            if failures[order.system] > 1:
                continue
            try:
                if order.measure == "resume" and not any(order.system in done for done in cell.rounds):
                    run_trial(python, dataclasses.replace(order, measure="save"), limit)
                found[order.system] = run_trial(python, order, limit)
                say(f"{order.measure} {order.kind} {order.workers}w {order.system}: {found[order.system]}")
            except TrialError as error:
                failures[order.system] += 2 if error.is_of_install else 1
                cell.errors[order.system] = str(error)
                what = "is left out" if error.is_of_install else "FAILED"
                say(f"{order.measure} {order.kind} {order.workers}w {order.system} {what}: {error}")
        cell.rounds.append(found)
    return cell
