"""What the boundary between two epochs costs while workers decode photos, beside torch's ``DataLoader``.

Both loaders decode the same photos to random crops of 224 pixels with the same function, in batches of 64, in two
persistent workers. Torch's reads a file for each sample. Measured in turn, round by round:

- *added*: milliseconds that a boundary adds if the loop waits for data: the time of 8 epochs of 512 photos, less the
  time of one epoch of the same 4,096 samples, for each of the 7 boundaries;
- *waited*: milliseconds until the first batch of an epoch if the loop is busy for 1.5 times as long as a batch takes to
  make, as a training step is: the median of the boundaries.

    python tools/bench/bench_boundary.py [--samples 512] [--epochs 8] [--rounds 5] [--data FOLDER]

Results, medians with (minimum to maximum) of 5 rounds on 2 cores, Python 3.11, torch 2.13.0, 2026-11-28:

    wdsdist  added         0.3   (-15.2 to 7.9)     goal: under 20
    wdsdist  waited       19.6   (15.2 to 27.1)     goal: under 20
    torch    added         1.7   (-10.2 to 10.0)
    torch    waited       83.5   (82.0 to 85.1)
    epochs over one long epoch: wdsdist / torch 1.00 (0.95 to 1.03)

A loop that waits for data gets batches in pairs, as two workers make them: the first batch of an epoch comes as late as
any other pair. If the loop is busy meanwhile, our workers have made the first batch of the next epoch already.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from peers import data
from peers.kinds import BATCH, CROP, KINDS
from peers.statistic import paired_ratio, spread, values
from torch.utils.data import ConcatDataset, DataLoader, Dataset

import wdsdist
from wdsdist.transforms import RandomResizedCrop

WORKERS = 2
BUSY = 1.5


class Files(Dataset[Any]):
    """Reads and decodes a file for each sample."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._crop = RandomResizedCrop(CROP)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        return self._crop(Path(self._paths[index]).read_bytes(), index)


def ours(shards: Path, times: int) -> Iterable[Any]:
    manifest = wdsdist.open(shards).repeat(times) if times > 1 else shards
    dataset = wdsdist.StreamingDataset(manifest, fields=("jpg",), decode={"jpg": RandomResizedCrop(CROP)})
    return wdsdist.StreamingDataLoader(dataset, BATCH, num_workers=WORKERS)


def torchs(paths: Sequence[str], times: int) -> Iterable[Any]:
    dataset = ConcatDataset([Files(paths)] * times)
    return DataLoader(dataset, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True, drop_last=True)


def seconds(loader: Iterable[Any], epochs: int) -> float:
    """Return the seconds of epochs, after one with which the workers start."""
    for _ in loader:
        pass
    began = time.perf_counter()
    for _ in range(epochs):
        for _ in loader:
            pass
    return time.perf_counter() - began


def waits(loader: Iterable[Any], epochs: int, busy: float) -> Iterator[float]:
    """Yield the seconds until the first batch of each epoch but the first, for a loop that is busy with each batch."""
    for epoch in range(epochs):
        asked = time.perf_counter()
        for number, _ in enumerate(loader):
            if epoch and not number:
                yield time.perf_counter() - asked
            time.sleep(busy)


def measure(make: Callable[[int], Iterable[Any]], samples: int, epochs: int) -> dict[str, float]:
    """Return the time that an epoch boundary adds, and the time to the first batch after it, in milliseconds."""
    whole, parts = seconds(make(epochs), 1), seconds(make(1), epochs)
    busy = BUSY * whole / (epochs * samples // BATCH)
    return {
        "value": parts / whole,
        "added": 1000 * (parts - whole) / (epochs - 1),
        "waited": 1000 * spread(list(waits(make(1), epochs, busy))).median,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What the boundary between two epochs costs while workers decode.")
    parser.add_argument("--samples", type=int, default=8 * BATCH, help="of an epoch, a multiple of the batch")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=Path("bench-data"), help="where the files are made, once")
    options = parser.parse_args()
    files, _ = data.make(replace(KINDS["jpeg70k"], samples=options.samples), options.data, options.samples)
    shards = files.parent / "boundary"
    wdsdist.pack(files, shards, class_folders=False, overwrite=True)
    systems: dict[str, Callable[[int], Iterable[Any]]] = {
        "wdsdist": lambda times: ours(shards, times),
        "torch": lambda times: torchs(data.paths(files), times),
    }
    rounds = [
        {name: measure(make, options.samples, options.epochs) for name, make in systems.items()}
        for _ in range(options.rounds)
    ]
    print(f"{options.epochs} epochs of {options.samples:,} photos, {WORKERS} workers; milliseconds of a boundary:")
    for name in systems:
        for figure in ("added", "waited"):
            found = spread(values(rounds, name, figure))
            print(f"{name:8} {figure:8} {found.median:8.1f}   ({found.least:.1f} to {found.greatest:.1f})")
    ratio = paired_ratio(rounds, "wdsdist", "torch")
    assert ratio is not None
    print(f"epochs over one long epoch: wdsdist / torch {ratio.median:.2f} ({ratio.least:.2f} to {ratio.greatest:.2f})")


if __name__ == "__main__":
    main()
