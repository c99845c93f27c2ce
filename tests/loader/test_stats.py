"""loader.stats(): what an epoch gave, how long it took, and what its workers had from the cache, held to what is known
of the data, of a clock that the test moves, and of the server."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import loaders, web
from wdsdist import StreamingDataLoader
from wdsdist.loader.epoch_iterator import EpochIterator, EpochMeter, LoaderStats
from wdsdist.loader.progress import ChosenEpoch, Progress
from wdsdist.loader.worker_iterator import Message
from wdsdist.sampling.epoch_plan import EpochPlan
from wdsdist.sampling.plan import Position

TOTAL = 103
NOT_EMPTY = 5  # of six shards
EMPTY = "1.tar"


@pytest.fixture
def remote(shards: Path) -> Iterator[web.Web]:
    with web.served(shards) as server:
        yield server


make_loader = functools.partial(loaders.make_loader, batch_size=10, decode=None, drop_last=False)


def remote_loader(server: web.Web, **options: Any) -> StreamingDataLoader:
    return make_loader(f"{server.url}/index.json", **options)


def play(loader: StreamingDataLoader) -> LoaderStats:
    for _ in loader:
        pass
    return loader.stats()


class TestBatchesAndSamples:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_count_what_was_handed_out_at_any_time(self, shards: Path, workers: int) -> None:
        loader = make_loader(shards, num_workers=workers)
        assert loader.stats() == LoaderStats()
        for epoch in range(2):
            seen = 0
            for number, batch in enumerate(loader, 1):
                seen += len(batch["__key__"])
                stats = loader.stats()
                assert (stats.epoch, stats.batches, stats.samples, stats.planned_batches) == (epoch, number, seen, 11)
            assert (loader.stats().batches, loader.stats().samples) == (11, TOTAL)

    def test_have_the_bytes_of_their_shards(self, shards: Path) -> None:
        size = sum(path.stat().st_size for path in shards.glob("*.tar"))
        assert play(make_loader(shards)).bytes == pytest.approx(size, abs=TOTAL)


class Loop:
    """A training loop over an epoch of batches, with a clock that moves while it works, and in no other way."""

    WORKING, TRAINING, STARTING = 3.0, 5.0, 7.0
    PLAN = EpochPlan(num_samples=TOTAL, num_replicas=1, batch_size=10, drop_last=False, drop_last_batch=False)
    _iterations = 1
    persistent_workers, num_workers = True, 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("wdsdist.loader.epoch_iterator.time", SimpleNamespace(perf_counter=lambda: self.now))
        self._progress = Progress(ChosenEpoch())
        self.batches = EpochIterator(cast("Any", self))

    def _begin(self) -> tuple[Iterator[Message], EpochMeter]:
        self._progress.begin(Position(0, 0))
        self.meter = EpochMeter(self.PLAN, sample_bytes=1)
        self.now += self.STARTING
        return self.messages(), self.meter

    def messages(self) -> Iterator[Message]:
        for number in range(self.PLAN.batches_per_rank):
            self.now += self.WORKING
            yield Message([number])
        yield Message([])

    def train(self) -> None:
        self.now += self.TRAINING


class TestTime:
    def test_inside_of_next_is_waiting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = Loop(monkeypatch)
        for _ in loop.batches:
            loop.train()
        stats = loop.meter.stats()
        assert stats.seconds_waiting == Loop.STARTING + 11 * Loop.WORKING
        assert stats.seconds == stats.seconds_waiting + 11 * Loop.TRAINING
        assert stats.waiting_share == pytest.approx(stats.seconds_waiting / stats.seconds)
        assert stats.samples_per_second == pytest.approx(TOTAL / stats.seconds)


class TestTheCache:
    @pytest.mark.parametrize(("context", "persistent"), [("fork", True), ("fork", False), ("forkserver", False)])
    def test_is_counted_over_all_workers_however_they_start(
        self, remote: web.Web, context: str, persistent: bool
    ) -> None:
        loader = remote_loader(remote, num_workers=2, multiprocessing_context=context, persistent_workers=persistent)
        first, second = play(loader), play(loader)
        assert first.shards_fetched == NOT_EMPTY
        size = sum(path.stat().st_size for path in remote.folder.glob("*.tar") if path.name != EMPTY)
        assert size <= first.bytes_fetched <= 1.2 * size  # few bytes come twice, to spare requests
        assert second.shards_fetched == second.bytes_fetched == 0


class TestTheLog:
    @pytest.fixture(autouse=True)
    def _info(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "wdsdist")

    def test_has_a_line_for_each_epoch(self, shards: Path, caplog: pytest.LogCaptureFixture) -> None:
        loader = make_loader(shards)
        stats = [play(loader) for _ in range(3)]
        assert caplog.messages == [str(one) for one in stats]
        assert [one.epoch for one in stats] == [0, 1, 2]

    def test_says_that_an_epoch_was_given_up_when_the_next_one_starts(
        self, shards: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        loader = make_loader(shards)
        next(iter(loader))
        iterator = iter(loader)
        assert caplog.messages == []
        next(iterator)
        assert [line.partition(":")[0] for line in caplog.messages] == ["epoch 0, 1 of 11 batches"]


LOCAL = {"epoch": 3, "batches": 2, "planned_batches": 2, "samples": 20_400, "seconds": 10.0, "seconds_waiting": 0.49}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, "epoch 3: 20,400 samples in 10.0 s (2,040/s), waited 0.5 s (5 %) for data"),
        (
            {"bytes": 99.96e6, "planned_batches": 4_000},
            "epoch 3, 2 of 4,000 batches: 20,400 samples in 10.0 s (2,040/s, 9.5 MiB/s), waited 0.5 s (5 %) for data",
        ),
        (
            {"bytes": 9_994_000_000, "shards_fetched": 12, "bytes_fetched": 1_250_000_000, "bytes_cached": 88_000_000},
            "epoch 3: 20,400 samples in 10.0 s (2,040/s, 953.1 MiB/s), waited 0.5 s (5 %) for data, "
            "12 shards fetched (1.2 GiB, 0 retries), 83.9 MiB from the cache",
        ),
    ],
)
def test_the_text_is_easy_to_read(more: dict[str, Any], text: str) -> None:
    assert str(LoaderStats(**{**LOCAL, **more})) == text


@pytest.mark.parametrize("workers", [0, 2])
def test_what_remains_of_an_epoch_is_the_total_of_a_progress_bar_also_after_a_resume(
    shards: Path, workers: int
) -> None:
    loader, resumed = make_loader(shards, num_workers=workers), make_loader(shards, num_workers=workers)
    assert loader.remaining == len(loader) == 11
    iterator = iter(loader)
    assert [loader.remaining for _, _ in zip(range(3), iterator, strict=False)] == [10, 9, 8]
    resumed.load_state_dict(loader.state_dict())
    assert resumed.remaining == loader.remaining == len(list(resumed))
    assert resumed.remaining == 0
    loader.set_epoch(5)
    assert loader.remaining == 11
