"""Measure the throughput of a loader on this machine, and suggest a number of workers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wdsdist._util.validation import check_integer
from wdsdist.errors import ArgumentError
from wdsdist.loader.dataset import StreamingDataset
from wdsdist.loader.loader import StreamingDataLoader
from wdsdist.samples.collate import Ragged

_PAGE = 4096
_ENOUGH = 0.95
"""Part of the best throughput beyond which the gain of more workers is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Throughput of a loader with some number of workers."""

    workers: int
    samples_per_second: float
    bytes_per_second: float
    """Bytes of raw columns, and of tensors, in the batches."""
    first_batch: float
    """Seconds from the start of the workers to the first batch."""


def measure(dataset: StreamingDataset, batch_size: int = 64, *, workers: int, seconds: float = 3.0) -> Rate:
    """Measure the throughput of a loader whose training loop only touches the batches.

    Args:
        dataset: the data set to load.
        batch_size: samples a batch.
        workers: ``num_workers`` of the loader.
        seconds: how long to measure, after a warm-up of a quarter of it.

    Raises:
        ArgumentError: the data set has fewer samples than one batch.

    >>> import tempfile, wdsdist
    >>> from pathlib import Path
    >>> root = Path(tempfile.mkdtemp())
    >>> (root / "files").mkdir()
    >>> for i in range(64):
    ...     _ = (root / "files" / f"{i}.cls").write_text("7")
    >>> dataset = wdsdist.StreamingDataset(wdsdist.pack(root / "files", root / "shards"))
    >>> rate = measure(dataset, 8, workers=0, seconds=0.05)
    >>> rate.workers, round(rate.samples_per_second / rate.bytes_per_second)
    (0, 1)
    """
    needed = check_integer("batch_size", batch_size, 1) * dataset.identity().world_size
    if dataset.num_samples < needed:
        raise ArgumentError(
            f"the data set has {dataset.num_samples:,} samples, fewer than a batch of {needed:,}: lower batch_size",
            argument="batch_size",
        )
    if not 0 < seconds <= 3600:
        raise ArgumentError(f"seconds is {seconds}: it must be between 0 and 3,600", argument="seconds")
    loader = StreamingDataLoader(dataset, batch_size, num_workers=workers)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    started = time.perf_counter()
    _touch(next(batches))
    first_batch = time.perf_counter() - started
    sizes: list[int] = []
    for limit in (seconds / 4, seconds):
        sizes, started = [], time.perf_counter()
        while not sizes or time.perf_counter() - started < limit:
            sizes.append(_touch(next(batches)))
    spent = time.perf_counter() - started
    return Rate(
        workers=workers,
        samples_per_second=batch_size * len(sizes) / spent,
        bytes_per_second=sum(sizes) / spent,
        first_batch=first_batch,
    )


def suggested(rates: Sequence[Rate]) -> int:
    """Return the fewest workers whose throughput is as good as the best.

    >>> def rate(workers, samples):
    ...     return Rate(workers=workers, samples_per_second=samples, bytes_per_second=1, first_batch=0)
    >>> suggested([rate(0, 100), rate(2, 190), rate(4, 198)])
    2
    """
    best = max(rate.samples_per_second for rate in rates)
    return min(rate.workers for rate in rates if rate.samples_per_second >= _ENOUGH * best)


def _touch(batch: Any) -> int:
    """Read a byte of every page of a batch's columns, as training does at least; return their bytes."""
    size = 0
    for column in batch.values() if isinstance(batch, dict) else ():
        if isinstance(column, Ragged):
            size += sum(map(len, column.parts))
            for part in column.parts:
                np.frombuffer(part, np.uint8)[::_PAGE].max(initial=0)
        elif isinstance(column, torch.Tensor):
            size += column.nbytes
            # Its storage, whatever the strides: flattening a channels-last image would copy it.
            torch.empty(0, dtype=torch.uint8).set_(column.untyped_storage())[::_PAGE].any()
    return size
