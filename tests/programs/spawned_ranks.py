"""A program: gives a loader and a data set to two ranks that torch spawns, each of which plays epochs of both.

Arguments: the shards, and a folder for what the ranks have seen: the classes of each epoch, as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path

import torch

import wdsdist


def rank_of_two(rank: int, loader: wdsdist.StreamingDataLoader, dataset: wdsdist.StreamingDataset, folder: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    multiprocessing.set_start_method("fork", force=True)
    found = []
    for given in (loader, wdsdist.StreamingDataLoader(dataset, 8, num_workers=2)):
        for epoch in (rank, 5):
            given.set_epoch(epoch)
            found.append([number for batch in given for number in batch["cls"].tolist()])
    Path(folder, f"{rank}.json").write_text(json.dumps(found))


def main(shards: str, folder: str) -> None:
    dataset = wdsdist.StreamingDataset(shards, decode=True, fields=("cls",))
    loader = wdsdist.StreamingDataLoader(dataset, 8, num_workers=2)
    torch.multiprocessing.spawn(rank_of_two, (loader, dataset, folder), nprocs=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
