"""The progress of an epoch is logged each so many seconds, with rates since the last line, held to a moved clock."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import ArgumentError
from wdsdist.loader.stats import EpochMeter, LoaderStats, progress_line
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.shards.source import Counters

PLAN = EpochPlan(num_samples=1_000, num_replicas=1, batch_size=10, drop_last=False, drop_last_batch=False)


def test_a_line_comes_with_the_first_batch_after_each_interval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wdsdist")
    now = [0.0]
    meter = EpochMeter(3, plan=PLAN, sample_bytes=1_000, count=Counters, log_interval=10, clock=lambda: now[0])
    for batch in range(1, 26):
        now[0] += 3.0 if batch < 13 else 0.5
        meter.ask()
        now[0] += 1.0
        meter.answer(PLAN.reached(batch))
    parts = [line.partition(", until")[0] for line in caplog.messages]
    assert parts == [
        "epoch 3: 3.0 % after 3 batches; 2 samples/s, 2.5 kB/s, waited 25 % for data, 6 min 28 s left",
        "epoch 3: 6.0 % after 6 batches; 2 samples/s, 2.5 kB/s, waited 25 % for data, 6 min 16 s left",
        "epoch 3: 9.0 % after 9 batches; 2 samples/s, 2.5 kB/s, waited 25 % for data, 6 min 4 s left",
        "epoch 3: 12.0 % after 12 batches; 2 samples/s, 2.5 kB/s, waited 25 % for data, 5 min 52 s left",
        "epoch 3: 19.0 % after 19 batches; 7 samples/s, 6.7 kB/s, waited 67 % for data, 2 min 2 s left",
    ]


def test_the_end_is_a_time_of_day_or_a_date() -> None:
    noon = time.mktime((2026, 3, 1, 12, 0, 0, 0, 60, 0))
    before, stats = LoaderStats(seconds=0), LoaderStats(seconds=3600, batches=1, samples=36_000, epoch_share=0.5)
    assert progress_line(before, stats, noon).endswith("waited 0 % for data, 1 h 0 min left, until 13:00")
    slow = LoaderStats(seconds=3600, batches=1, samples=36_000, epoch_share=0.02)
    assert progress_line(before, slow, noon).endswith("49 h 0 min left, until 2026-03-03 13:00")
    assert "left" not in progress_line(stats, stats, noon)


def test_a_loader_logs_its_progress_on_request_only(shards: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wdsdist")
    dataset = StreamingDataset(shards, num_replicas=1, rank=0)
    for interval, lines in ((None, 0), (1e-9, 11)):
        caplog.clear()
        list(StreamingDataLoader(dataset, 10, num_workers=0, drop_last=False, log_interval=interval))
        assert len([line for line in caplog.messages if " % after " in line]) == lines


def test_lines_of_one_rank_of_several_begin_with_it(shards: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wdsdist")
    dataset = StreamingDataset(shards, num_replicas=2, rank=1)
    list(StreamingDataLoader(dataset, 10, num_workers=0, log_interval=1e-9))
    assert len(caplog.messages) == 6
    assert all(line.startswith("rank 1: epoch 0: ") for line in caplog.messages)


@pytest.mark.parametrize("interval", [0, -1, "60"])
def test_an_interval_that_cannot_work_is_refused(shards: Path, interval: float) -> None:
    with pytest.raises(ArgumentError, match="log_interval is"):
        StreamingDataLoader(StreamingDataset(shards), 10, num_workers=0, log_interval=interval)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_share_of_a_resumed_epoch_is_of_all_of_it(shards: Path, workers: int) -> None:
    dataset = StreamingDataset(shards, num_replicas=1, rank=0)
    loader = StreamingDataLoader(dataset, 10, num_workers=workers)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    assert loader.stats().epoch_share == pytest.approx(50 / 103)
    resumed = StreamingDataLoader(dataset, 10, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    next(iter(resumed))
    assert resumed.stats().epoch_share == pytest.approx(60 / 103)
