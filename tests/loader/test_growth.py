"""Data sets that grow while they are trained on: an epoch keeps the samples that it began with, the next has all."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import wdsdist
from tests.support.examples import fewer
from tests.support.web import served
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.distributed.agreement import Told
from wdsdist.errors import ArgumentError, SharedMemoryError, StateError
from wdsdist.loader import growth

SIZES = 23, 36, 50
"""Samples in each generation."""


class Growing:
    """A data set that has the files of all its generations, and the index.json of one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.indexes: list[bytes] = []

    def grow_to(self, generation: int) -> None:
        new = self.folder / "index.new"
        new.write_bytes(self.indexes[generation - 1])
        new.replace(self.folder / "index.json")

    def dataset(self, **options: Any) -> StreamingDataset:
        return StreamingDataset(options.pop("shards", self.folder), decode=True, **options)

    def loader(self, batch_size: int = 1, workers: int = 0, **options: Any) -> StreamingDataLoader:
        return StreamingDataLoader(self.dataset(**options), batch_size, num_workers=workers, drop_last=False)


@pytest.fixture(scope="session")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Growing:
    found = Growing(tmp_path_factory.mktemp("growing") / "shards")
    for first, last in ((0, SIZES[0]), SIZES[:2], SIZES[1:]):
        samples = [{"__key__": f"{number:03}", "cls": number} for number in range(first, last)]
        wdsdist.pack(samples, found.folder, shard_samples=5, append=True)
        found.indexes.append((found.folder / "index.json").read_bytes())
    return found


@pytest.fixture
def growing(grown: Growing, tmp_path: Path) -> Growing:
    mine = Growing(Path(shutil.copytree(grown.folder, tmp_path / "growing")))
    mine.indexes = grown.indexes
    mine.grow_to(1)
    return mine


def played(batches: Iterator[Any] | StreamingDataLoader) -> list[int]:
    return [number for batch in batches for number in batch["cls"].tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_keeps_what_it_began_with_and_the_next_one_has_all(growing: Growing, workers: int) -> None:
    loader = growing.loader(4, workers)
    epoch = iter(loader)
    first = next(epoch)["cls"].tolist()
    growing.grow_to(2)
    assert len(loader) == 6
    assert sorted(first + played(epoch)) == list(range(23))
    for generation, number in ((2, 1), (2, 2), (3, 3)):
        growing.grow_to(generation)
        loader.set_epoch(number)
        assert len(loader) == -(-SIZES[generation - 1] // 4)
        assert sorted(played(loader)) == list(range(SIZES[generation - 1]))
        assert len(loader) == -(-SIZES[generation - 1] // 4)


def test_without_set_epoch_too_the_next_iteration_has_all(growing: Growing) -> None:
    loader = growing.loader()
    assert len(played(loader)) == 23
    growing.grow_to(2)
    assert len(played(loader)) == 36


@fewer()
@given(consumed=st.integers(1, 23), world=st.integers(1, 3), later=st.sampled_from([2, 3]))
def test_a_state_of_an_older_generation_finishes_its_epoch_and_then_sees_the_new_samples(
    grown: Growing, consumed: int, world: int, later: int
) -> None:
    grown.grow_to(1)
    oracle = played(grown.loader(seed=3))
    loader = grown.loader(seed=3)
    epoch = iter(loader)
    assert [next(epoch)["cls"].item() for _ in range(consumed)] == oracle[:consumed]
    state = json.loads(json.dumps(loader.state_dict()))
    grown.grow_to(later)
    ranks = [grown.loader(seed=3, num_replicas=world, rank=rank, follow=True) for rank in range(world)]
    rest: Counter[int] = Counter()
    for loader in ranks:
        loader.load_state_dict(state)
        loader.set_epoch(0)
        rest.update(played(loader))
    assert rest.keys() >= set(oracle[consumed:]), "a sample was lost"
    assert rest.total() - (23 - consumed) == -(23 - consumed) % world, "samples came again beyond the padding"
    following: Counter[int] = Counter()
    for loader in ranks:
        loader.set_epoch(1)
        following.update(played(loader))
        assert loader.state_dict()["num_samples"] == SIZES[later - 1]
    assert following.keys() == set(range(SIZES[later - 1]))


def test_a_state_in_the_middle_of_a_resumed_older_epoch_is_of_that_generation(growing: Growing) -> None:
    loader = growing.loader()
    next(iter(loader))
    state = loader.state_dict()
    growing.grow_to(2)
    resumed = growing.loader()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert len(resumed) == 23
    epoch = iter(resumed)
    next(epoch)
    middle = resumed.state_dict()
    assert (middle["fingerprint"], middle["consumed"]) == (state["fingerprint"], 2)
    again = growing.loader()
    again.load_state_dict(middle)
    assert played(again) == played(epoch)
    assert len(played(again)) == 36


def test_a_state_from_the_start_of_an_epoch_begins_it_with_all_samples(growing: Growing) -> None:
    state = growing.loader().state_dict()
    growing.grow_to(2)
    resumed = growing.loader()
    resumed.load_state_dict(state)
    assert len(played(resumed)) == 36


def test_a_finished_state_stays_one_where_the_epoch_after_it_cannot_begin(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    first = growing.loader()
    assert len(played(first)) == 23
    state = first.state_dict()
    growing.grow_to(2)
    resumed = growing.loader(workers=1)
    resumed.load_state_dict(state)
    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", no_room)
        with pytest.raises(SharedMemoryError):
            next(iter(resumed))
    assert resumed.state_dict() == state
    assert sorted(played(resumed)) == list(range(36))


def test_a_state_of_other_samples_is_refused_as_ever(growing: Growing) -> None:
    growing.grow_to(2)
    state = growing.loader().state_dict()
    growing.grow_to(1)
    with pytest.raises(StateError, match="num_samples is 36 in the state and 23 here"):
        growing.loader().load_state_dict(state)


@pytest.mark.parametrize("follow", [None, False])
def test_a_foreign_loaders_state_of_an_older_generation_goes_on_in_it(growing: Growing, follow: bool | None) -> None:
    old = growing.dataset()
    stream = iter(old)
    seen = [next(stream)["cls"] for _ in range(9)]
    state = old.state_dict()
    growing.grow_to(2)
    for epochs in ((0, 1), (None, 1)):
        resumed = growing.dataset(follow=follow)
        resumed.load_state_dict(state)
        for epoch, size in zip(epochs, (23, 36), strict=True):
            if epoch is not None:
                resumed.set_epoch(epoch)
            assert sorted(seen * (size == 23) + [sample["cls"] for sample in resumed]) == list(range(size))


# What stays as it was opened


@pytest.mark.parametrize("how", ["generation", "manifest", "follow"])
def test_what_is_pinned_does_not_grow(growing: Growing, how: str) -> None:
    growing.grow_to(2)
    pinned = {
        "generation": {"shards": wdsdist.open(growing.folder, generation=1)},
        "manifest": {"shards": wdsdist.open(growing.folder)},
        "follow": {"follow": False},
    }[how]
    loader = growing.loader(**pinned)
    before = len(played(loader))
    growing.grow_to(3)
    assert len(played(loader)) == before == (23 if how == "generation" else 36)


def test_ranks_that_cannot_agree_stay_with_what_they_opened_unless_told_otherwise(growing: Growing) -> None:
    loaders = [growing.loader(num_replicas=2, rank=0, follow=follow) for follow in (None, True)]
    for loader in loaders:
        played(loader)
    growing.grow_to(2)
    assert [len(played(loader)) for loader in loaders] == [12, 18]


def test_only_what_can_grow_can_be_followed(growing: Growing) -> None:
    for shards in (wdsdist.open(growing.folder), sorted(map(str, growing.folder.glob("*.tar")))):
        with pytest.raises(ArgumentError, match="only a folder or URL with an index"):
            growing.dataset(shards=shards, follow=True)


@pytest.mark.parametrize("damage", ["other shards", "damaged", "missing"])
def test_an_index_that_is_no_longer_the_same_and_more_is_not_followed(
    growing: Growing, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    loader = growing.loader()
    played(loader)
    index = growing.folder / "index.json"
    if damage == "missing":
        index.unlink()
    elif damage == "damaged":
        index.write_bytes(growing.indexes[1][:50])
    else:
        content = json.loads(growing.indexes[0])
        del content["shardlist"][0], content["wdsdist"]["num_samples"]
        index.write_text(json.dumps(content))
    with caplog.at_level(logging.WARNING, "wdsdist"):
        assert len(played(loader)) == 23
        assert len(played(loader)) == 23
    assert caplog.text.count("lists other shards than when it was opened") == (damage == "other shards")
    growing.grow_to(2)
    assert len(played(loader)) == 36


# Elsewhere


def test_a_data_set_on_the_web_is_followed(growing: Growing, tmp_path: Path) -> None:
    with served(growing.folder) as web:
        loader = growing.loader(shards=web.url, cache_dir=tmp_path / "cache")
        assert len(played(loader)) == 23
        growing.grow_to(2)
        assert len(played(loader)) == 36


@pytest.mark.parametrize("is_fresh", [True, False])
def test_what_has_just_been_opened_is_asked_for_once(
    growing: Growing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fresh: bool
) -> None:
    now = time.monotonic()
    with served(growing.folder) as web:
        monkeypatch.setattr(time, "monotonic", lambda: now)  # however long it takes here
        loader = growing.loader(shards=web.url, cache_dir=tmp_path / "cache")
        now += 0.5 if is_fresh else 1.5
        assert len(played(loader)) == 23
        assert (web.asked.count("/index.json") == 1) is is_fresh


@pytest.mark.parametrize("workers", [0, 2])
def test_under_a_foreign_loader_set_epoch_looks(growing: Growing, workers: int) -> None:
    dataset = growing.dataset(batch_size=4)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=4, num_workers=workers)
    for generation in (1, 2, 3):
        growing.grow_to(generation)
        dataset.set_epoch(generation)
        assert sorted(played(iter(loader))) == list(range(SIZES[generation - 1]))


def test_virtual_epochs_stay_with_the_data_set_that_was_opened(growing: Growing) -> None:
    loader = growing.loader(samples_per_epoch=46)
    assert Counter(played(loader)) == Counter([*range(23)] * 2)
    growing.grow_to(2)
    assert Counter(played(loader)) == Counter([*range(23)] * 2)
    with pytest.raises(ArgumentError, match="need a data set that stays as it is"):
        growing.dataset(samples_per_epoch=46, follow=True)


# What another rank has found


def told(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(growth, "first_value", lambda *_: Told(0, 1, value))


def test_a_rank_plays_the_generation_of_the_first_one_though_it_finds_more(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(monkeypatch, " ".join(growth._generations(wdsdist.open(growing.folder))))
    growing.grow_to(3)
    dataset = growing.dataset(num_replicas=2, rank=1)
    assert dataset.at_epoch(0).num_samples == dataset.num_samples == 23


def test_a_rank_waits_until_it_can_read_what_the_first_one_has_read(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = growing.dataset(num_replicas=2, rank=1)
    growing.grow_to(2)
    told(monkeypatch, " ".join(growth._generations(wdsdist.open(growing.folder))))
    growing.grow_to(1)
    monkeypatch.setattr(time, "sleep", lambda _: growing.grow_to(2))
    assert dataset.at_epoch(0).num_samples == 36


def test_a_rank_that_has_other_shards_says_so_at_once(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, "7:0123456789abcdef")
    with pytest.raises(StateError, match=r"rank 1 reads another .* than rank 0 \(5 shards, not 7\)"):
        growing.dataset(num_replicas=2, rank=1).set_epoch(0)
