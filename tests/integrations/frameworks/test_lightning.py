"""Under Lightning's Trainer and Fabric, in two processes: every sample once an epoch, and exact resume."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.programs import lightning_runs
from tests.support.gloo_ranks import Ranks
from tests.support.playing import play

FRAMEWORK = "lightning.pytorch"
TOTAL = 64
STEPS = 8  # an epoch on each of two ranks, with batches of 4


def samples(found: list[dict[str, Any]], epoch: int, what: str = "seen") -> list[int]:
    """Return what all ranks saw in an epoch, sorted."""
    steps = chain.from_iterable(rank[what] for rank in found)
    return sorted(chain.from_iterable(batch for of, batch in steps if of == epoch))


class Runs:
    """Runs of training in one folder, and their checkpoints."""

    def __init__(self, ranks: Ranks, shards: Path, folder: Path, **options: Any) -> None:
        self._fixed = ranks, shards, folder, options

    def __call__(self, **more: Any) -> list[dict[str, Any]]:
        """Return what each rank saw in a run from the beginning, or from a checkpoint."""
        ranks, shards, folder, options = self._fixed
        return play(ranks, lightning_runs.fit, str(shards), str(folder), **(options | more))

    def check_resume(self, whole: list[dict[str, Any]], *steps: int) -> None:
        """Resume from the checkpoint of each step, and check that the batches are those after the step."""
        for step in steps:
            resumed = self(every=100, checkpoint=f"step={step}.ckpt")
            assert [rank["seen"] for rank in resumed] == [rank["seen"][step:] for rank in whole]
            assert [rank["steps"] for rank in resumed] == [rank["steps"] for rank in whole]


@pytest.fixture(scope="module")
def runs(ranks: Ranks, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(ranks, shards, tmp_path_factory.mktemp("whole"), max_epochs=2)


@pytest.fixture(scope="module")
def whole(runs: Runs) -> list[dict[str, Any]]:
    """A run of two epochs with a checkpoint each few steps."""
    return runs(every=3)


def test_all_samples_come_once_an_epoch_and_epochs_differ(whole: list[dict[str, Any]]) -> None:
    for epoch in range(2):
        assert samples(whole, epoch) == list(range(TOTAL))
        assert [len([step for step in rank["seen"] if step[0] == epoch]) for rank in whole] == [STEPS, STEPS]
    for rank in whole:
        epochs = [[batch for epoch, batch in rank["seen"] if epoch == number] for number in range(2)]
        assert epochs[0] != epochs[1]
        sanity = rank["validated"][:2]
        assert rank["validated"][2:4] == sanity  # looking at a few batches beforehand has used up nothing
    assert samples([{"validated": rank["validated"][2:]} for rank in whole], 1, "validated") == list(range(TOTAL))


@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.slow), 9, pytest.param(15, marks=pytest.mark.slow)])
def test_a_checkpoint_continues_with_exactly_what_was_left(step: int, runs: Runs, whole: list[dict[str, Any]]) -> None:
    runs.check_resume(whole, step)


def test_limited_epochs_differ_and_resume_at_their_end(ranks: Ranks, shards: Path, tmp_path: Path) -> None:
    runs = Runs(ranks, shards, tmp_path, max_epochs=3, limit_train_batches=3)
    found = runs()
    for rank in found:
        epochs = [[batch for epoch, batch in rank["seen"] if epoch == number] for number in range(3)]
        assert [len(batches) for batches in epochs] == [3, 3, 3]
        assert len({str(batches) for batches in epochs}) == 3
    runs.check_resume(found, 3)


def test_planned_batches_come_once_and_resume_in_the_middle_of_an_epoch(
    ranks: Ranks, shards: Path, tmp_path: Path
) -> None:
    runs = Runs(ranks, shards, tmp_path, loaders=lightning_runs.planned, limit_val_batches=0, max_epochs=1)
    found = runs(every=5)
    assert samples(found, 0) == list(range(TOTAL))
    assert found[0]["steps"] == len(found[0]["seen"]) > 5
    runs.check_resume(found, 5)


def test_planned_epochs_that_lightning_would_cut_are_refused(ranks: Ranks, shards: Path, tmp_path: Path) -> None:
    for rank in play(ranks, lightning_runs.planned_refusal, str(shards), str(tmp_path)):
        assert "epochs of planned batches differ" in rank["told"]
        assert "pass reload_dataloaders_every_n_epochs=1 to the Trainer" in rank["told"]


@pytest.mark.slow
def test_several_epochs_of_planned_batches_have_their_own_lengths_and_resume_in_any(
    ranks: Ranks, shards: Path, tmp_path: Path
) -> None:
    found = play(ranks, lightning_runs.planned_epochs, str(shards), str(tmp_path), 2, every=5)
    lengths = found[0]["lengths"]
    assert len(set(lengths)) > 1
    for epoch, length in enumerate(lengths):
        assert set(samples(found, epoch)) == set(range(TOTAL))
        assert [len([step for step in rank["seen"] if step[0] == epoch]) for rank in found] == [length] * 2
    assert {epoch for epoch, _ in found[0]["validated"]} == set(range(2))
    for step in (5, sum(lengths) // 5 * 5):
        again = play(
            ranks, lightning_runs.planned_epochs, str(shards), str(tmp_path), 2, checkpoint=f"step={step}.ckpt"
        )
        assert [rank["seen"] for rank in again] == [rank["seen"][step:] for rank in found]


def test_a_loader_whose_checkpoints_would_be_a_batch_ahead_is_refused(
    ranks: Ranks, shards: Path, tmp_path: Path
) -> None:
    for rank in play(ranks, lightning_runs.refusal, str(shards), str(tmp_path)):
        assert "one batch ahead: train from a wdsdist.StreamingDataLoader" in rank["told"]


def test_validation_counts_each_sample_once(ranks: Ranks, uneven: Path, tmp_path: Path) -> None:
    found = play(ranks, lightning_runs.evaluation, str(uneven), str(tmp_path))
    for batch_size in found[0]:
        of_each = [rank[batch_size] for rank in found]
        assert sorted(chain.from_iterable(one["keys"] for one in of_each)) == sorted(f"k{n}" for n in range(61))
        assert of_each[0]["sizes"] == of_each[1]["sizes"]
        assert [(one["mean"], one["sum"]) for one in of_each] == [(30.0, 61 * 30.0)] * 2


def test_fabric_gives_all_samples_and_resumes(ranks: Ranks, shards: Path, tmp_path: Path) -> None:
    found = play(ranks, lightning_runs.fabric, str(shards), str(tmp_path))
    for epoch in range(3):
        of_all = chain.from_iterable(chain.from_iterable(rank["epochs"][epoch] for rank in found))
        assert sorted(of_all) == list(range(TOTAL))
    for rank in found:
        first, second, third = rank["epochs"]
        assert first != second != third
        assert rank["resumed"] == [second[3:], third]
        assert rank["again"] == second
