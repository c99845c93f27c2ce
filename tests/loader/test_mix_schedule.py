"""Mixes whose weights change with the epochs: the shares of each epoch, and resuming with the same or other weights."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from wdsdist import StreamingDataLoader
from wdsdist.errors import ArgumentError, StateError

SIZES = {"web": 30, "books": 12}
EARLY, LATE = {"web": 0.9, "books": 0.1}, {"web": 0.5, "books": 0.5}
Weights = dict[Any, Any]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sets")
    for name, size in SIZES.items():
        wdsdist.pack(({"txt": f"{name} {number}"} for number in range(size)), root / name, shard_samples=5)
    return {name: root / name for name in SIZES}


def make_loader(shares: Any, weights: Weights | None, workers: int = 0, **options: Any) -> StreamingDataLoader:
    mixed = wdsdist.mix(shares, weights=weights, samples_per_epoch=40, decode=True, fields=("txt",), seed=1, **options)
    return StreamingDataLoader(mixed, 10, num_workers=workers)


def played(batches: Any) -> list[list[str]]:
    return [batch["txt"] for batch in batches]


def counts(batches: list[list[str]]) -> Counter[str]:
    return Counter(text.split()[0] for batch in batches for text in batch)


@pytest.mark.parametrize("workers", [0, 1])
def test_each_epoch_has_the_weights_of_its_phase(sets: dict[str, Path], workers: int) -> None:
    loader = make_loader(sets, {0: EARLY, 2: LATE, 3: {"web": 0, "books": 1}}, workers)
    found = [counts(played(loader)) for _ in range(5)]
    assert found == [
        {"web": 36, "books": 4}, {"web": 36, "books": 4}, {"web": 20, "books": 20}, {"books": 40}, {"books": 40}
    ]  # fmt: skip


def test_weights_by_name_are_those_in_the_shares(sets: dict[str, Path]) -> None:
    by_name, in_shares = make_loader(sets, EARLY), make_loader({name: (sets[name], EARLY[name]) for name in sets}, None)
    assert by_name.state_dict() == in_shares.state_dict() == make_loader(sets, {0: EARLY}).state_dict()
    assert played(by_name) == played(in_shares)


@pytest.mark.parametrize("taken", [0, 5, 8, 9, 13])
def test_a_resume_anywhere_gives_the_same_samples(sets: dict[str, Path], taken: int) -> None:
    weights = {0: EARLY, 2: LATE}
    loader = make_loader(sets, weights)
    batches = [batch for _ in range(4) for batch in played(loader)]
    stopped = make_loader(sets, weights)
    for epoch in range(taken // 4 + 1):
        stopped.set_epoch(epoch)
        iterator = iter(stopped)
        for _ in range(4 if epoch < taken // 4 else taken % 4):
            next(iterator)
    state = json.loads(json.dumps(stopped.state_dict()))
    assert state["mix"] == "0: 9/10 1/10; 2: 1/2 1/2"
    resumed = make_loader(sets, weights)
    resumed.load_state_dict(state)
    rest: list[list[str]] = []
    while len(rest) < 16 - taken:
        rest += played(resumed)
    assert rest == batches[taken:]


def test_another_schedule_is_refused_unless_it_is_asked_for(sets: dict[str, Path]) -> None:
    loader = make_loader(sets, {0: EARLY, 2: LATE})
    next(iter(loader))
    for weights in (EARLY, {0: EARLY, 3: LATE}):
        with pytest.raises(StateError, match=r"mix is '0: 9/10 1/10; 2: 1/2 1/2' in the state and"):
            make_loader(sets, weights).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("taken", [0, 1, 4])
def test_other_weights_hold_from_the_next_epoch_on(sets: dict[str, Path], taken: int, workers: int) -> None:
    old = make_loader(sets, EARLY)
    played(old)
    old.set_epoch(1)
    second = iter(old)
    seen = [next(second)["txt"] for _ in range(taken)]
    state = old.state_dict()
    rest = played(second) if taken else []
    new = make_loader(sets, LATE, workers, change_weights=True)
    new.load_state_dict(state)
    if taken and taken < 4:
        assert played(new) == rest
    following = played(new)
    assert counts(following) == {"web": 20, "books": 20}
    assert new.state_dict()["epoch"] == (3 if taken else 2), "that of the epoch that comes next"
    # Each data set has gone on where it stood: as if all had been one schedule from the start.
    whole = make_loader(sets, {0: EARLY, 2 if taken else 1: LATE})
    epochs = [played(whole) for _ in range(4)]
    assert following == epochs[2 if taken else 1]
    assert seen + rest == (epochs[1] if taken else [])
    # And so it is for whoever resumes that run in turn, with the same arguments.
    again = make_loader(sets, LATE, change_weights=True)
    again.load_state_dict(new.state_dict())
    assert played(again) == played(new) == epochs[3 if taken else 2]


def test_a_state_of_other_data_sets_is_refused_though_weights_may_change(sets: dict[str, Path]) -> None:
    loader = make_loader(sets, EARLY)
    other = make_loader({"web": sets["web"]}, {"web": 1}, change_weights=True)
    with pytest.raises(StateError, match="fingerprint is"):
        other.load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ({5: EARLY}, ArgumentError, "weights begin with epoch 5: give those from epoch 0 on too"),
        ({0: EARLY, 3: {"web": 1}}, ArgumentError, "weights from epoch 3 on are of web, and .*such as 'books'"),
        ({"web": 1, "book": 1}, ArgumentError, "weights are of web, book, and the data sets of the mix are web, books"),
        ({0: EARLY, 3: {"web": 0, "books": 0}}, ArgumentError, "all weights from epoch 3 on are 0"),
        ({0: EARLY, 3: {"web": -1, "books": 1}}, ArgumentError, "the weight of 'web' is -1: it must be 0 or more"),
        ({"web": 0, "books": 1}, ArgumentError, "the weight of 'web' is 0: it must be above 0 and finite"),
        ({0: EARLY, 3: {"web": 1e9, "books": 1}}, ArgumentError, "the largest may be 1,000,000 times the smallest"),
        ({0: EARLY, "3": LATE}, ArgumentError, "an epoch of weights is '3': it must be an integer"),
        ({0: EARLY, -1: LATE}, ArgumentError, "an epoch of weights is -1"),
        ([0.5, 0.5], ArgumentError, "weights is .*: it must map names"),
    ],
)
def test_weights_that_cannot_be_are_refused(
    sets: dict[str, Path], weights: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_loader(sets, weights)


def test_weights_that_are_given_twice_are_refused(sets: dict[str, Path]) -> None:
    with pytest.raises(ArgumentError, match="the weight of 'web' is given twice"):
        wdsdist.mix({"web": (sets["web"], 0.5), "books": sets["books"]}, weights=EARLY)
