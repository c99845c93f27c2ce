"""What planned batches are like: how full, how even over the ranks, and what it costs to plan them.

Lengths are lognormal (sigma 1). Measured in one process:

- *fill*: useful tokens over the room of all batches or rows; *balance*: tokens of the fullest rank of a step over the
  mean of its ranks, averaged over the steps;
- *us a sample*: processor time to plan, or to pack, divided by the samples, for all ranks together;
- token budgets and packed rows of 64 and 256 steps a block, for 1, 8 and 64 ranks on nodes of 8;
- batches of 64 samples, padded: of like lengths (``LengthGroups``), as they come, and with ``pip install
  transformers`` as ``train_sampling_strategy="group_by_length"`` of its ``Trainer`` draws them;
- beside packed rows: rows packed from a buffer of 64 open rows on every rank by
  itself, by first fit and by best fit. With ``pip install grain`` these are its iterators, else plain Python versions;
- with ``pip install trl datasets``, ``trl.pack_dataset``, which packs a data set before training, by ``bfd`` (best fit,
  in batches of 1,000 documents) and by ``wrapped`` (all documents joined and cut), its rows shuffled and dealt to the
  ranks; with ``pip install litdata``, its ``TokensLoader``, which joins and cuts as well. *cut* is the share of
  documents that do not lie in one row.
- *shards opened*: by all nodes of an epoch of 32 shards of 1,000 samples for each rank, over those that batches of a
  fixed number of samples open; by ``TokenBudget``, ``LengthGroups`` and ``Buckets`` of ten equally frequent categories;
- *waits*: how long a loop that rests 5 ms a step waits for its batches, at the start of a block and elsewhere, as one
  of 32 ranks in blocks of 65,000 samples: in its own process, and with 2 workers;
- *transport*: tokens a second that a loader with 2 workers hands over, in batches of a fixed number of samples, of a
  number of tokens, and in packed rows of the same data.

The fill of planned batches is the mean of some blocks: one step more for a block of 64 takes 1.5 %. Steps of the
buffers are compared up to the shortest rank, while every row counts for their fill.

    python tools/bench/bench_batching.py [--ranks 1 8 64] [--steps 64 256] [--documents 20000] [--json FILE]

Results are in docs/variable-lengths.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import wdsdist
from wdsdist._util.array_types import Int64s
from wdsdist.batching import PackedRows, TokenBudget
from wdsdist.batching.batcher import BLOCK_STEPS
from wdsdist.batching.block_plan import BlockSamples, Rule, plan_block
from wdsdist.batching.planned_epoch import PlannedEpoch
from wdsdist.sampling.order import EpochOrder, OrderSettings, default_window, epoch_order
from wdsdist.sampling.plan import Position, World

try:
    import grain
except ImportError:
    grain = None

try:
    import litdata
except ImportError:
    litdata = None

try:
    import datasets
    import trl
except ImportError:
    trl = None

try:
    import transformers
    from transformers.trainer_pt_utils import get_length_grouped_indices
except ImportError:
    transformers = None

MEAN = 512
ROW = 8 * MEAN
BATCH_ROWS = 4
BUDGET = BATCH_ROWS * ROW
BUFFER = 64
"""Rows that are open at once in a packing buffer."""


def lengths_of(count: int, seed: int = 0) -> Int64s:
    """Return lognormal lengths with a mean of some 512, none longer than a row."""
    drawn = np.random.default_rng(seed).lognormal(np.log(MEAN) - 0.5, 1, count)
    return np.clip(drawn, 1, ROW).astype(np.int64)


def planned(kind: str, ranks: int, steps: int, blocks: int) -> dict[str, Any]:
    """Plan blocks of so many steps on average, cut by the mean length as a loader cuts them."""
    count = int(ranks * steps * BUDGET / lengths_of(1_000_000).mean())
    rule = Rule(budget=BUDGET)
    if kind == "rows":
        rule = Rule(has_rows=True, budget=ROW, most=BATCH_ROWS)
    owners = np.arange(count) % ranks
    shards = np.arange(count) // ranks // 500 * ranks + owners
    found, took = [], 0.0
    for seed in range(blocks):
        lengths = lengths_of(count, seed)
        samples = BlockSamples(lengths, owners, shards=shards)
        started = time.process_time()
        plan = plan_block(samples, rule, World(ranks, 8), seed)
        took += time.process_time() - started
        ends = np.concatenate(([0], np.cumsum(lengths[plan.samples])))
        found.append((ends[plan.bounds[1:]] - ends[plan.bounds[:-1]]).reshape(plan.steps, ranks))
    name = "token budget" if kind == "tokens" else "packed rows"
    loads = np.concatenate(found)
    return figures(f"wdsdist, {name}, {steps} steps a block", ranks, loads, BUDGET, took / (count * blocks))


def opened(kind: str, ranks: int, per_node: int, each: int = 32, size: int = 64) -> dict[str, Any]:
    """Plan an epoch of some shards of 1,000 samples for each rank, and count the shards that nodes open."""
    counts = np.full(ranks * each, 1000)
    settings = OrderSettings(num_canonical_replicas=ranks, window=default_window(counts))
    lengths = lengths_of(int(counts.sum()))
    buckets = np.random.default_rng(1).integers(0, 10, len(lengths))
    made = epoch_order(counts, settings, 0)
    order = EpochOrder(num_samples=len(lengths), seed=0, label="", make=lambda: made)
    epoch = PlannedEpoch(
        rule=Rule(budget=size * MEAN) if kind == "tokens" else Rule(most=size),
        # All samples of a bucket are alike, as images of one size are.
        lengths=lambda shards, samples: lengths[shards * 1000 + samples] if kind != "buckets" else np.ones_like(shards),
        buckets=(lambda shards, samples: buckets[shards * 1000 + samples]) if kind == "buckets" else None,
        block_samples=ranks * size * BLOCK_STEPS,
        order=order,
        world=World(ranks, per_node),
        start=Position(0),
    )
    reads = np.zeros((2, ranks // per_node, len(counts)), np.bool_)
    balance = []
    for number in range(epoch.num_blocks):
        block = epoch.block(number)
        owner = np.repeat(np.arange(len(block.bounds) - 1) % ranks, np.diff(block.bounds))
        reads[0, owner // per_node, block.shards] = True
        positions = np.arange(number * epoch.block_samples, min((number + 1) * epoch.block_samples, len(lengths)))
        reads[1, positions % ranks // per_node, order.make().locate(positions)[0]] = True
        costs = epoch.rule.costs(block.stops - block.starts)
        costs = np.add.reduceat(costs, block.bounds[:-1]).reshape(block.steps, ranks)
        balance.append(costs.max(axis=1) / costs.mean(axis=1))
    over = int(reads[0].sum()) / int(reads[1].sum())
    return {"what": kind, "ranks": ranks, "a_node": per_node, "shards": over, "balance": np.concatenate(balance).mean()}


def figures(name: str, ranks: int, loads: Any, room: float, seconds: float | None) -> dict[str, Any]:
    """Return a row of the table; ``loads`` are the tokens of [steps, ranks]."""
    balance = float((loads.max(axis=1) / loads.mean(axis=1)).mean())
    fill = float(loads.sum() / (loads.size * room))
    return {"what": name, "ranks": ranks, "fill": fill, "balance": balance, "us": seconds and seconds * 1e6}


def padded(ranks: int, count: int, size: int = 64) -> list[dict[str, Any]]:
    """Return what batches of a fixed number of samples are like, padded to the longest."""
    steps = max(1, count // (ranks * size))
    lengths = lengths_of(ranks * size * steps)
    owners = np.arange(len(lengths)) % ranks
    samples = BlockSamples(lengths, owners, shards=owners)
    ways = {
        "wdsdist, LengthGroups": plan_block(samples, Rule(most=size), World(ranks, 8), 0).samples,
        "as they come": np.arange(len(lengths)),
    }
    if transformers:
        ways["Transformers, group_by_length"] = np.array(get_length_grouped_indices(lengths.tolist(), size))
    found = []
    for name, order in ways.items():
        batches = lengths[order].reshape(steps, ranks, size)
        fill = float(lengths.sum() / (batches.max(axis=2).sum() * size))
        row = figures(f"{name}, batches of {size} samples, padded", ranks, batches.sum(axis=2), 1, None)
        found.append(row | {"fill": fill})
    return found


def buffered(how: str, ranks: int, count: int) -> dict[str, Any]:
    """Sequence packing on each rank alone, by a buffer of open rows; steps that all ranks have are compared."""
    lengths = lengths_of(count)
    started = time.process_time()
    rows = [(_grain if grain else _plain)(how, lengths[rank::ranks]) for rank in range(ranks)]
    took = time.process_time() - started
    steps = min(len(found) for found in rows) // BATCH_ROWS
    loads = np.array([found[: steps * BATCH_ROWS] for found in rows]).reshape(ranks, steps, BATCH_ROWS).sum(axis=2).T
    name = f"{'Grain' if grain else 'plain Python'}, {how}-fit buffer of {BUFFER} rows"
    found = figures(name, ranks, loads, BUDGET, took / count)
    # Every row counts, also those that a rank has more than others.
    fill = float(lengths.sum() / (sum(len(of) for of in rows) * ROW))
    return found | {"fill": fill, "us": None if grain else found["us"]}  # Grain makes the rows as well


def _grain(how: str, lengths: Int64s) -> list[int]:
    """Return the tokens of each row that Grain packs."""
    of = {"first": "FirstFitPackIterDataset", "best": "BestFitPackIterDataset"}[how]
    tokens = np.zeros(ROW, np.int32)
    source = grain.MapDataset.source(lengths.tolist()).map(lambda length: {"ids": tokens[:length]}).to_iter_dataset()
    packed = getattr(grain.experimental, of)(source, length_struct={"ids": ROW}, num_packing_bins=BUFFER)
    return [int((row["ids_segment_ids"] > 0).sum()) for row in packed]


def _plain(how: str, lengths: Int64s) -> list[int]:
    """Put each length into the first, or the fullest, open row with room; without one, all rows are handed out."""
    rooms: list[int] = []
    done = []
    for length in lengths.tolist():
        fitting = [(room, place) for place, room in enumerate(rooms) if room >= length]
        if not fitting and len(rooms) == BUFFER:
            done += [ROW - room for room in rooms]
            rooms = []
        if not fitting:
            rooms.append(ROW - length)
        else:
            place = min(fitting)[1] if how == "best" else fitting[0][1]
            rooms[place] -= length
    return done + [ROW - room for room in rooms]


def joined(folder: Path, ranks: int, count: int) -> list[dict[str, Any]]:
    """Rows of whole data sets that were packed, or joined and cut, before training, where the libraries are there."""
    lengths = lengths_of(count)
    documents = [np.arange(length, dtype=np.int32) for length in lengths]  # which begin with 0, and nothing else does
    ways = {}
    if trl:
        source = datasets.Dataset.from_dict({"input_ids": [one.tolist() for one in documents]})
        for how in ("bfd", "wrapped"):
            packed = trl.pack_dataset(source, ROW, strategy=how, map_kwargs={"batch_size": 1000})
            ways[f"TRL, pack_dataset, {how}"] = [np.array(row) for row in packed["input_ids"]]
    if litdata:
        litdata.optimize(
            fn=_tokens, inputs=documents, output_dir=str(folder), chunk_bytes="64MB", num_workers=1,
            item_loader=litdata.TokensLoader(), start_method="fork", verbose=False,
        )  # fmt: skip
        source = litdata.StreamingDataset(str(folder), item_loader=litdata.TokensLoader(block_size=ROW))
        ways["LitData, TokensLoader"] = [source[number].numpy() for number in range(len(source))]
    found = []
    for name, rows in ways.items():
        cut = sum(int(row[0] != 0) for row in rows) / count
        order = np.random.default_rng(0).permutation(len(rows))[
            : len(rows) // (ranks * BATCH_ROWS) * ranks * BATCH_ROWS
        ]
        loads = np.array([len(rows[number]) for number in order]).reshape(-1, ranks, BATCH_ROWS).sum(axis=2)
        found.append(figures(f"{name}, {cut:.0%} cut", ranks, loads, BUDGET, None))
    return found


def _tokens(document: Any) -> Any:
    import torch

    return torch.from_numpy(document)


def ragged(samples: list[dict[str, Any]]) -> list[Any]:
    """Collate samples of different lengths: a list of their tokens."""
    return [sample["ids"] for sample in samples]


def transport(folder: Path, count: int) -> list[dict[str, Any]]:
    """Measure the tokens a second that a loader hands over, in the second of two epochs."""
    lengths = lengths_of(count)
    per_batch = int(BUDGET / lengths.mean())
    ways: dict[str, tuple[Int64s, dict[str, Any]]] = {
        f"{per_batch} samples of {BUDGET // per_batch} tokens, stacked": (
            np.full(count, BUDGET // per_batch), {"batch_size": per_batch}
        ),
        f"{per_batch} samples of different lengths, a list": (
            lengths, {"batch_size": per_batch, "collate_fn": ragged}
        ),
        f"up to {BUDGET:,} tokens, a list": (
            lengths, {"batches": TokenBudget(BUDGET, length="ids.tokens"), "collate_fn": ragged}
        ),
        f"{BATCH_ROWS} packed rows of {ROW:,}": (
            lengths, {"batches": PackedRows(BATCH_ROWS, tokens=ROW, length="ids.tokens")}
        ),
    }  # fmt: skip
    found = []
    for number, (name, (of, options)) in enumerate(ways.items()):
        here = folder / str(number)
        wdsdist.pack(({"ids": np.ones(length, np.int32).tobytes()} for length in of), here, shard_samples=1000)
        dataset = wdsdist.StreamingDataset(here, decode={"ids": np.int32})
        loader = wdsdist.StreamingDataLoader(dataset, num_workers=2, **options)
        for epoch in range(2):
            loader.set_epoch(epoch)
            started = time.perf_counter()
            batches = sum(1 for _ in loader)
            took = time.perf_counter() - started
        found.append({"what": name, "batches": batches, "tokens_a_second": int(of.sum()) / took})
    return found


def waits(folder: Path, ranks: int = 32, samples: int = 16, steps: int = 300) -> list[dict[str, Any]]:
    """Measure how long a loop waits for its batches, in milliseconds, where blocks are planned beside it."""
    lengths = np.minimum(lengths_of(ranks * samples * steps) // 16, 200)
    wdsdist.pack(({"ids": bytes(length)} for length in lengths.tolist()), folder, shard_samples=1000)
    found = []
    for workers in (0, 2):
        dataset = wdsdist.StreamingDataset(folder, decode={"ids": np.uint8}, num_replicas=ranks, rank=0)
        budget = int(samples * lengths.mean())
        loader = wdsdist.StreamingDataLoader(
            dataset, batches=TokenBudget(budget, length="ids.tokens"), collate_fn=ragged, num_workers=workers
        )
        ordinary, at_blocks = [], []
        for epoch in range(3):
            loader.set_epoch(epoch)
            block, ended, batches = 0, time.perf_counter(), iter(loader)
            for number, _ in enumerate(batches):
                took = time.perf_counter() - ended
                if number:  # the first batch of an epoch waits for its plan
                    (at_blocks if block != (block := loader.state_dict()["consumed"]) else ordinary).append(took * 1e3)
                time.sleep(0.005)
                ended = time.perf_counter()
        found.append(
            {"workers": workers, "blocks": len(at_blocks), "median": float(np.median(ordinary)),
             "p99": float(np.quantile(ordinary, 0.99)), "most": max(ordinary), "at_blocks": max(at_blocks)}
        )  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64], help="world sizes")
    parser.add_argument("--steps", type=int, nargs="+", default=[64, 256], help="steps of a block")
    parser.add_argument("--blocks", type=int, default=3, help="blocks that are planned of each")
    parser.add_argument("--documents", type=int, default=20_000, help="for all that is not planned, and the transport")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args()
    rows = [
        planned(kind, ranks, steps, options.blocks)
        for kind in ("tokens", "rows")
        for steps in options.steps
        for ranks in options.ranks
    ]
    beside = options.ranks[min(1, len(options.ranks) - 1)]
    rows += [
        *padded(beside, options.documents),
        *(buffered(how, beside, options.documents) for how in ("first", "best")),
    ]
    with tempfile.TemporaryDirectory() as folder:
        rows += joined(Path(folder) / "joined", beside, options.documents)
    print("| batches | ranks | fill | balance | us a sample |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        took = "" if row["us"] is None else f"{row['us']:.2f}"
        print(f"| {row['what']} | {row['ranks']} | {row['fill']:.4f} | {row['balance']:.4f} | {took} |")
    print("\n| batches | ranks | ranks a node | shards opened over plain | balance |\n| --- | --- | --- | --- | --- |")
    most = max(options.ranks)
    kinds = ("tokens", "groups", "buckets")
    near = [opened(kind, most, each) for kind in kinds for each in (1, 4, 8) if most % each == 0]
    for row in near:
        print(f"| {row['what']} | {row['ranks']} | {row['a_node']} | {row['shards']:.3f} | {row['balance']:.4f} |")
    with tempfile.TemporaryDirectory() as folder:
        moved = transport(Path(folder) / "tokens", options.documents)
        waited = waits(Path(folder) / "waits")
    print("\n| transport | million tokens a second |\n| --- | --- |")
    for row in moved:
        print(f"| {row['what']} | {row['tokens_a_second'] / 1e6:.1f} |")
    print("\n| workers | wait, median | 99 % | longest | longest at the start of a block, ms |")
    print("| --- | --- | --- | --- | --- |")
    for row in waited:
        shown = " | ".join(f"{row[name]:.1f}" for name in ("median", "p99", "most", "at_blocks"))
        print(f"| {row['workers']} | {shown} |")
    if options.json:
        everything = {"batching": rows, "opened": near, "transport": moved, "waits": waited}
        options.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
