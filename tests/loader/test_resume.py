"""Saving and loading a loader's state: exact, small, the same on every rank, elastic."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.loader.test_loader import make_loader
from tests.support.loaders import batches, flat
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import ArgumentError, SharedMemoryError, StateError


def play(loader: StreamingDataLoader, count: int) -> list[list[int]]:
    """Take some batches and leave the iteration as a crash would."""
    iterator = iter(loader)
    return [next(iterator)["cls"].tolist() for _ in range(count)]


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(state))


def test_the_state_counts_what_was_handed_out_not_what_workers_prepared(shards: Path) -> None:
    loader = make_loader(shards, num_workers=3, prefetch_factor=4)
    play(loader, 2)
    assert loader.state_dict()["consumed"] == 2 * 8 * 2


def test_the_state_between_iter_and_the_first_batch_is_the_start_of_the_epoch_to_come(shards: Path) -> None:
    loader = make_loader(shards)
    play(loader, 2)
    assert loader.state_dict()["epoch"] == 0
    iter(loader)
    assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (1, 0)


def test_an_epoch_that_could_not_begin_is_begun_by_the_next_iteration(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    whole = make_loader(shards)
    play(whole, 2)
    state = through_json(whole.state_dict())
    resumed, fresh = make_loader(shards, num_workers=1), make_loader(shards, num_workers=1)
    resumed.load_state_dict(state)
    for loader in (resumed, fresh):
        with monkeypatch.context() as full:
            full.setattr(os, "posix_fallocate", no_room)
            with pytest.raises(SharedMemoryError):
                next(iter(loader))
    assert resumed.state_dict() == state
    assert flat(batches(resumed)) == flat(batches(make_loader(shards)))[2 * 8 :]
    assert batches(fresh) == batches(make_loader(shards))


def test_the_state_is_flat_and_survives_json(shards: Path) -> None:
    state = make_loader(shards).state_dict()
    assert all(isinstance(value, (int, str, bool)) for value in state.values())
    assert through_json(state) == state
    assert len(json.dumps(state)) < 1000


def train(
    loader: StreamingDataLoader, epochs: range, *, with_set_epoch: bool, stop: tuple[int, int] | None = None
) -> Any:
    """Play epochs as a training program does, up to a batch to stop at; return the batches, and the state then."""
    played = []
    for epoch in epochs:
        if with_set_epoch:
            loader.set_epoch(epoch)
        for number, batch in enumerate(loader, start=1):
            played.append(batch["cls"].tolist())
            if (epoch, number) == stop:
                return played, through_json(loader.state_dict())
    return played, through_json(loader.state_dict())


@pytest.mark.parametrize("with_set_epoch", [False, True])
@pytest.mark.parametrize("where", ["in the middle", "after the last batch", "after the loop"])
def test_a_loop_from_the_epoch_of_the_state_plays_each_epoch_once(
    shards: Path, where: str, with_set_epoch: bool
) -> None:
    whole, _ = train(make_loader(shards), range(4), with_set_epoch=with_set_epoch)
    length = len(make_loader(shards))
    stop = {"in the middle": (1, 2), "after the last batch": (1, length), "after the loop": None}[where]
    first, state = train(make_loader(shards), range(2), with_set_epoch=with_set_epoch, stop=stop)
    assert (state["epoch"], state["finished"]) == ((1, False) if where == "in the middle" else (2, True))
    resumed = make_loader(shards)
    resumed.load_state_dict(state)
    assert through_json(resumed.state_dict()) == state
    rest, _ = train(resumed, range(state["epoch"], 4), with_set_epoch=with_set_epoch)
    assert first + rest == whole


def test_frameworks_may_load_then_iterate_then_set_the_epoch(shards: Path) -> None:
    loader = make_loader(shards, num_workers=2)
    batches(loader)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    rest = batches(iterator)
    resumed = make_loader(shards, num_workers=2)
    resumed.load_state_dict(state)
    iterator = iter(resumed)
    resumed.sampler.set_epoch(1)  # type: ignore[attr-defined]
    assert batches(iterator) == rest


class TestRefused:
    @pytest.mark.parametrize(
        ("other", "difference"),
        [
            ({"seed": 1}, "seed is 0 in the state and 1 here"),
            ({"order": "sampler"}, "order is 'shard' in the state and 'sampler' here"),
            ({"shuffle": False}, "shuffle is True in the state and False here"),
            ({"shuffle_window": 10}, "shuffle_window is 4096 in the state and 10 here"),
            ({"num_canonical_replicas": 5}, "num_canonical_replicas is 2 in the state and 5 here"),
            ({"samples_per_epoch": 50}, "num_samples is 103 in the state and 50 here"),
        ],
    )
    def test_is_the_state_of_another_order(self, shards: Path, other: dict[str, Any], difference: str) -> None:
        state = make_loader(shards).state_dict()
        with pytest.raises(StateError, match=difference):
            make_loader(shards, **other).load_state_dict(state)

    def test_is_the_state_of_another_data_set(self, shards: Path) -> None:
        part = make_loader(shards / "{0..3}.tar")  # type: ignore[arg-type]
        with pytest.raises(StateError, match="num_samples is 103 in the state and 78 here; fingerprint is"):
            part.load_state_dict(make_loader(shards).state_dict())

    def test_is_the_state_of_another_view_with_the_samples_that_differ(self, shards: Path, tmp_path: Path) -> None:
        data = wdsdist.open(shards)
        unsaved = data.select(exclude=["k2", "k3"])
        other = wdsdist.open(unsaved.save(tmp_path / "other"))
        state = make_loader(wdsdist.open(data.select(exclude=["k1"]).save(tmp_path / "one"))).state_dict()
        for view, told in ((other, "in 3 samples"), (unsaved, "in 1 samples at least")):
            with pytest.raises(StateError, match=f"so the views differ {told}"):
                make_loader(view).load_state_dict(state)
        make_loader(other).load_state_dict(make_loader(unsaved).state_dict())  # the same samples, however named

    @pytest.mark.parametrize("junk", [None, 3, {}, {"epoch": 1}])
    def test_is_what_is_no_state(self, shards: Path, junk: Any) -> None:
        with pytest.raises(ArgumentError, match="pass what state_dict"):
            make_loader(shards).load_state_dict(junk)

    @pytest.mark.parametrize("change", [{"version": 2}, {"epoch": -1}, {"consumed": 104}, {"consumed": 1.5}])
    def test_is_a_state_with_an_impossible_value(self, shards: Path, change: dict[str, Any]) -> None:
        loader = make_loader(shards)
        with pytest.raises(StateError):
            loader.load_state_dict({**loader.state_dict(), **change})
        assert len(batches(loader)) == len(loader)


# Generations of the data set


def test_a_state_of_an_older_generation_goes_on_and_the_next_epoch_has_all(tmp_path: Path) -> None:
    def samples(first: int) -> Any:
        return ({"cls": number} for number in range(first, first + 40))

    def made(workers: int) -> StreamingDataLoader:
        dataset = StreamingDataset(tmp_path / "data", decode=True, num_replicas=1, rank=0)
        return StreamingDataLoader(dataset, 8, num_workers=workers)

    wdsdist.pack(samples(0), tmp_path / "data", shard_samples=20)
    loader = made(0)
    iterator = iter(loader)
    played = [next(iterator)["cls"].tolist() for _ in range(2)]
    state, rest = loader.state_dict(), [batch["cls"].tolist() for batch in iterator]
    wdsdist.pack(samples(40), tmp_path / "data", append=True, shard_samples=20)
    for workers in (0, 1):
        resumed = made(workers)
        resumed.load_state_dict(state)
        assert [batch["cls"].tolist() for batch in resumed] == rest
        assert resumed.state_dict()["epoch"] == 1
        assert sorted(flat(batches(resumed))) == list(range(80))
        resumed.set_epoch(0)  # again, from its start: over all samples
        assert sorted(flat(batches(resumed))) == list(range(80))
    assert sorted(number for batch in played + rest for number in batch) == list(range(40))


def test_a_state_of_another_format_is_refused_in_one_line(shards: Path) -> None:
    loader = make_loader(shards)
    with pytest.raises(StateError, match="the state has version 1, this wdsdist reads 3: use the release that saved"):
        loader.load_state_dict({**loader.state_dict(), "version": 1})
    dataset = StreamingDataset(shards, num_replicas=1, rank=0)
    with pytest.raises(StateError, match="the state has version 9"):
        dataset.load_state_dict({**dataset.state_dict(), "version": 9})
