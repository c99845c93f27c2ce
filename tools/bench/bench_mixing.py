"""How well ``order="shard"`` mixes, for each size of the window, beside a uniform shuffle.

What is measured, on data sets that are sorted by class (``wdsdist pack`` shuffles, so this is the worst case, of tars
by other writers): the share of neighbours in a rank's batch that come from the same shard; the mean distance that
samples move, as a share of the data set; the entropy of the classes in a rank's batch of 64 and in the global batch.
No time is measured: the figures depend on the seed only.

    python tools/bench/bench_mixing.py

Quick, with other figures: ``--epochs 1 --samples 200000 --windows 4`` leaves out the larger data sets.

The results stand in docs/order.md, with the choice of the default window that they led to.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import counted
from wdsdist.diagnostics.epoch_report import evenly
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import Order, OrderSettings, default_window, epoch_order

WORLDS = ((1280, 1000, 8, 1000), (128, 1000, 8, 100), (128, 1000, 1, 100), (64, 16384, 8, 100))
WINDOWS = (1, 2, 4, 8, 16, 32, 64)

MOST_BATCHES = 200
"""Batches of each rank that are measured, spread evenly over the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """How well the samples of a rank are mixed."""

    same_shard: float
    """Share of neighbours in a batch that come from the same shard, 0 to 1."""
    moved: float
    """Mean distance between a sample's place in the data set and its place in the epoch, as a share of all samples."""
    batch_entropy: float
    """Mean entropy of the classes in a batch, in bits, if the data set were sorted by class."""


def measure_mixing(order: Order, counts: Int64s, plan: EpochPlan, *, ranks: int = 8, classes: int = 100) -> Mixing:
    """Measure how well the order of an epoch mixes, on some ranks and some of their batches.

    Args:
        order: the epoch's order, over shards of ``counts`` samples.
        counts: int64 [shards].
        plan: the epoch's batches.
        ranks: how many ranks to measure, spread evenly over the world.
        classes: classes of equal size by which the data set is assumed to be sorted, for the entropy.

    Figures that need a batch of two samples are NaN without one.
    """
    starts, total = np.cumsum(counts) - counts, int(counts.sum())
    same, moved, entropy = [], [], []
    chosen = np.unique(np.linspace(0, plan.batches_per_rank, MOST_BATCHES, endpoint=False).astype(int))
    for rank in evenly(plan.num_replicas, ranks):
        for batch in chosen if plan.batches_per_rank else ():
            positions = plan.positions(rank=int(rank), batch=int(batch))
            shards, samples, _ = order.locate(positions)
            numbers = starts[shards] + samples
            same.append(np.mean(shards[1:] == shards[:-1]) if len(shards) > 1 else np.nan)
            moved.append(float(np.mean(np.abs(numbers / total - positions / plan.num_samples))))
            entropy.append(_entropy(numbers * classes // total))
    return Mixing(
        same_shard=_mean(same),
        moved=_mean(moved),
        batch_entropy=_mean(entropy),
    )


def uniform_mixing(counts: Int64s, plan: EpochPlan, *, classes: int = 100, draws: int = 400) -> Mixing:
    """Return the mixing of a uniform shuffle: by formula, but the entropy by sampling (seeded).

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=2_000_000, help="of the largest data set to measure")
    parser.add_argument("--windows", type=int, nargs="+", default=WINDOWS, help="in shards")
    args = parser.parse_args()
    for shards, per_shard, ranks, classes in WORLDS:
        if shards * per_shard > args.samples:
            continue
        counts = np.full(shards, per_shard)
        plan = EpochPlan(
            num_samples=int(counts.sum()), num_replicas=ranks, batch_size=64, drop_last=False, drop_last_batch=True
        )
        everyone = replace(plan, num_replicas=1, batch_size=64 * ranks)
        world = counted(ranks, "rank")
        print(f"\n{shards:,} shards of {per_shard:,} samples, {classes:,} classes in order, {world}, batch 64\n")
        print("| window, shards | same shard | moved | classes in a batch, bits | in the global batch, bits |")
        print("| --- | --- | --- | --- | --- |")
        for window in args.windows:
            settings = OrderSettings(window=window * per_shard, num_canonical_replicas=ranks)
            orders = [epoch_order(counts, settings, epoch) for epoch in range(args.epochs)]
            rank = [measure_mixing(order, counts, plan, classes=classes) for order in orders]
            whole = [measure_mixing(order, counts, everyone, classes=classes) for order in orders]
            chosen = " (default)" if settings.window == default_window(counts) else ""
            print(
                f"| {window}{chosen} | {np.mean([one.same_shard for one in rank]):.3f} "
                f"| {np.mean([one.moved for one in rank]):.3f} | {np.mean([one.batch_entropy for one in rank]):.2f} "
                f"| {np.mean([one.batch_entropy for one in whole]):.2f} |"
            )
        ideal, ideal_whole = (
            uniform_mixing(counts, plan, classes=classes),
            uniform_mixing(counts, everyone, classes=classes),
        )
        print(
            f"| uniform shuffle | {ideal.same_shard:.3f} | {ideal.moved:.3f} | {ideal.batch_entropy:.2f} "
            f"| {ideal_whole.batch_entropy:.2f} |"
        )


if __name__ == "__main__":
    main()
