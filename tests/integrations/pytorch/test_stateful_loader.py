"""torchdata's StatefulDataLoader over a data set of ours resumes to exactly what was left; so does the data set alone.

Its snapshots lie ``snapshot_every_n_steps`` batches apart; from the last one it goes on by reading again.
"""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.integrations.pytorch.conftest import Batches, check_epochs
from tests.support.gloo_ranks import Ranks
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import ArgumentError, StateError

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it


def loader(shards: Path, batch_size: int, **options: Any) -> StatefulDataLoader:
    dataset = StreamingDataset(shards, decode=True, fields=("cls",), batch_size=batch_size)
    return StatefulDataLoader(dataset, batch_size, **options)


def batches(found: Any) -> Batches:
    return [batch["cls"].tolist() for batch in found]


def play(stateful: StatefulDataLoader, epoch: int) -> Batches:
    stateful.dataset.set_epoch(epoch)  # type: ignore[attr-defined]
    return batches(stateful)


def take_and_resume(shards: Path, batch_size: int, options: dict[str, Any]) -> list[Batches]:
    """Return three epochs; raise if a state of the second does not lead to what followed it."""
    warnings.filterwarnings("error", "set_epoch")
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
        (0, 1, 4, False),
        (2, 2, 6, True),
        pytest.param(2, 5, 4, True, marks=pytest.mark.slow),
        pytest.param(3, 2, 6, False, marks=pytest.mark.slow),
    ],
)
def test_a_state_after_any_batch_resumes_to_exactly_the_rest(
    ranks: Ranks, shards: Path, workers: int, every: int, batch_size: int, persistent: bool
) -> None:
    options = {"num_workers": workers, "snapshot_every_n_steps": every, "persistent_workers": persistent}
    found = ranks.all(take_and_resume, shards, batch_size, options)
    check_epochs(found)
    assert found == ranks.all(epochs_of_ours, shards, batch_size)


def epochs_of_ours(shards: Path, batch_size: int) -> list[Batches]:
    dataset = StreamingDataset(shards, decode=True, fields=("cls",))
    plain = StreamingDataLoader(dataset, batch_size, num_workers=0, drop_last=False)
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


def test_another_number_of_workers_is_refused(shards: Path) -> None:
    one, other = loader(shards, 4, num_workers=2), loader(shards, 4, num_workers=1)
    other.load_state_dict(one.state_dict())
    with pytest.raises(StateError, match="num_workers is 2 in the state and 1 here"):
        next(iter(other))


# The data set by itself


def dataset(shards: Path, **more: Any) -> StreamingDataset:
    return StreamingDataset(shards, **{"decode": True, "num_replicas": 2, "rank": 1, **more})


@pytest.mark.parametrize("batch_size", [1, 4, 7, 30])
def test_its_state_is_flat_plain_and_the_one_that_was_loaded(shards: Path, batch_size: int) -> None:
    data = dataset(shards, batch_size=batch_size)
    stream = iter(data)
    for _ in range(7):
        next(stream)
    state = data.state_dict()
    assert (state["epoch"], state["taken"]) == (0, 7)
    assert all(type(value) in (int, str, bool) for value in state.values())
    other = dataset(shards, batch_size=batch_size)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert list(other) == list(stream)
    assert other.state_dict() == data.state_dict() != state


def test_a_state_is_consumed_by_the_next_iteration_and_by_no_other(shards: Path) -> None:
    data, whole = dataset(shards), dataset(shards)
    whole.set_epoch(1)
    iter(whole), next(iter(whole))
    data.load_state_dict(whole.state_dict())
    rest = iter(data)  # eagerly
    data.set_epoch(2)
    assert len(list(data)) == 19
    assert data.state_dict()["epoch"] == 2
    assert len(list(rest)) == 18


@pytest.mark.parametrize("asked", [None, 1])
def test_a_state_at_the_end_has_nothing_left_and_the_next_epoch_follows(shards: Path, asked: int | None) -> None:
    data, other = dataset(shards), dataset(shards)
    list(data)
    other.load_state_dict(data.state_dict())
    if asked is None:
        assert list(other) == []
    other.set_epoch(1)
    data.set_epoch(1)
    assert list(other) == list(data) != []


def _of_loader(data: StreamingDataset) -> Any:
    return StreamingDataLoader(data, 4, num_workers=0)


@pytest.mark.parametrize(
    ("load", "error", "message"),
    [
        (lambda state, make: make(num_replicas=3), StateError, "num_replicas is 2 in the state and 3 here"),
        (lambda state, make: make(seed=1), StateError, "seed is 0 in the state and 1 here"),
        (lambda state, make: make(batch_size=4), StateError, "batch_size is 1 in the state and 4 here"),
        (lambda state, make: make(drop_last=True), StateError, "drop_last is False in the state and True here"),
        (lambda state, make: _of_loader(make()), ArgumentError, "is not the state of a StreamingDataLoader"),
    ],
)
def test_the_state_of_something_else_is_refused(shards: Path, load: Any, error: Any, message: str) -> None:
    state = dataset(shards).state_dict()
    with pytest.raises(error, match=message):
        load(state, lambda **more: dataset(shards, **more)).load_state_dict(state)
    with pytest.raises(ArgumentError, match="is not the state of a StreamingDataset"):
        dataset(shards).load_state_dict(_of_loader(dataset(shards)).state_dict())


def test_a_state_that_workers_would_resume_from_again_and_again_is_refused(shards: Path) -> None:
    data = dataset(shards)
    data.load_state_dict(data.state_dict())
    loader = DataLoader(data, 4, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    for error in (StateError, RuntimeError):  # in the second pass the worker ends with it
        with pytest.raises(error, match=r"was loaded in another process|exited unexpectedly"):
            list(loader)
