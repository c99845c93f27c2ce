"""What a loader promises of an epoch, over all kinds of data sets: each sample once, and exact resumes on any world."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wdsdist
from tests.support.examples import fewer
from wdsdist import StreamingDataLoader, StreamingDataset, unpadded

Make = Callable[..., StreamingDataset]
Sample = tuple[str, str, int]
"""Data set, key and number of the part."""


@pytest.fixture(scope="module", params=["plain", "sampler", "view", "parts", "mix", "concat", "cut", "long"])
def make(request: pytest.FixtureRequest, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return what makes a data set of one kind."""
    data, two = wdsdist.open(shards), {"a": (shards, 3), "b": (shards, 1)}
    view = tmp_path_factory.mktemp("views") / "view"
    kinds: dict[str, Callable[[], Make]] = {
        "plain": lambda: partial(StreamingDataset, shards),
        "sampler": lambda: partial(StreamingDataset, shards, order="sampler"),
        "view": lambda: partial(StreamingDataset, data.select(sample=60).repeat(2).save(view)),
        "parts": lambda: partial(StreamingDataset, data.explode("txt.bytes")),
        "mix": lambda: partial(wdsdist.mix, two, samples_per_epoch=90),
        "concat": lambda: partial(wdsdist.concat, {"a": shards, "b": data.select(sample=9).repeat(3)}),
        "cut": lambda: partial(StreamingDataset, shards, samples_per_epoch=61),
        "long": lambda: partial(StreamingDataset, shards, samples_per_epoch=250),
    }
    return kinds[request.param]()


def made(make: Make, rank: int = 0, world: int = 1, batch: int = 1, *, lanes: int = 2, **more: Any) -> Any:
    """Return a loader that keeps its last batch; ``more`` are options of the data set, or of workers."""
    of_loader = {name: more.pop(name) for name in ("num_workers", "multiprocessing_context") if name in more}
    dataset = make(rank=rank, num_replicas=world, num_canonical_replicas=lanes, shuffle_window=16, **more)
    return StreamingDataLoader(dataset, batch, drop_last=False, **{"num_workers": 0, **of_loader})


def of_batch(batch: Any) -> list[Sample]:
    size = len(batch["__key__"])
    parts = batch["__part__"].tolist() if "__part__" in batch else [0] * size
    return list(zip(batch.get("__dataset__", [""] * size), batch["__key__"], parts, strict=True))


def samples(batches: Iterable[Any]) -> list[Sample]:
    return [sample for batch in batches for sample in of_batch(batch)]


def epoch_of(make: Make, epoch: int, **more: Any) -> Counter[Sample]:
    """Return the samples of an epoch, each as often as it comes, as one rank plays it."""
    loader = made(make, **more)
    loader.set_epoch(epoch)
    return Counter(samples(loader))


@fewer(3)
@given(
    world=st.integers(1, 8),
    batch=st.integers(1, 20),
    lanes=st.integers(1, 8),
    epoch=st.integers(0, 3),
    marks=st.booleans(),
)
def test_ranks_have_equal_batches_and_together_each_sample_of_the_epoch(
    make: Make, world: int, batch: int, lanes: int, epoch: int, marks: bool
) -> None:
    expected, ranks = epoch_of(make, epoch, lanes=lanes), []
    for rank in range(world):
        loader = made(make, rank, world, batch, lanes=lanes, mark_padding=marks)
        loader.set_epoch(epoch)
        ranks.append(list(loader))
        assert len(ranks[-1]) == len(loader)
    assert len({tuple(len(batch["__key__"]) for batch in rank) for rank in ranks}) == 1
    played = Counter(samples(itertools.chain(*ranks)))
    assert not expected - played
    assert (played - expected).total() == -expected.total() % world, "more is repeated than the padding"
    if marks:
        assert Counter(samples(unpadded(batch) for rank in ranks for batch in rank)) == expected


@fewer(3)
@given(
    worlds=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=4),
    epoch=st.integers(0, 2),
    marks=st.booleans(),
)
def test_a_chain_of_resumes_on_other_worlds_plays_each_sample_once(
    make: Make, worlds: list[tuple[int, int, int]], epoch: int, marks: bool
) -> None:
    expected, played, state = epoch_of(make, epoch), Counter[Sample](), None
    for world, batch, steps in [*worlds, (1, 5, 10**6)]:
        states = []
        for rank in range(world):
            loader = made(make, rank, world, batch, mark_padding=marks)
            loader.set_epoch(epoch)
            if state is not None:
                loader.load_state_dict(state)
            batches = itertools.islice(iter(loader), steps) if steps else iter(())
            played.update(samples(map(unpadded, batches) if marks else batches))
            states.append(json.loads(json.dumps(loader.state_dict())))
        state = states[0]
        assert all(other == state for other in states)
        if state["finished"]:
            break
    assert not expected - played
    most = 1 if marks else max(world for world, *_ in worlds)
    assert (played - expected).total() < most, "more is repeated than one padding"


@pytest.mark.parametrize(("workers", "start"), [(2, "fork"), pytest.param(1, "forkserver", marks=pytest.mark.slow)])
def test_a_state_continues_with_the_batches_that_were_left_with_any_number_of_workers(
    make: Make, workers: int, start: str
) -> None:
    loader = made(make, 1, 2, 7)
    list(loader)
    iterator = iter(loader)
    taken = [of_batch(batch) for batch in itertools.islice(iterator, 3)]
    state = json.loads(json.dumps(loader.state_dict()))
    rest, following = [[of_batch(batch) for batch in batches] for batches in (iterator, loader)]
    resumed = made(make, 1, 2, 7, num_workers=workers, multiprocessing_context=start)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert [[of_batch(batch) for batch in resumed] for _ in range(2)] == [rest, following]
    whole = made(make, 1, 2, 7)
    whole.set_epoch(1)
    assert [of_batch(batch) for batch in whole] == taken + rest


def test_single_samples_are_those_of_the_batches(make: Make) -> None:
    dataset = make(rank=1, num_replicas=2, num_canonical_replicas=2, shuffle_window=16)
    found = [(one.get("__dataset__", ""), one["__key__"], one.get("__part__", 0)) for one in dataset]
    assert found == samples(made(make, 1, 2, 7))
    assert len(found) == len(dataset)
