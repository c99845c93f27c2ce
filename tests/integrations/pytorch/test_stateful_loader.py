"""torchdata's StatefulDataLoader over a data set of ours: it resumes to exactly what was left, whoever the workers are.

Its snapshots lie ``snapshot_every_n_steps`` batches apart; from the last one it goes on by reading again.
"""

from __future__ import annotations

import copy
import gc
import json
import multiprocessing
import warnings
from pathlib import Path
from typing import Any

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.support.gloo_ranks import Ranks
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import ArgumentError, SampleError, StateError

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it

TOTAL = 37
QUICK = {(0, 1), (2, 5)}  # workers, and batches between snapshots
Batches = list[list[int]]


def loader(shards: Path, batch_size: int, **options: Any) -> StatefulDataLoader:
    gc.collect()  # else workers that are forked collect the iterators of before, and print that those are not theirs
    dataset = StreamingDataset(shards, decode=True, fields=("cls",), batch_size=batch_size)
    return StatefulDataLoader(dataset, batch_size, **options)


def batches(found: Any) -> Batches:
    return [batch["cls"].tolist() for batch in found]


def play(stateful: StatefulDataLoader, epoch: int) -> Batches:
    stateful.dataset.set_epoch(epoch)  # type: ignore[attr-defined]
    return batches(stateful)


def take_and_resume(shards: Path, batch_size: int, options: dict[str, Any]) -> list[Batches]:
    """Return three epochs; raise where a state of the second does not lead to what followed it."""
    warnings.filterwarnings("error", "(set_epoch|without set_epoch)")
    whole = loader(shards, batch_size, **options)
    epochs = [play(whole, epoch) for epoch in range(4)]
    first = loader(shards, batch_size, **options)
    assert play(first, 0) == epochs[0]
    first.dataset.set_epoch(1)  # type: ignore[attr-defined]
    iterator = iter(first)
    states = [first.state_dict()]
    kept = copy.deepcopy(states)
    for batch in iterator:
        assert batch["cls"].tolist() == epochs[1][len(states) - 1]
        states.append(first.state_dict())
        kept.append(copy.deepcopy(states[-1]))
    ended = json.loads(json.dumps(first.state_dict()))
    assert states == kept, "further iteration changed an earlier state"
    for taken, state in enumerate(states):
        for asks in (False, True) if taken == 2 else (True,):  # the same state twice
            resumed = loader(shards, batch_size, **options)
            resumed.load_state_dict(json.loads(json.dumps(state)))
            if not options.get("num_workers"):
                assert resumed.state_dict() == state
            found = play(resumed, 1) if asks else batches(resumed)
            assert found == epochs[1][taken:], f"after {taken} batches"
        if taken in (0, 3):
            assert play(resumed, 2) == epochs[2]
    resumed = loader(shards, batch_size, **options)
    resumed.load_state_dict(ended)
    assert [play(resumed, epoch) for epoch in (2, 3)] == epochs[2:], "two epochs, a state, and two epochs"
    return epochs[:3]


@pytest.mark.parametrize(
    ("workers", "every", "batch_size", "persistent"),
    [
        pytest.param(workers, *options, marks=[] if (workers, options[0]) in QUICK else [pytest.mark.slow])
        for workers in range(4)
        for options in [(1, 4, False), (2, 6, True), (5, 4, True)]
    ],
)
def test_a_state_after_any_batch_resumes_to_exactly_the_rest(
    ranks: Ranks, shards: Path, workers: int, every: int, batch_size: int, persistent: bool
) -> None:
    options = {
        "num_workers": workers,
        "snapshot_every_n_steps": every,
        "persistent_workers": persistent and workers > 0,
    }
    found = ranks.all(take_and_resume, shards, batch_size, options)
    assert not [one for one in found if isinstance(one, str)]
    assert found == ranks.all(epochs_without_workers, shards, batch_size)
    for epoch in range(3):
        seen = [number for rank in found for batch in rank[epoch] for number in batch]
        assert set(seen) == set(range(TOTAL))
        assert len(seen) == TOTAL + 1  # one sample makes the ranks even
    assert found[0][0] != found[0][1] != found[0][2]


def epochs_without_workers(shards: Path, batch_size: int) -> list[Batches]:
    plain = StreamingDataLoader(
        StreamingDataset(shards, decode=True, fields=("cls",)), batch_size, num_workers=0, drop_last=False
    )
    return [batches(plain) for _ in range(3)]


def states_of_workers(shards: Path) -> list[Any]:
    stateful = loader(shards, 4, num_workers=2)
    iterator = iter(stateful)
    next(iterator), next(iterator), next(iterator)
    return stateful.state_dict()["_snapshot"]["_worker_snapshots"]


def test_the_state_is_the_same_on_every_rank(ranks: Ranks, shards: Path) -> None:
    first, second = ranks.all(states_of_workers, shards)
    assert first == second
    assert "dataset_state" in first["worker_0"]


class TestTheDataSetByItself:
    def dataset(self, shards: Path, **more: Any) -> StreamingDataset:
        return StreamingDataset(shards, **{"decode": True, "num_replicas": 2, "rank": 1, **more})

    @pytest.mark.parametrize("batch_size", [1, 4, 7, 30])
    def test_its_state_is_flat_plain_and_the_one_that_was_loaded(self, shards: Path, batch_size: int) -> None:
        dataset = self.dataset(shards, batch_size=batch_size)
        stream = iter(dataset)
        for _ in range(7):
            next(stream)
        state = dataset.state_dict()
        assert (state["epoch"], state["taken"]) == (0, 7)
        assert all(type(value) in (int, str, bool) for value in state.values())
        other = self.dataset(shards, batch_size=batch_size)
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert list(other) == list(stream)
        assert other.state_dict() == dataset.state_dict() != state

    def test_a_state_is_consumed_by_the_next_iteration_and_by_no_other(self, shards: Path) -> None:
        dataset, whole = self.dataset(shards), self.dataset(shards)
        whole.set_epoch(1)
        iter(whole), next(iter(whole))
        dataset.load_state_dict(whole.state_dict())
        assert dataset.state_dict()["epoch"] == 1
        rest = iter(dataset)  # eagerly
        dataset.set_epoch(2)
        assert len(list(dataset)) == 19
        assert dataset.state_dict()["epoch"] == 2
        assert len(list(rest)) == 18

    @pytest.mark.parametrize("asked", [None, 1])
    def test_a_state_at_the_end_has_nothing_left_and_an_epoch_that_is_asked_for_follows(
        self, shards: Path, asked: int | None
    ) -> None:
        dataset, other = self.dataset(shards), self.dataset(shards)
        list(dataset)
        other.load_state_dict(dataset.state_dict())
        if asked is None:
            assert list(other) == []
        other.set_epoch(1)
        dataset.set_epoch(1)
        assert list(other) == list(dataset) != []

    def test_asking_for_another_epoch_discards_the_state(self, shards: Path) -> None:
        dataset = self.dataset(shards)
        next(iter(dataset))
        state = dataset.state_dict()
        dataset.load_state_dict(state)
        dataset.set_epoch(0)
        assert len(list(dataset)) == 18
        dataset.load_state_dict(state)
        dataset.set_epoch(4)
        assert len(list(dataset)) == 19
        assert dataset.state_dict()["epoch"] == 4

    @pytest.mark.parametrize(
        ("more", "difference"),
        [
            ({"num_replicas": 3}, "num_replicas is 2 in the state and 3 here"),
            ({"seed": 1}, "seed is 0 in the state and 1 here"),
            ({"batch_size": 4}, "batch_size is 1 in the state and 4 here"),
            ({"drop_last": True}, "drop_last is False in the state and True here"),
        ],
    )
    def test_the_state_of_another_split_is_refused(self, shards: Path, more: Any, difference: str) -> None:
        state = self.dataset(shards).state_dict()
        with pytest.raises(StateError, match=difference):
            self.dataset(shards, **more).load_state_dict(state)

    def test_its_state_and_that_of_a_loader_are_not_taken_for_each_other(self, shards: Path) -> None:
        dataset = self.dataset(shards)
        of_loader = StreamingDataLoader(dataset, 4, num_workers=0)
        with pytest.raises(ArgumentError, match="is not the state of a StreamingDataLoader"):
            of_loader.load_state_dict(dataset.state_dict())
        with pytest.raises(ArgumentError, match="is not the state of a StreamingDataset"):
            dataset.load_state_dict(of_loader.state_dict())

    def test_a_state_that_workers_would_resume_from_again_and_again_is_refused(self, shards: Path) -> None:
        dataset = self.dataset(shards)
        dataset.load_state_dict(dataset.state_dict())
        with (
            multiprocessing.get_context("fork").Pool(1) as pool,
            pytest.raises(StateError, match="was loaded in another process"),
        ):
            pool.apply(list, (dataset,))

    def test_an_iteration_that_failed_does_not_pass_for_one_that_ended(self, shards: Path) -> None:
        stream = iter(self.dataset(shards, decode={"txt": lambda data: 1 / (len(data) - 5)}, rank=0, num_replicas=1))
        for _ in range(3):  # the sample that cannot be made comes again
            with pytest.raises((SampleError, ZeroDivisionError)):
                list(stream)


def test_another_number_of_workers_is_refused(shards: Path) -> None:
    one, other = loader(shards, 4, num_workers=1), loader(shards, 4, num_workers=2)
    other.load_state_dict(one.state_dict())
    with pytest.raises(StateError, match="num_workers is 1 in the state and 2 here"):
        next(iter(other))
