"""`StreamingDataLoader.prefetch`: shards are fetched before the first batch is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import wdsdist
from tests.support.loaders import keys
from tests.support.memory_store import Fault, MemoryStore
from tests.support.tars import write_shards
from wdsdist.errors import ArgumentError, NotFoundError

SHARDS, SAMPLES = 8, 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder, SHARDS, SAMPLES)
    wdsdist.index(folder)
    return folder


@pytest.fixture
def store(folder: Path) -> Iterator[MemoryStore]:
    with MemoryStore({f"train/{path.name}": path.read_bytes() for path in folder.iterdir()}) as store:
        yield store


@pytest.fixture
def dataset(store: MemoryStore, tmp_path: Path) -> wdsdist.StreamingDataset:
    return wdsdist.StreamingDataset(f"{store.url}/train", cache_dir=tmp_path / "cache", num_replicas=1, rank=0)


def loader_of(dataset: wdsdist.StreamingDataset, **more: Any) -> wdsdist.StreamingDataLoader:
    return wdsdist.StreamingDataLoader(dataset, **{"batch_size": 5, "num_workers": 0, **more})


def fetched(store: MemoryStore) -> list[str]:
    return [path.removeprefix("train/") for path in store.paths("read") if path.endswith(".tar")]


def elsewhere(dataset: wdsdist.StreamingDataset, store: MemoryStore) -> wdsdist.StreamingDataset:
    """Return the same data set with an empty cache."""
    cache_dir = f"{dataset.cache.folder}-elsewhere"
    return wdsdist.StreamingDataset(f"{store.url}/train", cache_dir=cache_dir, num_replicas=1, rank=0)


def ended() -> None:
    """Wait until the threads that prefetch have ended."""
    for thread in threading.enumerate():
        if thread.name.startswith("wdsdist-prefetch"):
            thread.join(10)


def test_shards_are_fetched_while_nothing_is_asked_for_and_once(
    dataset: wdsdist.StreamingDataset, store: MemoryStore
) -> None:
    stall = Fault("train/*.tar", "stall")
    store.plant(stall)
    loader = loader_of(dataset)
    loader.prefetch()  # does not wait
    assert stall.reached.wait(10)
    stall.release()
    assert len(set(keys(loader))) == SHARDS * SAMPLES
    ended()
    assert set(fetched(store)) == {f"{number:02}.tar" for number in range(SHARDS)}
    reads = [request for request in store.requests if request.verb == "read" and request.path.endswith(".tar")]
    sizes = sum(len(content) for path, content in store.files.items() if path.endswith(".tar"))
    assert sum((one.stop or len(store.files[one.path])) - (one.start or 0) for one in reads) <= 1.25 * sizes


def test_what_a_loaded_state_needs_comes_first(dataset: wdsdist.StreamingDataset, store: MemoryStore) -> None:
    loader = loader_of(dataset)
    batches = iter(loader)
    taken = [next(batches) for _ in range(12)]
    state = loader.state_dict()
    del batches
    ended()
    before = len(fetched(store))
    resumed = loader_of(elsewhere(dataset, store))
    resumed.load_state_dict(state)
    resumed.prefetch()
    rest = keys(resumed)
    ended()
    assert sorted(rest + [key for batch in taken for key in batch["__key__"]]) == sorted(keys(loader_of(dataset)))
    needed = {key.split("-")[0].replace("shard", "0") + ".tar" for key in rest}
    assert set(fetched(store)[before:]) == needed


def test_a_shard_that_cannot_be_fetched_is_an_error_of_the_iteration(
    dataset: wdsdist.StreamingDataset, store: MemoryStore
) -> None:
    gone = Fault("train/*.tar", "not-found")
    store.plant(gone)
    loader = loader_of(dataset)
    loader.prefetch()
    assert gone.reached.wait(10)
    with pytest.raises(NotFoundError):
        next(iter(loader))


def test_a_limit_is_compared_with_the_parts_of_shards_that_fields_take(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    samples = ({"bin": bytes(60_000), "cls": number % 7} for number in range(120))
    size = int(wdsdist.pack(samples, folder, shard_samples=20).sizes[0])
    with MemoryStore({path.name: path.read_bytes() for path in folder.iterdir()}) as store:

        def labels(**more: Any) -> list[int]:
            dataset = wdsdist.StreamingDataset(
                store.url, decode=True, cache_dir=tmp_path / "cache", cache_limit=size, shuffle_window=40, **more
            )
            batches = wdsdist.StreamingDataLoader(dataset, 8, num_workers=0)
            return sorted(torch.cat([batch["cls"] for batch in batches]).tolist())

        with pytest.raises(ArgumentError, match=r"one rank needs [4-9],\d+,\d+ at once"):
            labels()
        assert labels(fields=("cls",)) == sorted(number % 7 for number in range(120))
        mixed = wdsdist.mix(
            {store.url: 1}, fields=("cls",), cache_dir=tmp_path / "mixed", cache_limit=size, shuffle_window=40
        )
        assert len(list(wdsdist.StreamingDataLoader(mixed, 8, num_workers=0))) == 15
