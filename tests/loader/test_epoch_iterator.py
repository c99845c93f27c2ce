"""Any sequence of what training loops do with epochs, held to the rule that each step must follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loader.test_loader import make_loader
from tests.support.examples import fewer
from tests.support.loaders import batches

DOORS = ("loader", "sampler", "dataset")

steps = st.lists(
    st.tuples(st.just("play"), st.none(), st.none())
    | st.tuples(st.just("break"), st.none(), st.integers(1, 5))
    | st.tuples(st.just("set_epoch"), st.sampled_from(DOORS), st.integers(0, 9))
    | st.tuples(st.just("late set_epoch"), st.sampled_from(DOORS), st.integers(0, 9)),
    max_size=8,
)


@pytest.fixture(scope="module")
def epochs(shards: Path) -> list[list[list[int]]]:
    """The batches of the epochs that the steps can reach, each from a loader that played nothing else."""
    found = []
    for epoch in range(20):
        loader = make_loader(shards, 8)
        loader.set_epoch(epoch)
        found.append(batches(loader))
    return found


def check(loader: Any, sequence: list[Any], epochs: list[list[list[int]]]) -> None:
    doors = {"loader": loader, "sampler": loader.sampler, "dataset": loader.dataset}
    following = 0
    for what, door, number in sequence:
        if what == "set_epoch":
            doors[door].set_epoch(number)
            following = number
            continue
        iterator = iter(loader)
        if what == "late set_epoch":
            doors[door].set_epoch(number)
            following = number
        if what == "break":
            assert [next(iterator)["cls"].tolist() for _ in range(number)] == epochs[following][:number]
        else:
            assert batches(iterator) == epochs[following]
        has_ended = what != "break" or number == len(epochs[following])
        assert loader.state_dict()["epoch"] == following + has_ended
        following += 1


@fewer()
@given(steps)
def test_each_iteration_plays_the_epoch_that_was_asked_for_last_or_the_next_one(
    shards: Path, epochs: list[list[list[int]]], sequence: list[Any]
) -> None:
    check(make_loader(shards, 8), sequence, epochs)


@fewer(5)
@given(steps)
def test_persistent_workers_do_so_too(shards: Path, epochs: list[list[list[int]]], sequence: list[Any]) -> None:
    check(make_loader(shards, 8, num_workers=2), sequence, epochs)
