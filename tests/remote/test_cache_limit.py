"""Loaders whose node holds less than the data: HTTP, real workers, a cache of a few shards."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest
import web

import wdsdist
from wdsdist import StreamingDataLoader, StreamingDataset

SHARDS, SAMPLES, SAMPLE_BYTES = 30, 40, 5000
SHARD = SAMPLES * (512 + 5120) + 1024
COPY = SHARD + 12_000
"""What a copy takes with its index and its stamp, about."""


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 30 shards of 40 samples and 226 KB."""
    folder = tmp_path_factory.mktemp("stored")
    contents = np.random.default_rng(0).integers(0, 256, (SHARDS * SAMPLES, SAMPLE_BYTES), np.uint8)
    for shard in range(SHARDS):
        numbers = range(shard * SAMPLES, (shard + 1) * SAMPLES)
        members = [(f"{number:05}.bin", contents[number].tobytes()) for number in numbers]
        (folder / f"{shard:03}.tar").write_bytes(helpers.plain_tar(members))
    wdsdist.index(folder, workers=1)
    return folder


@pytest.fixture
def store(stored: Path) -> Iterator[web.Web]:
    with web.served(stored) as served:
        yield served


def loader(shards: Any, *, batch_size: int = 4, workers: int = 4, **options: Any) -> StreamingDataLoader:
    return StreamingDataLoader(StreamingDataset(shards, **options), batch_size, num_workers=workers, drop_last=False)


def read(batches: Any) -> list[tuple[list[str], list[bytes]]]:
    return [(batch["__key__"], [bytes(part) for part in batch["bin"]]) for batch in batches]


def used(folder: Path) -> int:
    sizes = []
    for path in folder.rglob("*"):
        try:
            sizes.append(path.lstat().st_size if path.is_file() and path.parent.name != "readers" else 0)
        except FileNotFoundError:
            continue
    return sum(sizes)


@contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """Note the use of a folder, over and over, until the block ends."""
    found: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            found.append(used(folder))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def fetched(store: web.Web) -> Counter[str]:
    """Return how often each shard was sent, in whole."""
    counts = Counter()
    for name, sent in store.bytes_of.items():
        if name.endswith(".tar"):
            counts[name] = round(sent / SHARD)
    return counts


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_three_shards_of_thirty_are_room_enough(store: web.Web, stored: Path, tmp_path: Path, workers: int) -> None:
    cache, limit = tmp_path / "cache", 3 * COPY
    mine = loader(store.url, workers=workers, cache_dir=cache, cache_limit=limit, download_timeout=60)
    with watched(cache) as use:
        found = read(mine)
    window = mine.state_dict()["shuffle_window"]
    assert SAMPLES // 2 <= window <= SAMPLES
    assert found == read(loader(stored, workers=0, shuffle_window=window))
    assert max(use) <= limit
    assert len(use) > 20
    assert fetched(store) == {f"{shard:03}.tar": 1 for shard in range(SHARDS)}
