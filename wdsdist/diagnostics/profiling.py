"""Profile loading on this machine: throughput, the cost of each step of a sample, and the number of workers."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from wdsdist._util.validation import check_integer
from wdsdist.errors import ArgumentError
from wdsdist.loader.dataset import StreamingDataset
from wdsdist.loader.ipc.channel import Channel, group_size
from wdsdist.loader.loader import StreamingDataLoader
from wdsdist.samples.collate import Ragged

Collate = Callable[[list[Any]], Any]

_PAGE = 4096
_PIPE = 32 << 10
"""Bytes that a pipe buffers without a reader."""
_MANY = 1 << 20
"""Batches of an epoch: more than any group has."""
_ENOUGH = 0.95
"""Part of the best throughput beyond which the gain of more workers is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds that a sample costs on one core, by step."""

    read: float
    """Planning, finding members, and reading their bytes from the page cache or the disk."""
    decode: float
    """Decoding, transforming and collating."""
    transport: float
    """Transfer from a worker to this process, on both sides."""
    sample_bytes: float
    """Bytes of the members that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Throughput of a loader with some number of workers."""

    workers: int
    samples_per_second: float
    first_batch: float
    """Seconds from the start of the workers to the first batch."""
    waiting: float
    """Part of the time that the training loop waited for batches: nearly all, where it does nothing else."""


def costs(
    dataset: StreamingDataset, batch_size: int = 64, *, collate_fn: Collate | None = None, seconds: float = 2.0
) -> Costs:
    """Measure the cost of a sample in this process: read, then decoded, then transferred through shared memory.

    Args:
        dataset: what is to be loaded.
        batch_size: samples a batch.
        collate_fn: as of the loader.
        seconds: how long each is measured.

    Raises:
        ArgumentError: the data set has fewer samples than one batch.

    >>> import tempfile, wdsdist
    >>> from pathlib import Path
    >>> root = Path(tempfile.mkdtemp())
    >>> (root / "files").mkdir()
    >>> for i in range(64):
    ...     _ = (root / "files" / f"{i}.cls").write_text("7")
    >>> dataset = wdsdist.StreamingDataset(wdsdist.pack(root / "files", root / "shards"), decode=True)
    >>> found = costs(dataset, 8, seconds=0.05)
    >>> found.sample_bytes, 0 < found.read < 1, 0 <= found.decode < 1, 0 < found.transport < 1
    (1.0, True, True, True)
    """
    _check(dataset, batch_size)
    raw = _endless(StreamingDataLoader(dataset.raw(), batch_size, num_workers=0))
    sizes: list[int] = []
    read = _time_of(lambda: sizes.append(_touch(next(raw))), seconds) / batch_size
    whole = read
    made = _endless(StreamingDataLoader(dataset, batch_size, num_workers=0, collate_fn=collate_fn))
    if collate_fn is not None or not dataset.sample_reader.is_raw:
        whole = _time_of(lambda: next(made), seconds) / batch_size
    batch_bytes = dataset.order_config.mean_sample_bytes * batch_size
    is_light = collate_fn is None and dataset.sample_reader.is_light
    group = group_size(_MANY, batch_bytes, 1) if is_light else 1
    return Costs(
        read=read,
        decode=max(0.0, whole - read),
        transport=_transport([next(made) for _ in range(group)], batch_bytes, seconds) / (group * batch_size),
        sample_bytes=sum(sizes) / (len(sizes) * batch_size),
    )


def _transport(group: list[Any], batch_bytes: int, seconds: float) -> float:
    """Return the seconds that batches take from a worker to the main process."""
    channel = Channel()
    channel.prepare(1, 2, batch_bytes, group=len(group))
    send = channel.sender(0)
    ours, theirs = multiprocessing.Pipe()

    def cross() -> None:
        message = pickle.dumps(send(group))
        if len(message) > _PIPE:  # no slot was free: a write to the pipe would deadlock without a reader
            crossed = message
        else:
            theirs.send_bytes(message)
            crossed = ours.recv_bytes()
        for batch in pickle.loads(crossed):
            _touch(batch)

    with ours, theirs:
        return _time_of(cross, seconds / 4)


def rate(
    dataset: StreamingDataset,
    batch_size: int = 64,
    *,
    workers: int,
    seconds: float = 3.0,
    step: float = 0.0,
) -> Rate:
    """Measure the throughput of a loader.

    Args:
        dataset: what is to be loaded.
        batch_size: samples a batch.
        workers: ``num_workers`` of the loader.
        seconds: how long to measure, after a warm-up of a quarter of that.
        step: seconds that the training loop spends on each batch; it sleeps for them.

    Raises:
        ArgumentError: the data set has fewer samples than one batch.
    """
    _check(dataset, batch_size)
    batches = _endless(StreamingDataLoader(dataset, batch_size, num_workers=workers))
    first_batch = _time_of(lambda: _touch(next(batches)), 0)
    waits: list[float] = []

    def train() -> None:
        asked = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - asked)
        _touch(batch)
        if step:
            time.sleep(step)

    _time_of(train, seconds / 4)
    waits.clear()
    spent = _time_of(train, seconds)
    return Rate(
        workers=workers,
        samples_per_second=batch_size / spent,
        first_batch=first_batch,
        waiting=sum(waits) / (len(waits) * spent),
    )


def suggested(rates: Sequence[Rate]) -> int:
    """Return the fewest workers whose throughput is as good as the best.

    >>> def measured(workers, rate):
    ...     return Rate(workers=workers, samples_per_second=rate, first_batch=0, waiting=1)
    >>> suggested([measured(0, 100), measured(2, 190), measured(4, 198)])
    2
    """
    best = max(one.samples_per_second for one in rates)
    return min(one.workers for one in rates if one.samples_per_second >= _ENOUGH * best)


def _check(dataset: StreamingDataset, batch_size: int) -> None:
    needed = check_integer("batch_size", batch_size, 1) * dataset.identity().world_size
    if dataset.num_samples < needed:
        raise ArgumentError(
            f"the data set has {dataset.num_samples:,} samples, fewer than a batch of {needed:,}: lower batch_size"
        )


def _endless(loader: StreamingDataLoader) -> Iterator[Any]:
    while True:
        yield from loader


def _time_of(action: Callable[[], object], seconds: float) -> float:
    """Return the mean seconds of an action, done once or for ``seconds``."""
    count, started = 0, time.perf_counter()
    while True:
        action()
        count += 1
        spent = time.perf_counter() - started
        if spent >= seconds:
            return spent / count


def _touch(batch: Any) -> int:
    """Read a byte of every page of a batch's columns, as training does at least; return the bytes of raw columns."""
    size = 0
    for column in batch.values() if isinstance(batch, dict) else ():
        if isinstance(column, Ragged):
            size += sum(map(len, column.parts))
            for part in column.parts:
                np.frombuffer(part, np.uint8)[::_PAGE].max(initial=0)
        elif isinstance(column, torch.Tensor):
            # Its storage, whatever the strides: flattening a channels-last image would copy it.
            torch.empty(0, dtype=torch.uint8).set_(column.untyped_storage())[::_PAGE].any()
    return size
