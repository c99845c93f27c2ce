"""Plot when ranks read which shards over an epoch, and the steps of planned batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wdsdist._util.extras import extra
from wdsdist._util.validation import counted, human
from wdsdist.diagnostics.epoch_report import evenly
from wdsdist.errors import ArgumentError, DestinationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from wdsdist._util.array_types import Int64s
    from wdsdist.diagnostics.epoch_report import EpochReport, World
    from wdsdist.diagnostics.planned_report import StepFigures

_RANKS = 8
_BATCHES = 400
_SAMPLES = 256
"""Ranks that are drawn, and the batches of each and samples of a batch that are looked at, spread evenly."""
_KINDS = (".png", ".svg")

_GOOD_READS = (
    "Good: above, short bars in steps, so that a rank needs few shards at once; below, a curve along the dashed line,\n"
    "so that a store is read evenly. Bars over the whole width: every shard is needed throughout the epoch, which\n"
    "is no harm on a local disk; for a store, cache all shards, pack smaller ones, or take a smaller --shuffle-window."
)
_GOOD_STEPS = (
    "Good: a fill near 1, for the rest is padding or unused room, and a balance near 1, for the other ranks wait for\n"
    "the slowest. One step of each block may be less full: the more steps a block has, the less it weighs."
)


def new_figure(path: Path) -> Figure:
    """Return an empty figure for a png or svg file.

    Raises `ArgumentError` for another kind of file, and `ExtraMissingError` without matplotlib.
    """
    if path.suffix.lower() not in _KINDS:
        raise ArgumentError(f"{path} is neither a .png nor an .svg file: give the plot one of these names")
    figure: Figure = extra("matplotlib.figure", "plot", "`wdsdist plan --plot`").Figure(
        figsize=(10, 7.5), layout="constrained"
    )
    return figure


def draw(figure: Figure, world: World, found: EpochReport, path: Path, *, rank: int | None = None) -> None:
    """Plot when the ranks of the first node read which shards, and the bytes that they need by then.

    Up to eight ranks are drawn, spread evenly over the node; or the one that is asked for, on its own node.

    Raises `DestinationError` where the file cannot be written.
    """
    plan, node = world.plan, 0 if rank is None else rank // world.ranks_per_node
    of_node = world.nodes()[node]
    ranks = np.array(of_node)[evenly(len(of_node), _RANKS)] if rank is None else np.array([rank])
    batches = evenly(plan.batches_per_rank, _BATCHES)
    read = [_first_and_last(world, int(number), batches) for number in ranks]
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _draw_bars(
        above,
        [f"rank {number}\n{counted(len(one[0]), 'shard')}" for number, one in zip(ranks, read, strict=True)],
        read,
    )
    requests, size = found.requests_per_node[node], found.bytes_per_node[node]
    _draw_need(below, world, read, size, plan.batches_per_rank)
    shown = "" if len(ranks) == len(of_node) else f", {len(ranks)} of its {len(of_node):,} ranks"
    is_windowed = world.settings.name == "shard" and world.settings.shuffle
    windows = f", windows of {world.settings.window:,} samples" if is_windowed else ""
    figure.suptitle(
        f"When node {node} of {len(world.nodes()):,} reads which shards{shown}, epoch {world.plan.epoch}\n"
        f"{found.shards_per_node[node]:,} of {counted(len(world.counts), 'shard')}, {human(size)}, {requests:,} "
        f"requests; all nodes: {human(sum(found.bytes_per_node))}, {sum(found.requests_per_node):,} requests\n"
        f"{plan.num_samples:,} samples, order {world.settings.name}{windows}",
        fontsize=11,
    )
    figure.supxlabel(_GOOD_READS, fontsize=9, x=0.01, ha="left")
    _save(figure, path)


def _first_and_last(world: World, rank: int, batches: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return the shards of a rank in the order of first use, and the batch that each is first and last needed for."""
    plan, order = world.plan, world.order()
    places = [plan.positions(rank=rank, batch=int(batch)) for batch in batches]
    places = [some[evenly(len(some), _SAMPLES)] for some in places]
    if not places:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    shards = order.locate(np.concatenate(places))[0]
    numbers = np.repeat(np.arange(len(batches)), [len(some) for some in places])
    found, first = np.unique(shards, return_index=True)
    last = len(shards) - 1 - np.unique(shards[::-1], return_index=True)[1]
    by_use = np.lexsort((numbers[last], numbers[first]))
    # A shard is in use up to the next batch that is looked at.
    ends = np.append(batches[1:], plan.batches_per_rank)
    return found[by_use], batches[numbers[first]][by_use], ends[numbers[last]][by_use]


def _draw_bars(axes: Axes, labels: list[str], read: list[tuple[Int64s, Int64s, Int64s]]) -> None:
    """Draw a band for each rank, with a bar for each shard from its first use to its last."""
    for row, (shards, firsts, ends) in enumerate(read):
        height = 0.9 / max(len(shards), 1)
        tops = row + 0.05 + height * np.arange(len(shards))
        gap = 0.85 if height > 0.04 else 1  # thinner bars touch
        axes.barh(tops, ends - firsts, height * gap, firsts, align="edge", color=f"C{row}", linewidth=0)
    axes.set_yticks(np.arange(len(labels)) + 0.5, labels)
    axes.set_ylim(len(labels), 0)
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("a bar for each shard, from first use to last", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    for row in range(1, len(labels)):
        axes.axhline(row, color="0.85", linewidth=0.8)


def _draw_need(axes: Axes, world: World, read: list[tuple[Int64s, Int64s, Int64s]], total: int, batches: int) -> None:
    """Draw the share of the bytes of the node's shards that it needs by each batch."""
    shards = np.concatenate([one[0] for one in read])
    firsts = np.concatenate([one[1] for one in read])
    by_use = np.argsort(firsts, kind="stable")
    once = by_use[np.sort(np.unique(shards[by_use], return_index=True)[1])]
    needed = np.cumsum(world.sizes[shards[once]])
    share = needed / max(needed[-1:].sum(), 1)
    axes.step([0, *firsts[once], max(batches, 1)], [0, *share, 1], where="post", color="0.25")
    axes.plot([0, max(batches, 1)], [0, 1], linestyle="--", color="0.55", linewidth=1)
    axes.set_xlim(0, max(batches, 1))
    axes.set_ylim(0, 1.02)
    axes.locator_params(axis="x", integer=True)
    axes.set_yticks([0, 0.5, 1], ["0", human(total // 2), human(total)])
    axes.set_ylabel("needed by then", fontsize=9)
    axes.set_xlabel("batch of the rank")
    axes.spines[["top", "right"]].set_visible(False)


def draw_steps(figure: Figure, found: StepFigures, path: Path, *, title: str, reads: str) -> None:
    """Plot the fill and the balance of each step of planned batches into a file; errors as of `draw`."""
    fill, axes = figure.subplots(2, 1, sharex=True)
    used = found.tokens / np.maximum(found.room, 1)
    fill.set_ylim(min(0.9, *used) - 0.02, 1.01)
    fill.set_ylabel("fill: useful tokens\nover the room for them")
    axes.set_ylim(0.995, max(1.05, *found.balance) + 0.005)
    axes.set_ylabel("balance: slowest rank\nover the mean of the ranks")
    for one, values in ((fill, used), (axes, found.balance)):
        one.plot(np.arange(len(values)), values, ".", markersize=6 if len(values) < 200 else 3, alpha=0.7)
        one.axhline(1, color="0.8", linewidth=0.8, zorder=0)
        one.spines[["top", "right"]].set_visible(False)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("step")
    figure.suptitle(f"{title}\nrequests: {reads}", fontsize=11)
    figure.supxlabel(_GOOD_STEPS, fontsize=9, x=0.01, ha="left")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise DestinationError(f"{path} cannot be written: {error.strerror or error}") from error
