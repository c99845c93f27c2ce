"""Passes of foreign loaders: workers of one pass agree on its epoch, however they start; no two passes share one."""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from wdsdist.errors import LoaderStateError
from wdsdist.loader import passes
from wdsdist.loader.passes import Pass, Passes
from wdsdist.loader.worker_state import EpochRequest

Start = tuple[int, int]
"""A seed, and a worker that starts under it."""


def begin(counted: Passes, seed: int, worker: int, resumed: int | None = None) -> Pass:
    info = SimpleNamespace(id=worker, seed=seed + worker)
    with mock.patch.object(passes, "get_worker_info", return_value=info):
        return counted.begin(resumed)


@st.composite
def starts(draw: st.DrawFn) -> list[Start]:
    """Loaders of some workers and passes each; their workers start in any order, each once for each pass."""
    loaders = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=3))
    all_starts = [(seed, w) for seed, (workers, n) in enumerate(loaders) for w in range(workers) for _ in range(n)]
    return draw(st.permutations(all_starts))


@given(starts())
def test_the_workers_of_a_pass_play_one_epoch_and_no_other_pass_plays_it(order: list[Start]) -> None:
    counted = Passes(EpochRequest())
    found: dict[tuple[int, int], set[Pass]] = defaultdict(set)
    started: dict[Start, int] = defaultdict(int)
    for seed, worker in order:
        found[seed, started[seed, worker]].add(begin(counted, seed, worker))
        started[seed, worker] += 1
    assert all(len(passes) == 1 for passes in found.values())
    assert sorted(one.epoch for passes in found.values() for one in passes) == list(range(len(found)))


def test_more_starts_than_are_remembered() -> None:
    counted = Passes(EpochRequest())
    for epoch in range(400):
        assert {begin(counted, 7, worker).epoch for worker in range(3)} == {epoch}


def test_a_request_between_two_starts_counts_for_the_next_pass() -> None:
    request = EpochRequest()
    counted = Passes(request)
    assert begin(counted, 1, 0).epoch == 0
    request.make(5)
    assert begin(counted, 1, 1).epoch == 0
    assert counted.next_epoch == 5
    assert [begin(counted, 2, worker).epoch for worker in (1, 0)] == [5, 5]
    assert counted.begin() == Pass(2, 6)


def test_the_pass_after_a_resumed_one_plays_the_epoch_after_it() -> None:
    counted = Passes(EpochRequest())
    assert [begin(counted, 1, worker, resumed=8).epoch for worker in (0, 1)] == [8, 8]
    assert [begin(counted, 2, worker).epoch for worker in (0, 1)] == [9, 9]


def test_workers_that_have_loaded_states_of_different_epochs_are_refused() -> None:
    counted = Passes(EpochRequest())
    begin(counted, 1, 0, resumed=8)
    with pytest.raises(LoaderStateError, match="state is of epoch 7, that of another worker of epoch 8"):
        begin(counted, 1, 1, resumed=7)


def test_a_request_discards_the_states_of_all_workers() -> None:
    request = EpochRequest()
    counted = Passes(request)
    request.make(0)
    with pytest.warns(UserWarning, match=r"set_epoch\(0\) discards the loaded state of epoch 8"):
        assert begin(counted, 1, 0, resumed=8).epoch == 0
    assert begin(counted, 1, 1, resumed=8).epoch == 0


class Epochs(IterableDataset[int]):
    """Yields the epoch that each worker plays."""

    def __init__(self) -> None:
        self.passes = Passes(EpochRequest())

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter([self.passes.begin().epoch])


@pytest.mark.parametrize(("method", "passes"), [("fork", 3), ("forkserver", 1)])
def test_a_rank_that_was_started_with_the_data_set_counts_for_itself_and_its_workers(method: str, passes: int) -> None:
    data = Epochs()
    context = multiprocessing.get_context(method)
    results = context.Queue()
    for _ in range(2):
        rank = context.Process(target=play, args=(data, passes, method, results))
        rank.start()
        assert results.get(timeout=60) == [[epoch] for epoch in range(passes)]
        rank.join()


def play(data: Epochs, passes: int, method: str, results: Any) -> None:
    """Give the epochs that new workers play, each pass started as this process was."""
    loader = DataLoader(data, None, num_workers=1, multiprocessing_context=method)
    results.put([list(loader) for _ in range(passes)])
