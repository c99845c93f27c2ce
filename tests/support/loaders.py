"""Loaders over small data sets, and what their batches hold."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from wdsdist import StreamingDataLoader, StreamingDataset

Batches = list[list[int]]

_OF_LOADER = {*inspect.signature(StreamingDataLoader).parameters} - {"drop_last"}


def make_loader(
    shards: Path | str, batch_size: int = 8, *, rank: int = 0, world: int = 1, drop_last: bool | None = None,
    **options: Any,
) -> StreamingDataLoader:  # fmt: skip
    """Return a loader without workers over decoded samples; the options are the loader's or the data set's.

    ``drop_last`` is the loader's, and ``rank_drop_last`` the data set's.
    """
    of_loader = {"num_workers": 0, **{name: value for name, value in options.items() if name in _OF_LOADER}}
    of_dataset = {name: value for name, value in options.items() if name not in _OF_LOADER}
    if "rank_drop_last" in of_dataset:
        of_dataset["drop_last"] = of_dataset.pop("rank_drop_last")
    dataset = StreamingDataset(shards, **{"decode": True, "num_replicas": world, "rank": rank, **of_dataset})
    return StreamingDataLoader(dataset, batch_size, drop_last=drop_last, **of_loader)


def batches(loader: Iterable[Any]) -> Batches:
    """Return the classes of each batch."""
    return [batch["cls"].tolist() for batch in loader]


def flat(found: Iterable[Iterable[int]]) -> list[int]:
    """Return the classes of all batches."""
    return list(chain.from_iterable(found))


def keys(found: Iterable[Any]) -> list[str]:
    """Return the keys of the samples of all batches."""
    return [key for batch in found for key in batch["__key__"]]
