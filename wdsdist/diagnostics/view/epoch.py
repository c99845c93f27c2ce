"""An epoch as a picture: the shards that each rank reads for each batch, by the data set's own order and plan."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from wdsdist.diagnostics.epoch_report import epoch_of, evenly
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.shards.manifest import Manifest

_ROWS, _STEPS = 24, 160
"""The most ranks, and batches of each, that the picture has; they are spread evenly if there are more."""
_SHARDS = 6
"""Shards of a batch that are named."""


def picture(manifest: Manifest, *, ranks: int, batch_size: int, epoch: int, seed: int) -> dict[str, Any]:
    """Return which shards each rank reads for each of the batches of a `StreamingDataLoader`, as JSON has it."""
    plan = epoch_of(manifest, ranks=ranks, batch_size=batch_size, epoch=epoch, seed=seed).plan
    assert isinstance(plan, EpochPlan)
    assert plan.order is not None
    rows, batches = evenly(ranks, _ROWS).tolist(), evenly(plan.batches_per_rank, _STEPS).tolist()
    positions = [plan.positions(rank=rank, batch=batch) for rank in rows for batch in batches]
    shards = plan.order.make().locate(np.concatenate([np.zeros(0, np.int64), *positions]))[0]
    cells: list[list[tuple[int, int]]] = []
    for part in np.split(shards, np.cumsum([len(part) for part in positions]))[:-1]:
        cells.append(Counter(part.tolist()).most_common(_SHARDS))
    named = sorted({shard for cell in cells for shard, _ in cell})
    return {
        "choice": {"ranks": ranks, "batch_size": batch_size, "epoch": epoch, "seed": seed},
        "ranks": rows,
        "batches": batches,
        "cells": cells,
        "shards": {str(number): manifest.shown_name(number) for number in named},
        "num_shards": len(manifest.counts),
        "batches_per_rank": plan.batches_per_rank,
        "samples": plan.batches_per_rank * plan.batch_size * plan.num_replicas,
    }
