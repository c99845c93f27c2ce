"""Under Accelerate, in two processes: every sample once an epoch, exact resume, and no second split."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.programs import accelerate_runs
from tests.support.gloo_ranks import Ranks
from tests.support.playing import play

FRAMEWORK = "accelerate.accelerator"
TOTAL = 64


@pytest.fixture(scope="module")
def played(ranks: Ranks, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("state")
    return play(ranks, accelerate_runs.epochs, str(shards), str(folder))


def test_prepare_returns_the_loader_whatever_the_configuration(played: list[dict[str, Any]]) -> None:
    assert all(all(rank["is_same"]) for rank in played)


def test_all_samples_come_once_an_epoch_whatever_the_configuration(played: list[dict[str, Any]]) -> None:
    for options in played[0]["epochs"]:
        for epoch in range(2):
            batches = chain.from_iterable(rank["epochs"][options][epoch] for rank in played)
            assert sorted(chain.from_iterable(batches)) == list(range(TOTAL)), options
        assert played[0]["epochs"][options][0] != played[0]["epochs"][options][1]


def test_save_state_and_load_state_resume_exactly(played: list[dict[str, Any]]) -> None:
    for rank in played:
        assert rank["resumed"] == rank["expected"]
        assert [len(batches) for batches in rank["resumed"]] == [5, 8]


def test_accumulated_gradients_are_applied_at_the_end_of_an_epoch(ranks: Ranks, shards: Path) -> None:
    for rank in play(ranks, accelerate_runs.accumulation, str(shards)):
        assert rank["steps"] == [False, False, True, False, False, True, False, True]
        assert rank["after"] == [None]


def test_planned_batches_resume_and_end_their_accumulation(ranks: Ranks, uneven: Path, tmp_path: Path) -> None:
    found = play(ranks, accelerate_runs.planned, str(uneven), str(tmp_path))
    seen = [number for rank in found for batch in rank["classes"] for number in batch]
    assert len(seen) == len(set(seen)) == 60, "a last block of 1 sample has no batch for each rank"
    for rank in found:
        assert rank["synced"] == [False, False, False, True, False, False, False, True, False, True]
        assert rank["length"] == 10
        assert rank["rest"] == rank["classes"][4:]


def test_what_is_gathered_for_metrics_has_each_sample_once(ranks: Ranks, uneven: Path) -> None:
    for rank in play(ranks, accelerate_runs.evaluation, str(uneven)):
        for batch_size, (classes, keys, total) in rank.items():
            assert sorted(classes) == list(range(61)), batch_size
            assert keys == [f"k{number}" for number in classes], batch_size
            assert total == sum(range(61)), batch_size


def test_prepared_batches_are_on_the_device(ranks: Ranks, shards: Path) -> None:
    assert [rank["devices"] for rank in play(ranks, accelerate_runs.placement, str(shards))] == [["meta", "cpu"]] * 2


def test_what_would_be_split_twice_is_refused_on_every_rank(ranks: Ranks, shards: Path) -> None:
    told = play(ranks, accelerate_runs.refusals, str(shards))
    plain = chain.from_iterable(chain.from_iterable(rank.pop("not split before") for rank in told))
    assert sorted(plain) == list(range(TOTAL))
    for rank in told:
        skipping = rank.pop("skipping")
        assert "StateError: " in skipping
        assert "Accelerate's skip_first_batches makes one, cannot make its batches" in skipping
        for case, message in rank.items():
            assert "StateError: " in message, case
            assert "splits this data set among 2 ranks" in message, case
            assert "prepare a wdsdist.StreamingDataLoader" in message, case
            assert "class MyTrainer(StreamingTrainerMixin, Trainer)" in message, case
