"""A worker's iterator tells its prefetch which batch it makes next, as soon as it has sent one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.loader.worker_iterator import EpochStart, WorkerIterator
from wdsdist.sampling.epoch_plan import FixedBatches
from wdsdist.sampling.plan import Position, World


@pytest.mark.parametrize(
    ("worker", "group", "sent", "reached"),
    [(0, 1, 6, [2, 4, 6, 8, 10, 12]), (1, 1, 5, [3, 5, 7, 9, 11]), (1, 2, 3, [6, 10, 11]), (0, 32, 1, [11])],
)
def test_the_next_batch_is_reached_when_a_group_is_sent(
    shards: Path, worker: int, group: int, sent: int, reached: list[int]
) -> None:
    dataset = StreamingDataset(shards, num_replicas=1, rank=0)
    config = dataset.order_config
    settings, fixed = config.settings(1), FixedBatches(batch_size=10, drop_last=False, drop_last_batch=False)
    start = EpochStart(position=Position(0), rank=0, world=World(1), settings=settings, group=group)
    plan = start.plan(config, fixed)
    batches = WorkerIterator(config, dataset.sample_reader, plan, start, worker=worker, num_workers=2)
    found: list[int] = []
    prefetch: Any = SimpleNamespace(reach=found.append)
    batches._prefetch = prefetch
    assert len(list(batches.messages(None, len))) == sent
    assert found == reached


def test_a_loader_without_workers_gives_batches_in_a_worker_of_another(shards: Path) -> None:
    inner = StreamingDataLoader(StreamingDataset(shards), 4, num_workers=0)

    def drawn(sample: dict[str, Any]) -> int:
        return len(next(iter(inner))["__key__"])

    dataset = StreamingDataset(shards, transform=drawn)
    outer = StreamingDataLoader(dataset, 3, num_workers=1, multiprocessing_context="fork")
    assert next(iter(outer)).tolist() == [4, 4, 4]
