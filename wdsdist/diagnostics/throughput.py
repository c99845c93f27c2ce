"""Measure the throughput of a loader on this machine."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wdsdist._util.validation import check_number
from wdsdist.loader.dataset import StreamingDataset
from wdsdist.loader.loader import StreamingDataLoader
from wdsdist.samples.collate import Ragged

_PAGE = 4096


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

    It is measured for ``seconds``, after a warm-up of a quarter of that. Raises what the loader raises.
    """
    check_number("seconds", seconds, 0.001, 3600)
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
