"""From page-locked memory to the GPU: what ``to_device`` reaches of a bare copy, and how much hides behind compute.

Five ways take the same page-locked batches, in turn, so that a busy machine slows all of them:

- *bare copy*: ``target.copy_(batch, non_blocking=True)`` into one buffer, the most that the bus gives;
- *to_device*: batches of a list, moved by ``wdsdist.to_device``, and nothing else;
- *compute*: matrix products that take about as long as a copy, on batches that are there already;
- *copy, then compute*: ``batch.to(device)``, then the products, as a plain training loop does;
- *to_device and compute*: the products on what ``to_device`` hands out. At best, the slower of the two alone.

    python tools/bench/bench_device.py [--megabytes 64] [--batches 100] [--repeat 9] [--json FILE]

Results: none yet; this was written where there was no GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import wdsdist

SIDE = 4096


def ways(batches: list[torch.Tensor], products: int) -> dict[str, Callable[[], None]]:
    """Return the ways by name; each goes through all batches once."""
    target = torch.empty_like(batches[0], device="cuda")
    matrix = torch.ones(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)

    def compute(batch: torch.Tensor) -> None:
        batch.view(-1)[:SIDE].add_(1)  # waits for the copy
        for _ in range(products):
            torch.mm(matrix, matrix)

    def bare_copy() -> None:
        for batch in batches:
            target.copy_(batch, non_blocking=True)

    def moving() -> None:
        for _ in wdsdist.to_device(batches, "cuda"):
            pass

    def computing() -> None:
        for _ in batches:
            compute(target)

    def copy_then_compute() -> None:
        for batch in batches:
            compute(batch.to("cuda", non_blocking=True))

    def moving_and_computing() -> None:
        for batch in wdsdist.to_device(batches, "cuda"):
            compute(batch)

    return {
        "bare copy": bare_copy,
        "to_device": moving,
        "compute": computing,
        "copy, then compute": copy_then_compute,
        "to_device and compute": moving_and_computing,
    }


def seconds(way: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    way()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def balanced(batches: list[torch.Tensor]) -> int:
    """Return how many products take about as long as a copy."""
    one = ways(batches, 1)
    for way in one.values():
        way()  # warm
    return max(1, round(seconds(one["bare copy"]) / seconds(one["compute"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=64, help="of a batch")
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device here")
    batches = [torch.ones(arguments.megabytes << 20, dtype=torch.uint8).pin_memory() for _ in range(4)]
    batches *= arguments.batches // 4
    measured = ways(batches, balanced(batches))
    times: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(arguments.repeat):
        for name, way in measured.items():
            times[name].append(seconds(way))
    gigabytes = sum(batch.nbytes for batch in batches) / 1e9
    found = {name: {"GB/s": [gigabytes / one for one in values]} for name, values in times.items()}
    found["to_device / bare copy"] = {
        "ratio": [bare / one for bare, one in zip(times["bare copy"], times["to_device"], strict=True)]
    }
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, batches of {arguments.megabytes} MiB:")
    for name, values in found.items():
        for unit, numbers in values.items():
            spread = f"({min(numbers):.2f}-{max(numbers):.2f})"
            print(f"{name:30} {statistics.median(numbers):10.2f} {unit:6} {spread}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
