"""Plot the shards that ranks read over an epoch, and the steps of planned batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wdsdist.errors import ArgumentError, DestinationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wdsdist.diagnostics.epoch_report import World
    from wdsdist.diagnostics.planned_report import StepFigures

_RANKS = 8
_BATCHES = 300
_KINDS = (".png", ".svg")


def draw(world: World, path: Path, *, rank: int | None = None) -> None:
    """Plot the shards that ranks read, by batch, into a png or svg file.

    Where there are more than eight ranks, eight of them are drawn, spread evenly; or the one that is asked for.

    Raises `ArgumentError` for another kind of file, or where matplotlib is not installed, and `DestinationError`
    where the file cannot be written.
    """
    figure = _figure(path)
    plan, order = world.plan, world.order()
    ranks = np.unique(np.linspace(0, plan.num_replicas - 1, _RANKS).astype(int)) if rank is None else np.array([rank])
    batches = np.unique(np.linspace(0, max(plan.batches_per_rank - 1, 0), _BATCHES).astype(int))
    axes = figure.add_subplot()
    for number in ranks:
        found = [order.locate(plan.positions(rank=int(number), batch=int(batch)))[0] for batch in batches]
        shards = [np.unique(one) for one in found]
        where = np.repeat(batches, [len(one) for one in shards])
        axes.scatter(where, np.concatenate(shards), s=4, linewidths=0, label=f"rank {number}")
    axes.set_xlabel("batch of the rank")
    axes.set_ylabel("shard")
    axes.set_xlim(0, max(plan.batches_per_rank - 1, 1))
    axes.set_ylim(-0.5, len(world.counts) - 0.5)
    of = "all" if len(ranks) == plan.num_replicas else f"{len(ranks)} of {plan.num_replicas:,}"
    axes.set_title(
        f"Shards that {of} ranks read in epoch {world.epoch}: {plan.num_samples:,} samples in {len(world.counts):,} "
        f"shards,\norder {world.settings.name}, windows of {world.settings.window:,} samples"
    )
    figure.legend(loc="outside right upper", markerscale=3, frameon=False)
    _save(figure, path)


def draw_steps(found: StepFigures, path: Path, *, title: str) -> None:
    """Plot the fill and the cost of each step of planned batches into a png or svg file; errors as of `draw`."""
    figure = _figure(path)
    fill, cost = figure.subplots(2, 1, sharex=True)
    steps = np.arange(len(found.samples))
    fill.plot(steps, found.tokens / np.maximum(found.room, 1), ".", markersize=3)
    fill.set_ylim(0, 1.02)
    fill.set_ylabel("fill: useful tokens over room")
    fill.set_title(title)
    cost.plot(steps, found.most_cost, ".", markersize=3, color="tab:red", label="slowest rank")
    cost.plot(steps, found.mean_cost, ".", markersize=3, color="tab:blue", label="mean of the ranks")
    cost.set_ylim(0, 1.05 * float(found.most_cost.max(initial=1)))
    cost.set_ylabel("cost")
    cost.set_xlabel("step")
    figure.legend(loc="outside right upper", markerscale=3, frameon=False)
    _save(figure, path)


def _figure(path: Path) -> Figure:
    if path.suffix.lower() not in _KINDS:
        raise ArgumentError(f"{path} is neither a .png nor an .svg file: give the plot one of these names")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ArgumentError('drawing needs matplotlib: pip install "wdsdist[plot]"') from error
    return Figure(figsize=(10, 6), layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise DestinationError(f"{path} cannot be written: {error.strerror or error}") from error
