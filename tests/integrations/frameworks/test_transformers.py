"""Under the Trainer of Transformers, in two processes: every sample once an epoch, and exact resume."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.programs import transformers_runs
from tests.support import forked
from tests.support.gloo_ranks import Ranks
from tests.support.playing import play

FRAMEWORK = "transformers.trainer"
TOTAL = 64
BATCHES = 8


@pytest.fixture(scope="module")
def trained(ranks: Ranks, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return play(ranks, transformers_runs.training, str(shards), str(tmp_path_factory.mktemp("trained")))


def flat(batches: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def test_all_samples_come_once_an_epoch_and_epochs_differ(trained: list[dict[str, Any]]) -> None:
    first, second = ([rank["all"][start : start + BATCHES] for rank in trained] for start in (0, BATCHES))
    for epoch in (first, second):
        assert sorted(flat(flat(epoch))) == list(range(TOTAL))
    assert first != second


def test_a_checkpoint_continues_with_exactly_what_was_left(trained: list[dict[str, Any]]) -> None:
    for rank in trained:
        for step, rest in rank["rest"].items():
            # 8 batches an epoch make updates of 3, 3 and 2.
            assert rest == rank["all"][step // 3 * BATCHES + step % 3 * 3 :], step
        assert set(rank["steps"]) == {6}
        assert rank["again"] == rank["rest"][5], "by the same trainer"


def test_evaluation_and_prediction_count_each_sample_once(ranks: Ranks, uneven: Path, tmp_path: Path) -> None:
    for rank in play(ranks, transformers_runs.evaluations, str(uneven), str(tmp_path)):
        for batch_size, found in rank.items():
            assert sorted(found["labels"]) == list(range(61)), batch_size
            assert found["predicted"] == found["labels"], batch_size
            assert found["evaluated"] == list(range(61)), batch_size
            assert found["losses"] == [pytest.approx(30.0)] * 2, batch_size


def test_planned_batches_come_once_and_resume_and_are_never_grouped_twice(
    ranks: Ranks, shards: Path, tmp_path: Path
) -> None:
    found = play(ranks, transformers_runs.training_on_planned_batches, str(shards), str(tmp_path))
    assert sorted(flat(flat([rank["all"] for rank in found]))) == list(range(TOTAL))
    for rank in found:
        assert rank["steps"] == len(rank["all"]) > 5
        assert rank["rest"] == rank["all"][5:]
        assert "StateError: the checkpoint counts its steps by" in rank["accumulation"]
        assert "StateError" in rank["budget"]
        assert "train_sampling_strategy='group_by_length' both decide" in rank["both"]
        assert "PackedRows makes the batches itself: leave out data_collator" in rank["collator"]


@pytest.mark.slow
def test_several_epochs_of_planned_batches_have_their_own_lengths_and_resume_in_any(
    ranks: Ranks, shards: Path, tmp_path: Path
) -> None:
    found = play(ranks, transformers_runs.epochs_of_planned_batches, str(shards), str(tmp_path), 2)
    lengths = found[0]["lengths"]
    assert len(set(lengths)) > 1
    for rank in found:
        assert rank["lengths"] == lengths
        assert len(rank["all"]) == sum(lengths)
        assert rank["steps"] == sum(-(-length // 2) for length in lengths)
    first = 0
    for length in lengths:
        epoch = [rank["all"][first : first + length] for rank in found]
        assert set(flat(flat(epoch))) == set(range(TOTAL))
        first += length
    for rank in found:
        for step, rest in rank["rest"].items():
            assert rest == rank["all"][_batches_after(step, lengths) :]


def _batches_after(updates: int, lengths: list[int]) -> int:
    """Return the batches that a number of updates takes, of two each but for the last of an epoch of odd length."""
    batches = 0
    for length in lengths:
        taken = min(updates, -(-length // 2))
        batches, updates = batches + min(2 * taken, length), updates - taken
    return batches


def test_what_would_lose_samples_is_refused(ranks: Ranks, shards: Path, tmp_path: Path) -> None:
    for told in play(ranks, transformers_runs.refusals, str(shards), str(tmp_path)):
        for case in ("bare", "bare, evaluated"):
            assert "StateError: " in told[case]
            assert "train with StreamingTrainer of wdsdist.integrations.transformers" in told[case]
        assert "StateError: the checkpoint counts its steps by" in told["another batch"]
        assert len(told["the rest"]) == 2
        assert "StateError: the checkpoint holds no position of the loader" in told["foreign"]


def test_a_missing_package_is_named() -> None:
    code = """
import sys
from types import SimpleNamespace
for accelerate in (None, SimpleNamespace(find_batch_size=None, slice_tensors=None)):
    sys.modules["accelerate.utils"] = accelerate
    sys.modules["accelerate"] = accelerate and SimpleNamespace(utils=accelerate)
    sys.modules["transformers"] = None
    try:
        import wdsdist.integrations.transformers
    except ImportError as error:
        print(error)
"""
    message = "StreamingTrainer needs Transformers: pip install transformers accelerate\n"
    assert forked.run("-c", code).stdout == 2 * message
