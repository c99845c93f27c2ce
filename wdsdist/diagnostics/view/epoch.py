"""An epoch as a picture, and its batches as training gets them: by the data set's own order, plan and sample reader."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import MOST_PROCESSES, check_integer
from wdsdist.diagnostics.epoch_report import evenly
from wdsdist.diagnostics.view import describe
from wdsdist.errors import ArgumentError, WdsdistError
from wdsdist.samples.member_reader import shard_name
from wdsdist.sampling.epoch_plan import EpochPlan, FixedBatches
from wdsdist.sampling.order_config import OrderConfig
from wdsdist.sampling.plan import Position, World
from wdsdist.shards.manifest import Manifest

if TYPE_CHECKING:
    from wdsdist.loader.dataset import StreamingDataset
    from wdsdist.sampling.order import Order, OrderName

_ROWS, _STEPS = 24, 160
"""The most ranks, and batches of each, that the picture has; they are spread evenly if there are more."""
_SHARDS = 6
"""Shards of a batch that are named."""
_MOST_SAMPLES = 256
"""Samples of a batch that are made, at most."""
_MOST_LISTED = 50_000_000
"""Samples up to which the order of ``DistributedSampler`` is made, which holds all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochChoice:
    """An epoch of a training run."""

    ranks: int
    batch_size: int
    epoch: int = 0
    seed: int = 0
    order: OrderName = "shard"

    def __post_init__(self) -> None:
        check_integer("ranks", self.ranks, 1, MOST_PROCESSES)
        check_integer("batch size", self.batch_size, 1, 1 << 20)
        check_integer("epoch", self.epoch, 0, 1 << 40)
        check_integer("seed", self.seed, 0, (1 << 63) - 1)
        if self.order not in ("shard", "sampler"):
            raise ArgumentError(f"order is {self.order!r}: it must be 'shard' or 'sampler'")


@dataclass(frozen=True, slots=True)
class EpochPages:
    """The epochs of a data set."""

    manifest: Manifest
    style: describe.Style
    """What is known of the data set for descriptions."""
    decode: Any = True
    transform: Callable[[Any], Any] | None = None
    """As `StreamingDataset` takes both."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def picture(self, choice: EpochChoice) -> dict[str, Any]:
        """Return which shards each rank reads for each of its batches, as JSON has it."""
        order, plan = self._plan(choice)
        ranks = evenly(choice.ranks, _ROWS).tolist()
        batches = evenly(plan.batches_per_rank, _STEPS).tolist()
        places = [plan.positions(rank=rank, batch=batch) for rank in ranks for batch in batches]
        cells: list[list[list[int]]] = []
        if places:
            shards = order.locate(np.concatenate(places))[0]
            cells = [_most_frequent(one) for one in np.split(shards, np.cumsum([len(one) for one in places])[:-1])]
        named = sorted({shard for cell in cells for shard, _ in cell})
        return {
            "choice": asdict(choice),
            "ranks": ranks,
            "batches": batches,
            "cells": cells,
            "shards": {str(number): shard_name(self.manifest, number) for number in named},
            "num_shards": len(self.manifest.counts),
            "batches_per_rank": plan.batches_per_rank,
            "samples": plan.batches_per_rank * plan.batch_size * plan.num_replicas,
        }

    def batch(self, choice: EpochChoice, *, rank: int, batch: int) -> dict[str, Any]:
        """Return the samples of one batch, decoded and transformed, as JSON has them; a bad one as its error."""
        check_integer("rank", rank, 0, choice.ranks - 1)
        with self._lock:  # a sample reader is made for one thread
            order, plan = self._plan(choice)
            dataset = self._dataset(choice, rank)
            if batch >= plan.batches_per_rank:
                count = plan.batches_per_rank
                raise ArgumentError(f"there is no batch {batch:,}: each rank has {count:,}, numbered from 0")
            positions = plan.positions(rank=rank, batch=batch)[:_MOST_SAMPLES]
            shards, samples = order.locate(positions)
            found = zip(shards.tolist(), samples.tolist(), order.epochs(positions).tolist(), strict=True)
            made = [self._made(dataset, shard, sample, epoch) for shard, sample, epoch in found]
        return {"rank": rank, "batch": batch, "size": plan.batch_size, "samples": made}

    def _plan(self, choice: EpochChoice) -> tuple[Order, EpochPlan]:
        """Return the order of an epoch, and the batches that a `StreamingDataLoader` makes."""
        if choice.order == "sampler" and self.manifest.num_samples > _MOST_LISTED:
            raise ArgumentError(
                f"the order 'sampler' lists all samples, and is shown for {_MOST_LISTED:,} at most: look at 'shard'"
            )
        config = OrderConfig(manifest=self.manifest, name=choice.order, seed=choice.seed)
        batches = FixedBatches(batch_size=choice.batch_size, drop_last=False, drop_last_batch=True)
        order = config.order(config.settings(choice.ranks), choice.epoch)
        plan = batches.plan(order, Position(choice.epoch), World(choice.ranks))
        assert plan.order is not None
        return plan.order(), plan

    def _dataset(self, choice: EpochChoice, rank: int) -> StreamingDataset:
        """Return the data set of a rank."""
        from wdsdist.loader.dataset import StreamingDataset

        return StreamingDataset(
            self.manifest, decode=self.decode, transform=self.transform, num_replicas=choice.ranks,
            rank=rank, seed=choice.seed, order=choice.order,
        )  # fmt: skip

    def _made(self, dataset: StreamingDataset, shard: int, sample: int, epoch: int) -> dict[str, Any]:
        number = int(self.manifest.ends[shard] - self.manifest.counts[shard]) + sample
        found: dict[str, Any] = {"number": number, "shard": shard_name(self.manifest, shard), "key": "", "members": []}
        try:
            made = dataset.sample_reader.sample(shard, sample, epoch)
        except WdsdistError as error:
            return {**found, "error": str(error)}
        except Exception as error:  # of the user's transform
            return {**found, "error": f"{type(error).__name__}: {error}"}
        if not isinstance(made, Mapping):
            made = {"sample": made}
        for name, value in made.items():
            if name == "__key__":
                found["key"] = str(value)
            elif name == "__dataset__":
                found["dataset"] = str(value)
            elif name != "__shard__":
                found["members"].append({"extension": str(name), "about": self._described(str(name), value)})
        return found

    def _described(self, name: str, value: Any) -> describe.Description:
        try:
            return describe.value(name, value, describe.TILE, self.style)
        except Exception as error:
            return {"kind": "error", "message": f"{type(error).__name__}: {error}"}


def _most_frequent(shards: Int64s) -> list[list[int]]:
    """Return the shards of a batch with how many samples come from each, the most first."""
    numbers, counts = np.unique(shards, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_SHARDS]
    return [[int(numbers[one]), int(counts[one])] for one in order]
