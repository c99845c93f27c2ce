"""How well an order mixes: figures to choose a window by, beside those of a uniform shuffle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import Order

_MOST_BATCHES = 200
"""Batches of each rank that are looked at, spread evenly over the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """What a rank's stream looks like."""

    same_shard: float
    """Share of neighbours in a batch that come from the same shard, 0 to 1."""
    moved: float
    """Mean distance between a sample's place in the data set and its place in the epoch, as a share of all samples."""
    batch_entropy: float
    """Mean entropy of the classes in a batch, in bits, if the data set were sorted by class."""


def measure(order: Order, counts: Int64s, plan: EpochPlan, *, ranks: int = 8, classes: int = 100) -> Mixing:
    """Measure the order of an epoch on some ranks and some of their batches.

    Args:
        order: the epoch's order, over shards of ``counts`` samples.
        counts: int64 [shards].
        plan: the epoch's batches.
        ranks: how many ranks to look at, spread evenly over the world.
        classes: how many classes of equal size the data set is thought to be sorted by, for the entropy.

    An epoch without a batch of two samples gives NaN where nothing can be measured.
    """
    starts = np.cumsum(counts) - counts
    same, moved, entropy = [], [], []
    chosen = np.unique(np.linspace(0, plan.batches_per_rank, _MOST_BATCHES, endpoint=False).astype(int))
    for rank in np.unique(np.linspace(0, plan.num_replicas - 1, ranks).astype(int)):
        for batch in chosen if plan.batches_per_rank else ():
            positions = plan.positions(rank=int(rank), batch=int(batch))
            shards, samples = order.locate(positions)
            numbers = starts[shards] + samples
            same.append(np.mean(shards[1:] == shards[:-1]) if len(shards) > 1 else np.nan)
            moved.append(np.mean(np.abs(numbers - positions)) / plan.num_samples)
            entropy.append(_entropy(numbers * classes // plan.num_samples))
    return Mixing(
        same_shard=_mean(same),
        moved=_mean(moved),
        batch_entropy=_mean(entropy),
    )


def uniform(counts: Int64s, plan: EpochPlan, *, classes: int = 100, draws: int = 400) -> Mixing:
    """Return what a uniform shuffle would give: by formula, but for the entropy, which is drawn (seeded).

    Sources: two random samples share shard s with probability (n_s / N)^2; two random places are N / 3 apart on
    average.
    """
    total = int(counts.sum())
    random = np.random.default_rng(0)
    size = min(plan.batch_size, total)
    batches = random.integers(0, classes, (draws, size))
    return Mixing(
        same_shard=float(np.sum((counts / total) ** 2)),
        moved=1 / 3,
        batch_entropy=_mean([_entropy(batch) for batch in batches]),
    )


def _entropy(labels: Int64s) -> float:
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(-np.sum(shares * np.log2(shares)))


def _mean(values: list[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")
