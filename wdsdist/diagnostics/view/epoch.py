"""An epoch as a picture, and its batches as training gets them: by the data set's own order, plan and sample reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wdsdist._util.validation import check_integer
from wdsdist.diagnostics.epoch_report import epoch_of, evenly
from wdsdist.diagnostics.view import describe
from wdsdist.errors import ArgumentError, WdsdistError
from wdsdist.samples.sample_reader import SampleReader
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.order import Order
from wdsdist.shards.manifest import Manifest

_ROWS, _STEPS = 24, 160
"""The most ranks, and batches of each, that the picture has; they are spread evenly if there are more."""
_SHARDS = 6
"""Shards of a batch that are named."""
_MOST_SAMPLES = 256
"""Samples of a batch that are made, at most."""


Choice = dict[str, Any]
"""An epoch of a training run: ``ranks``, ``batch_size``, ``epoch`` and ``seed``."""


def picture(manifest: Manifest, choice: Choice) -> dict[str, Any]:
    """Return which shards each rank reads for each of its batches, as JSON has it."""
    order, plan = _planned(manifest, choice)
    ranks = evenly(choice["ranks"], _ROWS).tolist()
    batches = evenly(plan.batches_per_rank, _STEPS).tolist()
    positions = [plan.positions(rank=rank, batch=batch) for rank in ranks for batch in batches]
    shards = order.locate(np.concatenate([np.zeros(0, np.int64), *positions]))[0]
    cells: list[list[tuple[int, int]]] = []
    for part in np.split(shards, np.cumsum([len(part) for part in positions]))[:-1]:
        cells.append(Counter(part.tolist()).most_common(_SHARDS))
    named = sorted({shard for cell in cells for shard, _ in cell})
    return {
        "choice": choice,
        "ranks": ranks,
        "batches": batches,
        "cells": cells,
        "shards": {str(number): manifest.shown_name(number) for number in named},
        "num_shards": len(manifest.counts),
        "batches_per_rank": plan.batches_per_rank,
        "samples": plan.batches_per_rank * plan.batch_size * plan.num_replicas,
    }


def batch(
    manifest: Manifest, choice: Choice, *, rank: int, number: int, style: describe.Style, decode: Any = True,
    transform: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the samples of one batch, decoded and transformed, as JSON has them; a bad one as its error."""
    from wdsdist.loader.dataset import StreamingDataset

    check_integer("rank", rank, 0, choice["ranks"] - 1)
    order, plan = _planned(manifest, choice)
    if number >= plan.batches_per_rank:
        raise ArgumentError(f"there is no batch {number:,}: each rank has {plan.batches_per_rank:,}, numbered from 0")
    dataset = StreamingDataset(
        manifest, decode=decode, transform=transform, num_replicas=choice["ranks"], rank=rank, seed=choice["seed"]
    )
    positions = plan.positions(rank=rank, batch=number)[:_MOST_SAMPLES]
    rows = zip(*(part.tolist() for part in order.locate(positions)), strict=True)
    samples = [_made(manifest, dataset.sample_reader, *row, style=style) for row in rows]
    return {"rank": rank, "batch": number, "size": plan.batch_size, "samples": samples}


def _planned(manifest: Manifest, choice: Choice) -> tuple[Order, EpochPlan]:
    """Return the order of an epoch, and the batches that a `StreamingDataLoader` makes."""
    plan = epoch_of(manifest, **choice).plan
    assert isinstance(plan, EpochPlan)
    assert plan.order is not None
    return plan.order.make(), plan


def _made(
    manifest: Manifest, reader: SampleReader, shard: int, sample: int, epoch: int, *, style: describe.Style
) -> dict[str, Any]:
    """Return one sample as training gets it."""
    number = int(manifest.ends[shard] - manifest.counts[shard]) + sample
    about: dict[str, Any] = {"number": number, "shard": manifest.shown_name(shard), "key": "", "members": []}
    try:
        made = reader.sample(shard, sample, epoch)
    except WdsdistError as error:
        return {**about, "error": str(error)}
    except Exception as error:  # of the user's transform
        return {**about, "error": f"{type(error).__name__}: {error}"}
    for name, value in (made if isinstance(made, Mapping) else {"sample": made}).items():
        if name == "__key__":
            about["key"] = str(value)
        elif name != "__shard__":
            try:
                described = describe.value(name, value, describe.TILE, style)
            except Exception as error:
                described = {"kind": "error", "message": f"{type(error).__name__}: {error}"}
            about["members"].append({"extension": str(name), "about": described})
    return about
