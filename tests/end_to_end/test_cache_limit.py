"""Loaders whose node holds less than the data: HTTP, real workers, a cache of a few shards."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support import forked, web
from tests.support.programs import command
from tests.support.stores import COPY, SAMPLES, SHARD, SHARDS, used, watched
from wdsdist import StreamingDataLoader, StreamingDataset

# Real ranks against deadlines of seconds: beside other tests on two cores they would be measured, not tested.
pytestmark = pytest.mark.slow


@pytest.fixture
def store(stored: Path) -> Iterator[web.Web]:
    with web.served(stored) as served:
        yield served


def loader(shards: Any, *, batch_size: int = 4, workers: int = 4, **options: Any) -> StreamingDataLoader:
    return StreamingDataLoader(StreamingDataset(shards, **options), batch_size, num_workers=workers, drop_last=False)


def read(batches: Any) -> list[tuple[list[str], list[bytes]]]:
    return [(batch["__key__"], [bytes(part) for part in batch["bin"]]) for batch in batches]


def fetched(store: web.Web) -> Counter[str]:
    """Return how often each shard was sent, in whole."""
    counts = Counter()
    for name, sent in store.bytes_of.items():
        if name.endswith(".tar"):
            counts[name] = round(sent / SHARD)
    return counts


@pytest.mark.parametrize("workers", [0, 4])
def test_three_shards_of_thirty_are_room_enough(store: web.Web, stored: Path, tmp_path: Path, workers: int) -> None:
    cache, limit = tmp_path / "cache", 3 * COPY
    options = {"cache_dir": cache, "cache_limit": limit, "download_timeout": 500, "shuffle_window": SAMPLES}
    mine = loader(store.url, workers=workers, **options)
    with watched(lambda: used(cache)) as use:
        found = read(mine)
    assert found == read(loader(stored, workers=0, shuffle_window=SAMPLES))
    assert len(use) > 20
    assert max(use) <= limit
    times = fetched(store)
    assert set(times) == {f"{shard:03}.tar" for shard in range(SHARDS)}
    # Workers of one rank are at different batches, how far apart the machine decides; with this little room one may
    # fetch what drives out another's. Where they did so all the time, each shard would be fetched by each of them.
    assert sum(times.values()) <= SHARDS * (2 if workers else 1)


def read_by_ranks(store: web.Web, folder: Path, world: int, limit: int, batch_size: int) -> list[Any]:
    ranks = [{**os.environ, "ONE_RANK": str(rank)} for rank in range(world)]
    program = command("one_rank", store.url, folder / "cache", folder, limit, batch_size, world)
    done = forked.together(program[1:], ranks)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def read_locally(stored: Path, world: int, batch_size: int) -> list[Any]:
    ranks = [StreamingDataset(stored, num_replicas=world, rank=rank, shuffle_window=80) for rank in range(world)]
    loaders = [StreamingDataLoader(rank, batch_size, num_workers=0) for rank in ranks]
    return [[key for batch in one for key in batch["__key__"]] for one in loaders]


def test_two_ranks_share_a_limited_cache(store: web.Web, stored: Path, tmp_path: Path) -> None:
    cache, limit = tmp_path / "cache", 12 * COPY
    with watched(lambda: used(cache)) as use:
        found = read_by_ranks(store, tmp_path, 2, limit, batch_size=4)
    assert found == read_locally(stored, 2, batch_size=4)
    assert max(use) <= limit
    assert sum(fetched(store).values()) <= 1.5 * SHARDS  # the lanes may share two; the rest as above


def mixed(folder: str | Path, **options: Any) -> wdsdist.StreamingDataset:
    """The same shards twice, with copies in common, as two data sets of different weights."""
    return wdsdist.mix({"large": (folder, 3), "small": (f"{folder}/index.json", 1)}, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mix_is_read_in_windows_that_fit(store: web.Web, stored: Path, tmp_path: Path, workers: int) -> None:
    cache, limit = tmp_path / "cache", 8 * COPY
    options = {"cache_dir": cache, "cache_limit": limit, "download_timeout": 500, "shuffle_window": SAMPLES}
    dataset = mixed(store.url, **options)
    mine = StreamingDataLoader(dataset, 8, num_workers=workers)
    with watched(lambda: used(cache)) as use:
        found = read(mine)
    local = StreamingDataLoader(mixed(stored, shuffle_window=SAMPLES), 8, num_workers=0)
    assert found == read(local)
    assert max(use) <= limit
    assert sum(fetched(store).values()) <= 3 * SHARDS  # one and a half epochs of the large one, half of the other


def test_a_run_resumes_with_another_limit_in_the_window_of_its_state(store: web.Web, tmp_path: Path) -> None:
    first = loader(store.url, workers=0, cache_dir=tmp_path / "a", cache_limit=4 * COPY, shuffle_window=SAMPLES)
    batches = iter(first)
    read(next(batches) for _ in range(7))
    state = first.state_dict()
    rest = read(batches)
    for limit in (f"{3 * COPY}B", "1GB", None):
        second = loader(store.url, workers=0, cache_dir=tmp_path / "b", cache_limit=limit)
        second.load_state_dict(state)
        assert second.state_dict() == state
        assert read(second) == rest


def test_batches_and_samples_that_are_kept_hold_no_room(store: web.Web, stored: Path, tmp_path: Path) -> None:
    options = {"cache_dir": tmp_path, "cache_limit": 3 * COPY, "download_timeout": 500, "shuffle_window": SAMPLES}
    mine = loader(store.url, workers=0, **options)
    kept = list(mine)
    local = loader(stored, workers=0, shuffle_window=mine.state_dict()["shuffle_window"])
    assert read(kept) == read(local)
    dataset = StreamingDataset(store.url, **options)
    samples = [dataset[number] for number in range(0, SHARDS * SAMPLES, SAMPLES)]
    assert [sample["__key__"] for sample in samples] == [f"{number:05}" for number in range(0, 1200, SAMPLES)]
