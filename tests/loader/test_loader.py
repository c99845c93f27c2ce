"""The loader: equal batches, exact order and length, epochs, with real workers."""

from __future__ import annotations

import copy
import functools
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL

from tests.support import loaders
from tests.support.examples import fewer
from tests.support.loaders import batches
from wdsdist import StreamingDataLoader, StreamingDataset
from wdsdist.errors import ArgumentError, SampleError, StateError

TOTAL = 103

make_loader = functools.partial(loaders.make_loader, world=2, fields=("cls",))


class TestEveryRank:
    @fewer()
    @given(
        world=st.integers(1, 120),
        batch_size=st.integers(1, 20),
        shuffle=st.booleans(),
        rank_drop_last=st.booleans(),
        drop_last=st.booleans(),
        seed=st.integers(0, 2**40),
        epoch=st.integers(0, 2**20),
        data=st.data(),
    )
    def test_gets_the_batches_of_a_distributed_sampler_when_that_order_is_chosen(
        self, shards: Path, world: int, batch_size: int, shuffle: bool, rank_drop_last: bool, drop_last: bool,
        seed: int, epoch: int, data: st.DataObject,
    ) -> None:  # fmt: skip
        rank = data.draw(st.integers(0, world - 1))
        sampler = DistributedSampler(
            range(TOTAL), world, rank, shuffle=shuffle, seed=seed, drop_last=rank_drop_last  # type: ignore[arg-type]
        )  # fmt: skip
        sampler.set_epoch(epoch)
        numbers: Any = DataLoader(range(TOTAL), batch_size, sampler=sampler, drop_last=drop_last)  # type: ignore[arg-type]
        oracle = [batch.tolist() for batch in numbers]
        dataset = StreamingDataset(
            shards, decode=True, fields=("cls",), num_replicas=world, rank=rank, shuffle=shuffle, seed=seed,
            drop_last=rank_drop_last, order="sampler",
        )  # fmt: skip
        loader = StreamingDataLoader(dataset, batch_size, num_workers=0, drop_last=drop_last)
        loader.set_epoch(epoch)
        if not oracle:
            with pytest.raises(ArgumentError):
                batches(loader)
        else:
            assert batches(loader) == oracle


class TestWorkers:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_that_failed_end_the_iteration_for_good_and_the_next_one_is_whole(self, shards: Path, workers: int) -> None:
        before = set(multiprocessing.active_children())  # which earlier tests may have left
        dataset = StreamingDataset(shards, decode={"cls": fail_on_50}, fields=("cls",))
        loader = StreamingDataLoader(dataset, 8, num_workers=workers)
        iterator = iter(loader)
        with pytest.raises(SampleError):
            list(iterator)
        with pytest.raises(StateError, match="ended with an error"):
            next(iterator)
        with pytest.raises(SampleError):
            list(loader)
        assert set(multiprocessing.active_children()) <= before


def fail_on_50(data: bytes) -> int:
    if data == b"50":
        raise ValueError("fifty")
    return int(data)


STATE: dict[str, Any] = {}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("give_up", [lambda loader: next(iter(loader)), lambda loader: loader.load_state_dict(STATE)])
def test_an_iterator_that_was_given_up_says_so(shards: Path, workers: int, give_up: Any) -> None:
    loader = make_loader(shards, num_workers=workers)
    STATE.update(loader.state_dict())
    old = iter(loader)
    next(old)
    give_up(loader)
    with pytest.raises(StateError, match="given up"):
        next(old)


class TestForFrameworks:
    def test_it_is_a_torch_loader_over_an_iterable_data_set(self, shards: Path) -> None:
        loader = make_loader(shards)
        assert isinstance(loader, DataLoader)
        assert isinstance(loader.dataset, IterableDataset)
        assert isinstance(loader.dataset, StreamingDataset)

    def test_the_default_number_of_workers_is_this_ranks_share_of_the_cores(
        self, shards: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
        for name, value in {"RANK": 1, "WORLD_SIZE": 4, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}.items():
            monkeypatch.setenv(name, str(value))
        assert StreamingDataLoader(StreamingDataset(shards)).num_workers == 3

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_loader_that_is_made_of_its_attributes_is_refused(self, shards: Path, workers: int) -> None:
        loader = make_loader(shards, num_workers=workers)
        copied = DataLoader(
            loader.dataset, loader.batch_size, num_workers=loader.num_workers, collate_fn=loader.collate_fn
        )
        with pytest.raises(StateError, match=r"cannot make its batches.*load a state"):
            next(iter(copied))


def wait_without_end(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["__key__"] != "k0":
        threading.Event().wait()
    return sample


@pytest.mark.parametrize("transform", [None, wait_without_end], ids=["idle", "busy"])
def test_a_loader_that_is_dropped_ends_its_workers_without_the_garbage_collector(shards: Path, transform: Any) -> None:
    loader = make_loader(shards, 1, num_workers=2, world=1, shuffle=False, transform=transform)
    next(iter(loader))
    workers = loader._iterator._workers  # type: ignore[union-attr]
    gc.disable()
    try:
        began = time.monotonic()
        del loader
        for worker in workers:
            worker.join(30)
        took = time.monotonic() - began
    finally:
        gc.enable()
    assert None not in [worker.exitcode for worker in workers]
    assert took < 2 * MP_STATUS_CHECK_INTERVAL, "that long torch waits for two busy workers"


@pytest.mark.slow
def test_a_script_that_ends_with_a_data_set_and_a_loader_in_its_hands_says_nothing(shards: Path) -> None:
    script = "import sys, wdsdist; dataset = wdsdist.StreamingDataset(sys.argv[1]); dataset[0]\n"
    script += "for batch in wdsdist.StreamingDataLoader(dataset, num_workers=0): pass"
    ended = subprocess.run([sys.executable, "-c", script, str(shards)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_its_text_says_what_it_plays(shards: Path) -> None:
    dataset = StreamingDataset(shards)
    loader = StreamingDataLoader(dataset, 4, num_workers=0)
    assert repr(loader) == f"StreamingDataLoader({dataset!r}, batch_size=4, num_workers=0)"


def test_a_loader_without_workers_gives_batches_in_a_worker_of_another(shards: Path) -> None:
    inner = StreamingDataLoader(StreamingDataset(shards), 4, num_workers=0)

    def drawn(sample: dict[str, Any]) -> int:
        return len(next(iter(inner))["__key__"])

    dataset = StreamingDataset(shards, transform=drawn)
    outer = StreamingDataLoader(dataset, 3, num_workers=1, multiprocessing_context="fork")
    assert next(iter(outer)).tolist() == [4, 4, 4]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shallow_copy_is_iterated_beside_its_original(shards: Path, workers: int) -> None:
    loader = make_loader(shards, 8, num_workers=workers)
    pairs = list(zip(loader, copy.copy(loader), strict=True))
    assert [own["cls"].tolist() for own, _ in pairs] == [copied["cls"].tolist() for _, copied in pairs]
    assert len(pairs) == len(loader)
