"""Train a tiny byte-level language model on packed rows of three mixed sources, stop it, and resume it elsewhere.

Run it in a checkout; it downloads nothing and takes a minute on two cores:

    python examples/train_tiny_lm.py

The text comes from this repository: its documentation, its front pages and its code. Each of the three is a data set of
documents, tokenised to bytes. `wdsdist.mix` mixes them, and the loader packs them into rows.

A run on two processes saves a checkpoint in the middle and continues: it is the oracle. A second run resumes from the
checkpoint in one process, which runs both replicas of the model in turn and accumulates their gradients. Its steps have
the same tokens, and so the same loss. A loader for one replica also resumes from this state: it packs the remaining
documents again, so its steps differ, but the epoch has the same tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import wdsdist
from wdsdist import batching

ROOT = Path(__file__).resolve().parents[1]
REPLICAS = 2
ROWS = 4
"""Rows of a batch of one replica."""
TOKENS = 512
"""Tokens of a row."""
WEIGHTS = {"docs": 0.4, "front": 0.1, "code": 0.5}


def documents(source: str) -> Iterator[dict[str, Any]]:
    """Yield the documents of one source as samples: sections of the pages, or top-level definitions of the code."""
    files = {
        "docs": sorted((ROOT / "docs").rglob("*.md")),
        "front": [ROOT / "README.md", ROOT / "CHANGELOG.md"],
        "code": sorted((ROOT / "wdsdist").rglob("*.py")),
    }[source]
    number = 0
    for path in files:
        for text in re.split(r"\n\n\n" if source == "code" else r"\n(?=#+ )", path.read_text()):
            if text.strip():
                yield {"__key__": f"{source}{number:06}", "ids": text.encode()}
                number += 1


def make_dataset(work: Path, **where: Any) -> wdsdist.StreamingDataset:
    sources = {name: (work / name, weight) for name, weight in WEIGHTS.items()}
    return wdsdist.mix(sources, decode={"ids": np.uint8}, seed=0, **where)


def make_loader(dataset: wdsdist.StreamingDataset, rows: int = ROWS, workers: int = 0) -> wdsdist.StreamingDataLoader:
    packed = batching.PackedRows(rows, tokens=TOKENS, length="ids.tokens", labels="next")
    return wdsdist.StreamingDataLoader(dataset, batches=packed, num_workers=workers)


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, tokens, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(
            nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(x.shape)
        )
        return x + self.feed(self.norms[1](x))


class TinyModel(nn.Module):
    """A transformer with about 160,000 parameters; the vocabulary is the 256 bytes."""

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(TOKENS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 256)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the sum of the losses of all targets in a batch."""
        documents, positions = batch["document_ids"], batch["position_ids"]
        # Each token attends to earlier tokens of its own document, and padding attends to padding.
        mask = (documents[:, :, None] == documents[:, None, :]) & (positions[:, :, None] >= positions[:, None, :])
        x = self.tokens(batch["ids"].long()) + self.positions(positions)
        for block in self.blocks:
            x = block(x, mask[:, None])
        return nn.functional.cross_entropy(
            self.head(x).flatten(0, 1), batch["labels"].flatten(), ignore_index=-100, reduction="sum"
        )


class Training:
    """The model, its optimizer, and the loaders of the replicas that this process runs."""

    def __init__(self, work: Path) -> None:
        torch.manual_seed(0)
        self.model = TinyModel()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        played = range(dist.get_rank(), REPLICAS, dist.get_world_size())
        # Passed as arguments, the rank and the number of replicas do not depend on the number of processes.
        self.loaders = [make_loader(make_dataset(work, rank=rank, num_replicas=REPLICAS)) for rank in played]

    def batches(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the batches of each step, epoch after epoch."""
        while True:
            yield from zip(*self.loaders, strict=True)

    def step(self, batches: list[dict[str, Any]]) -> dict[str, Any]:
        """Train on one global batch, and return its description, the same in every process."""
        gathered = [dist.get_world_size() * [None], None]
        own = [(batch["__key__"], int((batch["document_ids"] >= 0).sum()), checksum(batch)) for batch in batches]
        dist.all_gather_object(gathered[0], own)
        replicas = [replica for group in zip(*gathered[0], strict=True) for replica in group]
        sums = torch.tensor([0.0, sum(float((batch["labels"] >= 0).sum()) for batch in batches)])
        self.optimizer.zero_grad()
        for batch in batches:
            loss = self.model(batch)
            loss.backward()
            sums[0] += loss.detach()
        dist.all_reduce(sums)
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= sums[1]
        self.optimizer.step()
        return {"loss": float(sums[0] / sums[1]), "replicas": replicas}

    def save(self, path: Path) -> None:
        """Write one checkpoint for all ranks: the state of the loader is the same on every rank."""
        parts = {"model": self.model, "optimizer": self.optimizer, "loader": self.loaders[0]}
        if dist.get_rank() == 0:
            torch.save({name: part.state_dict() for name, part in parts.items()}, path)

    def restore(self, path: Path) -> None:
        checkpoint = torch.load(path)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        for loader in self.loaders:
            loader.load_state_dict(checkpoint["loader"])


def checksum(batch: dict[str, Any]) -> int:
    """Return a number that differs between batches with other tokens or another order."""
    return int((batch["ids"].long().flatten() * torch.arange(1, batch["ids"].numel() + 1)).sum())


def train(work: Path, first: int, last: int, name: str) -> None:
    """Train as one process of a run, from step ``first`` up to ``last``, and save a description of each step.

    A run from the start saves a checkpoint in the middle.
    """
    # One process runs two replicas on purpose.
    warnings.filterwarnings("ignore", "num_replicas is 2 but torch.distributed's world size is 1")
    training = Training(work)
    if first:
        training.restore(work / "checkpoint.pt")
    started, steps = time.perf_counter(), []
    for number, batches in zip(range(first, last), training.batches(), strict=False):
        steps.append(training.step(batches))
        if not first and number + 1 == last // 2:
            training.save(work / "checkpoint.pt")
        if dist.get_rank() == 0 and (number % 20 == 0 or number == last - 1):
            print(f"    step {number}: loss {steps[-1]['loss']:.4f}", flush=True)
    if dist.get_rank() == 0:
        seconds = time.perf_counter() - started
        (work / f"{name}.json").write_text(json.dumps({"seconds": seconds, "steps": steps}))


def run(work: Path, processes: int, first: int, last: int, name: str) -> list[dict[str, Any]]:
    """Start a run under torchrun, and return its steps."""
    print(f"{name}: steps {first} to {last - 1} on {processes} process{'es' if processes > 1 else ''}", flush=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += [__file__, "--work", str(work), "--part", str(first), str(last), name]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    result = json.loads((work / f"{name}.json").read_text())
    tokens = [[tokens for _, tokens, _ in step["replicas"]] for step in result["steps"]]
    fill = np.mean(tokens) / (ROWS * TOKENS)
    balance = np.mean([max(step) / np.mean(step) for step in tokens])
    rate = np.sum(tokens) / result["seconds"]
    print(f"    fill {fill:.3f}, fullest replica over mean {balance:.3f}, {rate:,.0f} tokens/s", flush=True)
    return result["steps"]


def check(promise: str, holds: bool) -> None:
    """Assert a promise: print its result, and exit with an error if it is broken."""
    print(f"    {'ok ' if holds else 'BROKEN'} {promise}", flush=True)
    if not holds:
        raise SystemExit(1)


def rest_of_epoch(work: Path, replicas: int) -> Counter[str]:
    """Return the tokens that are left in the epoch of the checkpoint, by key, if this number of replicas resumes it."""
    state, left = torch.load(work / "checkpoint.pt")["loader"], Counter[str]()
    for rank in range(replicas):
        loader = make_loader(make_dataset(work, rank=rank, num_replicas=replicas))
        loader.load_state_dict(state)
        for batch in loader:
            for row, keys in enumerate(batch["__key__"]):
                sizes = torch.bincount(batch["document_ids"][row] + 1, minlength=len(keys) + 1)[1:].tolist()
                left.update(dict.fromkeys(keys, 0))
                for key, size in zip(keys, sizes, strict=True):
                    left[key] += size
    return left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("tiny-lm"), help="where shards and checkpoints go")
    parser.add_argument("--steps", type=int, default=60, help="steps of the run without a stop")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        dist.init_process_group("gloo")
        train(options.work, int(options.part[0]), int(options.part[1]), options.part[2])
        dist.destroy_process_group()
        return

    for name in WEIGHTS:
        data = wdsdist.pack(documents(name), options.work / name, shard_samples=100, overwrite=True)
        sizes = data.column("ids.bytes")
        print(f"{name}: {data.num_samples:,} documents, {sizes.sum():,} tokens, the longest {sizes.max():,}")
    length = len(make_loader(make_dataset(options.work, rank=0, num_replicas=REPLICAS)))
    size = sum(parameter.numel() for parameter in TinyModel().parameters())
    print(f"{size:,} parameters; {length} steps an epoch of {REPLICAS} x {ROWS} rows of {TOKENS} tokens")

    half = options.steps // 2
    whole = run(options.work, 2, 0, options.steps, "without a stop")
    resumed = run(options.work, 1, half, options.steps, "resumed")
    check(
        f"{len(resumed)} steps had the same keys and tokens",
        [s["replicas"] for s in resumed] == [s["replicas"] for s in whole[half:]],
    )
    apart = max(abs(step["loss"] - other["loss"]) for step, other in zip(resumed, whole[half:], strict=True))
    check(f"the losses are the same: at most {apart:.1e} apart", math.isfinite(apart) and apart < 1e-3)
    left, again = (rest_of_epoch(options.work, replicas) for replicas in (REPLICAS, 1))
    check(f"a loader for one replica has the same {left.total():,} tokens left of the epoch", left == again)
    print(f"loss {whole[0]['loss']:.3f} at first, {whole[-1]['loss']:.3f} at the end")


if __name__ == "__main__":
    main()
