"""How well ``order="shard"`` mixes, for each size of the window, beside a uniform shuffle.

What is measured, on data sets that are sorted by class (``wdsdist pack`` shuffles, so this is the worst case, of tars
by other writers): the share of neighbours in a rank's batch that come from the same shard; the mean distance that
samples move, as a share of the data set; the entropy of the classes in a rank's batch of 64 and in the global batch.
No time is measured: the figures depend on the seed only.

    python tools/bench/bench_mixing.py

Quick, with other figures: ``--epochs 1 --samples 200000`` leaves out the larger data sets.

The results stand in docs/order.md, with the choice of the default window that they led to.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from wdsdist._util.validation import counted
from wdsdist.diagnostics.epoch_report import measure_mixing, uniform_mixing
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import OrderSettings, default_window, epoch_order

WORLDS = ((1280, 1000, 8, 1000), (128, 1000, 8, 100), (128, 1000, 1, 100), (64, 16384, 8, 100))
WINDOWS = (1, 2, 4, 8, 16, 32, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=2_000_000, help="of the largest data set to measure")
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
        for window in WINDOWS:
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
