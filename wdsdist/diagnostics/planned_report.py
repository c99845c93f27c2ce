"""Report of planned batches before training: steps, fill, balance, and the shards that nodes open for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s
from wdsdist.batching.block_plan import Rule
from wdsdist.batching.planned_epoch import Block, PlannedEpoch, tokens_and_room
from wdsdist.batching.values import Batches
from wdsdist.diagnostics.epoch_report import Reads, World
from wdsdist.sampling.plan import Position
from wdsdist.sampling.plan import World as Ranks
from wdsdist.shards.manifest import Manifest


@dataclass(frozen=True, slots=True, eq=False)
class StepFigures:
    """Each step of an epoch, over all ranks: arrays of [steps]."""

    tokens: Int64s
    """Useful tokens; samples, if no column has lengths."""
    room: Int64s
    """Tokens that fit, padding included."""
    mean_cost: npt.NDArray[np.float64]
    most_cost: npt.NDArray[np.float64]
    """The cost of the slowest rank."""
    samples: Int64s

    @property
    def balance(self) -> npt.NDArray[np.float64]:
        """The cost of the slowest rank over the mean of all ranks."""
        return np.divide(self.most_cost, self.mean_cost, out=np.ones(len(self.samples)), where=self.mean_cost > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReport(Reads):
    """Report of one epoch of planned batches."""

    fill: float
    """Useful tokens over the tokens that fit, 0 to 1."""
    balance: float
    """The cost of the slowest rank of a step over the mean of its ranks, averaged over the steps; 1 is even."""
    samples_per_step: float
    """Samples of all ranks together, on average."""


def report_of(
    world: World,
    manifest: Manifest,
    batches: Batches,
    itemsizes: dict[str, int] | None = None,
    *,
    drop_last: bool = True,
) -> tuple[PlannedReport, StepFigures]:
    """Report the epoch that a loader plans with a value of `wdsdist.batching`.

    Raises `ArgumentError` for unknown columns, and samples that are too long.
    """
    batcher = batches.batcher(manifest, itemsizes=itemsizes, drop_last=drop_last)
    batcher.check_lengths()
    ranks = world.plan.num_replicas
    local = min(world.ranks_per_node, ranks)
    assert world.plan.order is not None
    per_node = local if ranks % local == 0 else 1
    plan = batcher.plan(world.plan.order, Position(world.plan.epoch), Ranks(ranks, per_node))
    return planned_report(world, plan)


def planned_report(world: World, epoch: PlannedEpoch) -> tuple[PlannedReport, StepFigures]:
    """Report an epoch of planned batches, from the lengths of its samples alone.

    Time grows with the samples, by some microseconds each; memory with a block and the number of steps.
    """
    nodes = world.nodes()
    node_of = np.repeat(np.arange(len(nodes)), [len(ranks) for ranks in nodes])
    opened = np.zeros((len(nodes), len(world.counts)), np.bool_)
    parts, dropped, repeated = [], 0, 0
    for number in range(epoch.first_block, epoch.num_blocks):
        block = epoch.block(number)
        plan = block.plan
        ranks = np.repeat(np.arange(len(plan.bounds) - 1) % plan.num_ranks, np.diff(plan.bounds))
        opened[node_of[ranks], block.shards[block.numbers[plan.samples]]] = True
        is_played = np.zeros(len(block.numbers), np.bool_)
        is_played[plan.samples] = True
        repeated += len(plan.samples) - int(is_played.sum())
        whole = np.setdiff1d(block.numbers[is_played], block.numbers[~is_played])
        dropped += len(block.shards) - len(whole)
        parts.append(_figures(block, epoch.rule))
    figures = StepFigures(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in StepFigures.__slots__}
    )
    steps, room = len(figures.samples), int(figures.room.sum())
    return PlannedReport(
        batches_per_rank=steps,
        fill=int(figures.tokens.sum()) / room if room else float("nan"),
        balance=float(figures.balance.mean()) if steps else float("nan"),
        samples_per_step=float(figures.samples.mean()) if steps else 0.0,
        samples_dropped=dropped,
        samples_repeated=repeated,
        shards_per_node=tuple(np.count_nonzero(opened, axis=1).tolist()),
        bytes_per_node=tuple((opened @ world.sizes).tolist()),
        requests_per_node=tuple((opened @ world.requests).tolist()),
    ), figures


def _figures(block: Block, rule: Rule) -> StepFigures:
    """Return the figures of the steps of one block."""
    plan = block.plan
    counts = np.diff(plan.bounds)
    tokens, room = tokens_and_room(plan.bounds, (block.stops - block.starts)[plan.samples], rule)
    batches = np.repeat(np.arange(len(counts)), counts)
    costs = np.bincount(batches, block.costs[plan.samples], len(counts)).reshape(plan.steps, plan.num_ranks)
    by_step = [column.reshape(plan.steps, plan.num_ranks).sum(axis=1) for column in (tokens, room, counts)]
    return StepFigures(by_step[0], by_step[1], costs.mean(axis=1), costs.max(axis=1, initial=0), by_step[2])
