"""Results as Markdown and as a chart; what people wrote between the markers of a page outlives its next version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peers.kinds import KINDS
from peers.registry import system
from peers.runs import MISSING, Cell
from peers.statistic import Spread, paired_ratio, spread, values

OURS = "wdsdist"
BEGIN = "<!-- written by hand: begin {} -->"
END = "<!-- written by hand: end {} -->"

# measure -> (title, unit, whether more is better)
MEASURES = {
    "rate": ("Samples per second", "samples/s", True),
    "first": ("Time to first batch", "s", False),
    "pack": ("Time to pack", "s", False),
    "memory": ("Peak private memory of a worker, beyond an idle one", "MiB", False),
    "resume": ("Resume at 90 % of an epoch: time to the next batch", "s", False),
    "flat": ("Memory over 20 epochs of 1,000,000 samples", "MiB", False),
}

_EXTRAS = {"pack": ("MiB on disk", "bytes", 2**20), "rate": ("CPU µs per sample", "cpu", 1e-6)}
"""Of a measure: the title, name and unit of what its table says beside the figure."""


def kept_by_hand(page: str) -> dict[str, str]:
    """Return what stands between a page's markers, by their names."""
    pattern = re.compile(r"<!-- written by hand: begin (\S+) -->\n(.*?)<!-- written by hand: end \1 -->", re.DOTALL)
    return {match[1]: match[2] for match in pattern.finditer(page)}


def markdown(facts: Mapping[str, Any], cells: Sequence[Cell], *, before: str = "", chart: str | None = None) -> str:
    """Return the page; ``before`` is its last version."""
    kept = kept_by_hand(before)

    def by_hand(name: str) -> list[str]:
        return [BEGIN.format(name), kept.pop(name, "").rstrip("\n"), END.format(name), ""]

    lines = ["# Benchmarks", ""]
    if chart:
        lines += [f"![Throughput of wdsdist relative to each other system]({chart})", ""]
    lines += by_hand("result")
    lines += ["## Conditions", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += by_hand("conditions")
    lines += ["## Caveats", "", *by_hand("caveats")]
    for measure in dict.fromkeys(cell.measure for cell in cells):
        lines += [f"## {MEASURES[measure][0]}", ""]
        lines += by_hand(measure)
        for cell in cells:
            if cell.measure == measure:
                lines += _table(cell)
    lines += _settings(cells)
    for name in list(kept):  # of measures that this run left out
        lines += by_hand(name)
    return "\n".join(lines)


def _table(cell: Cell) -> list[str]:
    _, unit, more = MEASURES[cell.measure]
    names = dict.fromkeys([key for found in cell.rounds for key in found] + list(cell.errors))
    extra, own, unit_of_extra = _EXTRAS.get(cell.measure, ("", "", 1))
    lines = [
        _heading(cell),
        "",
        f"| system | {unit}: median (min to max) | {f'{extra} | ' if extra else ''}wdsdist's ratio to it | |",
        f"| --- | ---: | {'---: | ' if extra else ''}---: | --- |",
    ]
    for name in sorted(names, key=list(_order()).index):
        title = system(name).name
        figures = values(cell.rounds, name)
        if not figures:
            what = "not installed" if cell.errors[name].startswith(MISSING) else "failed"
            lines.append(f"| {title} | {what}: `{_cell_text(cell.errors[name])}` | {'| ' if extra else ''}| |")
            continue
        ratio = None if name == OURS else paired_ratio(cell.rounds, OURS, name)
        beside = values(cell.rounds, name, own)
        also = f"{_short(spread(beside).median / unit_of_extra) if beside else ''} | " if extra else ""
        mark = _mark(ratio, more) + _left(cell, name) + _failed(cell, name)
        lines.append(f"| {title} | {_figure(spread(figures), unit)} | {also}{_ratio(ratio)} | {mark} |")
    return [*lines, ""]


def _heading(cell: Cell) -> str:
    if cell.measure == "flat":
        means = [f"{figure / 2**20:.1f}" for figure in values(cell.rounds, OURS)]
        return f"{cell.workers} workers; the peak of each epoch in turn, MiB: {', '.join(means)}. Its median:"
    return f"**{KINDS[cell.kind].about}**, {cell.workers} workers, {len(cell.rounds)} rounds"


def _order() -> Sequence[str]:
    from peers.registry import SYSTEMS

    return list(SYSTEMS)


def _cell_text(text: str) -> str:
    return text.replace("|", "/").replace("`", "'")[:160]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def _figure(figures: Spread, unit: str) -> str:
    scale = 2**20 if unit == "MiB" else 1
    median, least, greatest = (_short(value / scale) for value in (figures.median, figures.least, figures.greatest))
    return f"{median} ({least} to {greatest})"


def _ratio(ratio: Spread | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f} ({ratio.least:.2f} to {ratio.greatest:.2f})"


def _mark(ratio: Spread | None, more: bool) -> str:
    if ratio is None:
        return ""
    if (ratio.median < 1) == more and ratio.median != 1:
        return "**wdsdist loses**"
    return "" if (ratio.least >= 1 if more else ratio.greatest <= 1) else "not in every round"


def _left(cell: Cell, name: str) -> str:
    """Say where a resumed epoch had more or fewer samples than were left."""
    pairs = zip(values(cell.rounds, name, "left"), values(cell.rounds, name, "should be left"), strict=True)
    wrong = [f" gave {left:,.0f} samples where {due:,.0f} were left" for left, due in pairs if left != due]
    return wrong[0] if wrong else ""


def _failed(cell: Cell, name: str) -> str:
    return f" failed in a round: `{_cell_text(cell.errors[name])}`" if name in cell.errors else ""


def _settings(cells: Sequence[Cell]) -> list[str]:
    names = dict.fromkeys(key for cell in cells for found in cell.rounds for key in found)
    columns = ("pack", "load", "shuffle", "images", "resume")
    lines = ["## Settings", "", f"| system | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    for name in names:
        chosen = system(name)
        lines.append(f"| {chosen.name} | {' | '.join(chosen.settings.get(column, '') for column in columns)} |")
    return [*lines, ""]


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Draw wdsdist's ratio to every system in rates: a panel for each kind of data, with the most workers measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rates = [cell for cell in cells if cell.measure == "rate" and any(OURS in found for found in cell.rounds)]
    last = {cell.kind: cell for cell in sorted(rates, key=lambda cell: cell.workers)}
    if not last:
        return
    names = [system(key).name for key in _order() if key != OURS]
    figure, panels = plt.subplots(1, len(last), figsize=(12, 3), layout="constrained", squeeze=False, sharey=True)
    for axes, cell in zip(panels.flat, last.values(), strict=True):
        found = {system(key).name: paired_ratio(cell.rounds, OURS, key) for key in _order() if key != OURS}
        for row, name in enumerate(names):
            ratio = found[name]
            if ratio:
                error = [[ratio.median - ratio.least], [ratio.greatest - ratio.median]]
                axes.barh(row, ratio.median, xerr=error, color="#9fd3aa", ecolor="0.25", error_kw={"linewidth": 1})
                axes.text(0, row, f" {ratio.median:.1f} x", va="center", fontweight="bold", fontsize=9)
        axes.axvline(1, color="black", linewidth=1, zorder=0)
        axes.set_title(f"{KINDS[cell.kind].short}, {cell.workers} workers", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_yticks(range(len(names)), names)
    panels[0, 0].invert_yaxis()
    figure.suptitle("Throughput of wdsdist relative to each other loader (1: equal)", fontsize=11)
    figure.savefig(path, dpi=120)
    plt.close(figure)
