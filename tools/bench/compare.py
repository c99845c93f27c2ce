"""How fast wdsdist is beside what a user would pick instead, on the same data, each in its best documented settings.

Makes the data (once), packs them with each system, and runs the systems in turn, each trial in a fresh process: a
warm-up epoch, then whole epochs on a warm page cache with persistent workers. Every sample is touched by the consumer
in every system, and its count, bytes and checksum must be right. Measured are, by ``--measure``:

- *rate*: samples/s that reach the main process; *first*: from making data set and loader to the first batch, in
  a fresh process after the imports; *pack*: seconds, and bytes on disk; *memory*: peak private memory of a worker
  beyond an idle one; *resume*: from a state at 90 % of an epoch to the next batch;
- *flat*: the same memory, epoch by epoch, wdsdist only, with a million samples.

    make bench
    python tools/bench/compare.py --kind jpeg70k --workers 0 4 --systems wdsdist webdataset --trials 5

The results are in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from peers import data, flat, report  # noqa: E402 - found only by the line above
from peers.kinds import KINDS  # noqa: E402 - found only by the line above
from peers.registry import SYSTEMS, THREADED, UNPACKED, system  # noqa: E402 - found only by the line above
from peers.runs import Cell, Data, TrialError, run_cell, run_trial  # noqa: E402 - found only by the line above

DEFAULT_MEASURES = ("rate", "first", "pack", "memory", "resume", "flat")
# Which kinds a measurement is made on: more would take hours and say the same.
KINDS_OF = {
    "first": ("jpeg70k",),
    "pack": ("jpeg70k", "png2k", "tokens"),
    "memory": ("jpeg70k", "train"),
    "resume": ("jpeg70k",),
}


def options() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", default=list(KINDS), choices=KINDS, help="kinds of data")
    parser.add_argument("--measure", nargs="+", default=list(DEFAULT_MEASURES), choices=report.MEASURES)
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2, 4], help="rates are measured for each")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--trials", type=int, default=5, help="rounds")
    parser.add_argument("--samples", type=int, help="by default each kind's own number")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a rate is measured, at least")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a trial may take")
    parser.add_argument("--data", type=Path, default=Path("bench-data"), help="folder for the data, made if needed")
    parser.add_argument("--python", type=os.path.abspath, default=sys.executable, help="the Python that trials run in")
    parser.add_argument("--flat-samples", type=int, default=1_000_000)
    parser.add_argument("--flat-epochs", type=int, default=20)
    parser.add_argument("--json", type=Path, help="where to write all figures")
    parser.add_argument("--keep", action="store_true", help="keep what --json holds of cells that are not measured now")
    parser.add_argument("--chart", type=Path, help="where to draw the ratios, .png or .svg")
    parser.add_argument("--markdown", type=Path, help="where to write the page; text between its markers is kept")
    return parser.parse_args()


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def plan(chosen: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Yield (measure, kind, workers) of every cell."""
    most = max(chosen.workers)
    for measure in chosen.measure:
        for kind in chosen.kind if measure != "flat" else ():
            if kind not in KINDS_OF.get(measure, KINDS):
                continue
            # Decoding is what the training path costs: one number of workers says it.
            several = measure == "rate" and KINDS[kind].form != "images"
            for workers in chosen.workers if several else [most]:
                yield measure, kind, workers


def systems_of(chosen: argparse.Namespace, measure: str, kind: str) -> list[str]:
    """Return the systems that have such a cell."""
    skipped = set() if measure == "rate" and KINDS[kind].form == "images" else {"bare"}
    skipped |= {"pack": UNPACKED, "memory": THREADED}.get(measure, set())
    return [name for name in chosen.systems if name not in skipped]


def prepare(chosen: argparse.Namespace, kind: str, failed: dict[tuple[str, str], str]) -> Data:
    """Make a kind's files, and pack them with every system that has not."""
    samples = chosen.samples or KINDS[kind].samples
    say(f"data: {kind}, {samples:,} samples")
    files, tally = data.make(KINDS[kind], chosen.data.resolve(), samples)
    made = Data(KINDS[kind], files, tally)
    for name in chosen.systems:
        done = files.parent / f".packed-{name}"
        if done.exists() or name in UNPACKED:
            continue
        try:
            figures = run_trial(chosen.python, made.order("pack", name, 0, 0), chosen.limit * 4)
            say(f"packed {kind} with {name}: {figures}")
            done.touch()
        except TrialError as error:
            failed[name, kind] = str(error) if error.is_of_install else f"pack: {error}"
            say(f"packing {kind} with {name} {'is left out' if error.is_of_install else 'FAILED'}: {error}")
    return made


def run_one(
    chosen: argparse.Namespace, made: Data, cell: tuple[str, str, int], failed: dict[tuple[str, str], str]
) -> Cell:
    """Run a cell's rounds."""
    measure, kind, workers = cell
    names = systems_of(chosen, measure, kind)
    broken = {name: failed[name, kind] for name in names if (name, kind) in failed}
    orders = [made.order(measure, name, workers, chosen.seconds, 3) for name in names if name not in broken]
    if measure == "pack":  # beside what the other measurements read
        orders = [dataclasses.replace(order, packed=f"{order.packed}.again") for order in orders]
    if not orders:
        return Cell(measure, kind, workers, [], broken)
    done = run_cell(chosen.python, orders, trials=chosen.trials, limit=chosen.limit, say=say)
    done.errors.update(broken)
    return done


def facts(chosen: argparse.Namespace) -> dict[str, str]:
    """Return the machine, the date and the versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    names = sorted({name for key in chosen.systems for name in system(key).distributions} | {"torch", "numpy"})
    kernel = ".".join(platform.release().split(".")[:2])
    return {
        "machine": f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {kernel}",
        "date": datetime.date.today().isoformat(),
        "versions": f"Python {platform.python_version()}, {_versions(chosen.python, names)}",
        "data": "local disk, page cache warm; batches of 64; pin_memory off; persistent workers; prefetch_factor 2",
        "rounds": f"{chosen.trials}, systems in turn, every trial in a fresh process; ratios are paired by round",
    }


def _versions(python: str, names: list[str]) -> str:
    """Return the versions of distributions in the trials' environment."""
    script = (
        "import sys, importlib.metadata as m\n"
        "have = {d.name.lower(): d.version for d in m.distributions()}\n"
        "print(', '.join(f'{n} {have[n]}' for n in sys.argv[1:] if n in have))"
    )
    names = [name for name in names if name != "wdsdist"]
    found = subprocess.run([python, "-c", script, *names], capture_output=True, text=True, check=True).stdout.strip()
    try:
        return f"{found}, wdsdist {importlib.metadata.version('wdsdist')} (this checkout)"
    except importlib.metadata.PackageNotFoundError:
        return f"{found}, wdsdist of this checkout"


def kept(chosen: argparse.Namespace, measured: Sequence[Cell]) -> list[Cell]:
    """Return the cells of an earlier run on this machine that were not measured now."""
    if not (chosen.keep and chosen.json and chosen.json.exists()):
        return []
    earlier = json.loads(chosen.json.read_text())
    for fact in ("machine", "versions"):
        if earlier["facts"][fact] != facts(chosen)[fact]:
            raise SystemExit(f"--keep: {chosen.json} is of other {fact}: {earlier['facts'][fact]}")
    again = {(cell.measure, cell.kind, cell.workers) for cell in measured}
    cells = [Cell(**cell) for cell in earlier["cells"]]
    return [cell for cell in cells if (cell.measure, cell.kind, cell.workers) not in again]


def write(chosen: argparse.Namespace, cells: list[Cell]) -> None:
    """Write what was asked for; called after every cell, so that a run that is cut off keeps what it has."""
    known = facts(chosen)
    cells = sorted([*kept(chosen, cells), *cells], key=_place)
    if chosen.json:
        chosen.json.write_text(json.dumps({"facts": known, "cells": [dataclasses.asdict(c) for c in cells]}, indent=1))
    chart = None
    if chosen.chart:
        report.draw(cells, chosen.chart)
        chart = os.path.relpath(chosen.chart, chosen.markdown.parent) if chosen.markdown else None
        chart = chart if chosen.chart.exists() else None
    before = chosen.markdown.read_text() if chosen.markdown and chosen.markdown.exists() else ""
    page = report.markdown(known, cells, before=before, chart=chart)
    if chosen.markdown:
        chosen.markdown.write_text(page)
    else:
        print(page)


def _place(cell: Cell) -> tuple[int, int, int]:
    return list(report.MEASURES).index(cell.measure), list(KINDS).index(cell.kind), cell.workers


def main() -> None:
    """Run what the command line asks for."""
    chosen = options()
    failed: dict[tuple[str, str], str] = {}
    cells: list[Cell] = []
    made: dict[str, Data] = {}
    for cell in plan(chosen):
        kind = cell[1]
        if kind not in made:
            made[kind] = prepare(chosen, kind, failed)
        cells.append(run_one(chosen, made[kind], cell, failed))
        if chosen.markdown:
            write(chosen, cells)
    if "flat" in chosen.measure:
        cells.append(
            flat.run(
                chosen.python, chosen.data.resolve(), chosen.flat_samples, chosen.flat_epochs, max(chosen.workers), say
            )
        )
    write(chosen, cells)


if __name__ == "__main__":
    main()
