"""Train a small network on Fashion-MNIST with DDP, stop in the middle of an epoch, resume, and check every promise.

Run it under torchrun, on as many ranks as you like:

    torchrun --standalone --nproc-per-node 2 examples/train_fashion_mnist.py

The 10,000 images of the test set ship beside this file: 8,400 of them train, 1,600 test. Point ``--data`` at a folder
with all four files of Fashion-MNIST to train on the 60,000 and test on the 10,000.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wdsdist

EPOCHS = 2
Keys = list[list[str]]  # the sample keys of each batch of one rank


@wdsdist.data_download
def prepare(data: Path, work: Path) -> dict[str, list[Path]]:
    """Pack the downloaded files in one process per node; the other processes get the return value."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "packed-by.log").open("a") as log:
        log.write(f"process {os.getpid()}\n")
    if (data / "train-images-idx3-ubyte.gz").exists():
        wdsdist.pack(data / "train", work / "train", shard_samples=600)
        wdsdist.pack(data / "t10k", work / "test", shard_samples=600)
        return {"train": [work / "train"], "test": [work / "test"]}
    wdsdist.pack(data / "t10k", work / "t10k", shard_samples=600)
    shards = sorted((work / "t10k").glob("*.tar"))
    return {"train": shards[:14], "test": shards[14:]}


def make_loader(shards: list[Path], batch_size: int, workers: int, train: bool) -> wdsdist.StreamingDataLoader:
    where = shards[0] if len(shards) == 1 else shards
    dataset = wdsdist.StreamingDataset(where, decode=True, shuffle=train, seed=7)
    return wdsdist.StreamingDataLoader(dataset, batch_size, num_workers=workers, drop_last=train)


class Training:
    """The parts of a checkpoint: the network, its optimiser and the position of the loader."""

    def __init__(self, shards: list[Path], batch_size: int, workers: int) -> None:
        torch.manual_seed(0)
        self.loader = make_loader(shards, batch_size, workers, train=True)
        self.network = DistributedDataParallel(
            nn.Sequential(
                *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(64 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10)),
            )
        )
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=3e-3)

    def batches(self) -> Iterator[list[str]]:
        """Train on the rest of this epoch; yield the keys of each batch."""
        for batch in self.loader:
            loss = nn.functional.cross_entropy(self.network(pixels(batch)), batch["cls"])
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            yield batch["__key__"]

    def save(self, path: Path) -> None:
        """Write one checkpoint for all ranks: the state of the loader is the same on every rank."""
        if dist.get_rank() == 0:
            parts = {"network": self.network, "optimiser": self.optimiser, "loader": self.loader}
            torch.save({name: part.state_dict() for name, part in parts.items()}, path)
        wdsdist.barrier()

    def restore(self, path: Path) -> None:
        checkpoint = torch.load(path)
        self.network.load_state_dict(checkpoint["network"])
        self.optimiser.load_state_dict(checkpoint["optimiser"])
        self.loader.load_state_dict(checkpoint["loader"])
        report(f"    continues at {checkpoint['loader']}")


def pixels(batch: dict[str, Any]) -> torch.Tensor:
    return batch["npy"].unsqueeze(1).float() / 255 - 0.5


def accuracy(network: nn.Module, loader: wdsdist.StreamingDataLoader) -> float:
    right = torch.zeros(2)
    with torch.no_grad():
        for batch in loader:
            guess = network(pixels(batch)).argmax(1)
            right += torch.tensor([(guess == batch["cls"]).sum(), len(guess)])
    dist.all_reduce(right)
    return float(right[0] / right[1])


def report(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


def check(promise: str, holds: bool) -> None:
    """Assert a promise: print its result, and exit with an error if it is broken."""
    report(f"    {'ok ' if holds else 'BROKEN'} {promise}")
    if not holds:
        raise SystemExit(1)


def check_epoch(keys: Keys, training: Training) -> Keys:
    """Compare the samples that all ranks saw in an epoch with the promises."""
    ranks: list[Keys] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, keys)
    report("    " + ", ".join(f"rank {r}: {len(k)} batches, {sum(map(len, k)):,} samples" for r, k in enumerate(ranks)))
    seen = Counter(chain.from_iterable(chain.from_iterable(ranks)))
    total = training.loader.dataset.num_samples
    tail = total % (training.loader.batch_size * len(ranks))
    length = len(training.loader)
    check(f"every rank had {length} batches, as len() said", all(len(batches) == length for batches in ranks))
    check("no sample was seen twice", max(seen.values()) == 1)
    check(
        f"{len(seen):,} of {total:,} samples were seen: all but the dropped tail of {tail}", total - len(seen) == tail
    )
    return ranks[dist.get_rank()]


def prepare_once(data: Path, work: Path) -> dict[str, list[Path]]:
    started = time.perf_counter()
    shards = prepare(data, work)
    wdsdist.barrier()
    runs = (work / "packed-by.log").read_text().splitlines()
    train = wdsdist.open(shards["train"][0] if len(shards["train"]) == 1 else shards["train"])
    report(
        f"packed in {time.perf_counter() - started:.1f} s: {train.num_samples:,} training samples in "
        f"{len(train.shards)} shards of {train.num_bytes / len(train.shards) / 2**20:.1f} MiB"
    )
    check(f"packing ran once for {dist.get_world_size()} ranks, in {runs[0]}", len(runs) == 1)
    return shards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data", help="folder with the IDX files")
    parser.add_argument("--work", type=Path, default=Path("demo-data"), help="where the shards go")
    parser.add_argument("--batch-size", type=int, default=32, help="samples a batch on each rank")
    parser.add_argument("--workers", type=int, default=2, help="loader workers of each rank")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    report(f"wdsdist {wdsdist.__version__}: {dist.get_world_size()} gloo ranks with {options.workers} workers each")
    shards = prepare_once(options.data, options.work)

    training = Training(shards["train"], options.batch_size, options.workers)
    halfway = len(training.loader) // 2
    started = time.perf_counter()
    report("epoch 1")
    first = check_epoch(list(training.batches()), training)

    report(f"epoch 2, stopped after {halfway} batches")
    running = training.batches()
    before = [next(running) for _ in range(halfway)]
    training.save(options.work / "checkpoint.pt")
    trained = time.perf_counter() - started
    del training, running

    report("epoch 2, restarted from the checkpoint")
    training = Training(shards["train"], options.batch_size, options.workers)
    training.restore(options.work / "checkpoint.pt")
    started = time.perf_counter()
    after = list(training.batches())
    trained += time.perf_counter() - started
    # The oracle: a separate loader that reads the second epoch without a stop.
    undisturbed = make_loader(shards["train"], options.batch_size, options.workers, train=True)
    undisturbed.set_epoch(1)
    expected = [batch["__key__"] for batch in undisturbed]
    check(f"the {len(after)} batches after the restart are those that were left", before + after == expected)
    second = check_epoch(before + after, training)
    check("epoch 2 had another order than epoch 1", first != second)
    others = len(set(chain(*second)) - set(chain(*first)))
    check(f"{others:,} samples of rank 0 were new to it in epoch 2", others > 0)

    images = sum(map(len, chain(first, second))) * dist.get_world_size()
    score = accuracy(training.network, make_loader(shards["test"], options.batch_size, options.workers, train=False))
    report(f"trained on {images / trained:,.0f} images/s")
    check(f"test accuracy {score:.1%} (over 80 %)", score > 0.8)
    wdsdist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
