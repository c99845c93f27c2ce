"""What it costs to plan an epoch of 10^9 samples in 100,000 shards for 4,096 ranks on 512 nodes, in one process.

Measured in a fresh process, as in one worker, after numpy and wdsdist have been imported:

- *plan and three batches*: build an epoch's order and ask for the first, a middle and the last batch, in milliseconds,
  with the memory that this adds to the process (peak resident set, MiB);
- *a sample*: microseconds for each sample of a worker that runs through its part of the epoch, amortised;
- *seek ratio*: what the first batch costs from a middle or the last position of the epoch, over what it costs from the
  start, measured in turn: 1 where a seek costs the same anywhere;
- *report*: the plan of the epoch for all nodes, as ``wdsdist plan`` makes it: seconds, the bytes of the node that reads
  most over an even share, and all shards that are opened over the shards that there are;
- *resume*: the first batch of a rank and the first 64 shards of its schedule, if the epoch goes on with 2,048 ranks, or
  with 3,000, each of which meets 512 lanes: seconds of processor time;
- *block*: one block of 128 steps of token budgets (16,384 tokens, lognormal lengths), which one process of a node plans
  for 1,024 and for 4,096 ranks: seconds of processor time, and MiB that this adds;
- *torch*: for comparison, what ``DistributedSampler`` does for a tenth of the samples, 10^8, in seconds and MiB.

    python tools/bench/bench_plan.py [--repeat 7] [--json FILE]

Results, medians with (minimum-maximum) of 3 runs in turn on 2 cores of a shared AMD EPYC, Python 3.11, numpy 2.4.6,
torch 2.13.0, 2026-11-29:

    plan and three batches, ms                18.99   (18.27-19.52)
    memory added, MiB                          4.43   (4.38-4.48)
    a sample, us                               0.35   (0.33-0.50)
    seek to the middle / to the start          0.80   (0.79-0.80)
    seek to the end / to the start             0.68   (0.65-0.68)
    report, s                                  0.27   (0.26-0.37)
    bytes of a node / an even share            1.01   (1.01-1.01)
    shards opened / shards                     1.01   (1.01-1.01)
    resume on 2,048 ranks, s                   0.01   (0.01-0.01)
    resume on 3,000 ranks, s                   0.64   (0.63-0.79)
    block of 1,024 ranks, s                    8.87   (8.56-11.08)
    block of 1,024 ranks, MiB               1168.41   (1168.29-1168.43)
    block of 4,096 ranks, s                   50.21   (50.03-52.40)
    block of 4,096 ranks, MiB               3560.57   (3560.57-3560.61)
    torch: first index of 10^8, ms          8987.18   (7901.39-11514.29)
    torch: memory added, MiB                4591.49   (4591.42-4591.61)
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

OURS = """
import json, resource, sys, time
import numpy as np
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import EpochOrder, OrderSettings, default_window, epoch_order
from wdsdist.sampling.plan import Position, WorkerBatches

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

smaller = int(sys.argv[1])
counts, world = np.full(100_000 // smaller, 10_000), 4096 // smaller
total = int(counts.sum())
np.random.default_rng(0).random(1000)  # what numpy loads on first use is not ours
before = peak()
started = time.perf_counter()
order = epoch_order(counts, OrderSettings(window=default_window(counts), num_canonical_replicas=world), epoch=3)
plan = EpochPlan(
    num_samples=total, num_replicas=world, batch_size=64, drop_last=False, drop_last_batch=True,
    order=EpochOrder(num_samples=total, seed=0, label="bench", make=lambda: order),
)
for batch in (0, plan.batches_per_rank // 2, plan.batches_per_rank - 1):
    order.locate(plan.positions(rank=world // 3, batch=batch))
three = time.perf_counter() - started
added = peak() - before

def first_batch_from(start):
    from dataclasses import replace
    rest = replace(plan, start=Position(0, start))
    began = time.perf_counter()
    next(rest.batches(rank=world // 3, part=WorkerBatches(0, 8)))
    return time.perf_counter() - began

places = {"start": 0, "middle": total // 2, "end": total - world * 64 * 8 * 64}
seeks = {name: [] for name in places}
for _ in range(9):
    for name, start in places.items():
        seeks[name].append(first_batch_from(start))
began = time.perf_counter()
samples = sum(len(batch.shards) for _, batch in plan.batches(rank=world // 3, part=WorkerBatches(3, 8)))
a_sample = (time.perf_counter() - began) / samples
middle = {name: sorted(times)[4] for name, times in seeks.items()}
print(json.dumps({
    "plan and three batches, ms": three * 1e3, "memory added, MiB": added, "a sample, us": a_sample * 1e6,
    "seek to the middle / to the start": middle["middle"] / middle["start"],
    "seek to the end / to the start": middle["end"] / middle["start"],
}))
"""

SCALE = """
import json, resource, sys, time
from dataclasses import replace
import numpy as np
from wdsdist.batching.block_plan import Rule
from wdsdist.batching.planned_epoch import PlannedEpoch
from wdsdist.diagnostics.epoch_report import epoch_report
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import EpochOrder, OrderSettings, default_window, epoch_order
from wdsdist.sampling.plan import Position, WorkerBatches, World

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

def order_of(ranks):
    settings = OrderSettings(window=default_window(counts), num_canonical_replicas=ranks)
    order = epoch_order(counts, settings, epoch=3)
    return settings, EpochOrder(num_samples=int(counts.sum()), seed=0, label="", make=lambda: order)

smaller = int(sys.argv[1])
world = 4096 // smaller
counts, sizes = np.full(100_000 // smaller, 10_000), np.full(100_000 // smaller, 256 << 20)
settings, order = order_of(world)
plan = EpochPlan(
    num_samples=int(counts.sum()), num_replicas=world, batch_size=64, drop_last=False, drop_last_batch=True, order=order
)
figures = {}
started = time.process_time()
report = epoch_report(plan, settings, World(world, 8), counts, sizes)
figures["report, s"] = time.process_time() - started
figures["bytes of a node / an even share"] = max(report.bytes_per_node) * (world // 8) / int(sizes.sum())
figures["shards opened / shards"] = sum(report.shards_per_node) / len(counts)
for ranks in (world // 2, 3000 // smaller):
    rest = replace(plan, start=Position(0, world * 64 * 1000), num_replicas=ranks)
    started = time.process_time()
    next(rest.batches(rank=ranks // 20, part=WorkerBatches(0, 8)))
    for _ in zip(range(64), rest.uses(rank=ranks // 20)):
        pass
    figures[f"resume on {ranks:,} ranks, s"] = time.process_time() - started
lengths = np.random.default_rng(0).lognormal(np.log(512) - 0.5, 1, 1 << 20).clip(1, 8192).astype(np.int64)
for ranks in (world // 4, world):
    epoch = PlannedEpoch(
        rule=Rule(budget=16384), block_samples=ranks * int(16384 / lengths.mean()) * 128,
        lengths=lambda shards, samples: lengths[(shards * 10_000 + samples) % 2**20],
        order=order_of(ranks)[1], world=World(ranks, 8), start=Position(3),
    )
    before, started = peak(), time.process_time()
    epoch.block(1, range(8))
    figures[f"block of {ranks:,} ranks, s"] = time.process_time() - started
    figures[f"block of {ranks:,} ranks, MiB"] = peak() - before
print(json.dumps(figures))
"""

TORCH = """
import json, resource, sys, time
from torch.utils.data import DistributedSampler

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

before = peak()
smaller = int(sys.argv[1])
sampler = DistributedSampler(range(10**8 // smaller), 4096 // smaller, 1234 // smaller)
started = time.perf_counter()
next(iter(sampler))
print(json.dumps({
    "torch: first index of 10^8, ms": (time.perf_counter() - started) * 1e3,
    "torch: memory added, MiB": peak() - before,
}))
"""


def run(script: str, smaller: int) -> dict[str, float]:
    """Run a script in a fresh process and return the figures that it prints."""
    done = subprocess.run([sys.executable, "-c", script, str(smaller)], capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7, help="runs of each, in turn")
    parser.add_argument("--smaller", type=int, default=1, help="divide the samples and the ranks by so many, to try it")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    for _ in range(options.repeat):
        for script in (OURS, SCALE, TORCH):
            for name, value in run(script, options.smaller).items():
                found.setdefault(name, []).append(value)
    for name, values in found.items():
        print(f"    {name:<38} {statistics.median(values):8.2f}   ({min(values):.2f}-{max(values):.2f})")
    if options.json:
        every: dict[str, Any] = {"runs": found}
        options.json.write_text(json.dumps(every, indent=1))


if __name__ == "__main__":
    main()
