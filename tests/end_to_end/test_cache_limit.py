"""Loaders whose node holds less than the data: HTTP, real workers, a cache of a few shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support.ranks import Ranks
from tests.support.stores import COPY, NAMES, SAMPLES, SHARDS, Store, expected, used, watched
from wdsdist import StreamingDataLoader, StreamingDataset

# Real ranks against deadlines of seconds: beside other tests on two cores they would be measured, not tested.
pytestmark = pytest.mark.slow


def loader(shards: Any, *, batch_size: int = 4, workers: int = 4, **options: Any) -> StreamingDataLoader:
    return StreamingDataLoader(StreamingDataset(shards, **options), batch_size, num_workers=workers, drop_last=False)


def read(batches: Any) -> list[tuple[list[str], list[bytes]]]:
    return [(batch["__key__"], [bytes(part) for part in batch["bin"]]) for batch in batches]


@pytest.mark.parametrize("workers", [0, 4])
def test_three_shards_of_thirty_are_room_enough(web: Store, stored: Path, tmp_path: Path, workers: int) -> None:
    cache, limit = tmp_path / "cache", 3 * COPY
    options = {"cache_dir": cache, "cache_limit": limit, "download_timeout": 500, "shuffle_window": SAMPLES}
    mine = loader(web.url, workers=workers, **options)
    with watched(lambda: used(cache)) as use:
        found = read(mine)
    assert found == read(loader(stored, workers=0, shuffle_window=SAMPLES))
    assert len(use) > 20
    assert max(use) <= limit
    times = web.downloads()
    assert set(times) == set(NAMES)
    # Workers of one rank are at different batches, how far apart the machine decides; with this little room one may
    # fetch what drives out another's. Where they did so all the time, each shard would be fetched by each of them.
    assert times.total() <= SHARDS * (2 if workers else 1)


def test_two_ranks_share_a_limited_cache(web: Store, stored: Path, tmp_path: Path) -> None:
    cache, limit = tmp_path / "cache", 12 * COPY
    with watched(lambda: used(cache)) as use, Ranks(web, cache, cache_limit=limit, download_timeout=500) as ranks:
        outcomes = ranks.all()
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert [outcome.batches for outcome in outcomes] == [expected(stored, rank, 2) for rank in range(2)]
    assert max(use) <= limit
    assert web.downloads().total() <= 1.5 * SHARDS  # the lanes may share two; the rest as above


def mixed(folder: str | Path, **options: Any) -> wdsdist.StreamingDataset:
    """The same shards twice, with copies in common, as two data sets of different weights."""
    return wdsdist.mix({"large": (folder, 3), "small": (f"{folder}/index.json", 1)}, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mix_is_read_in_windows_that_fit(web: Store, stored: Path, tmp_path: Path, workers: int) -> None:
    cache, limit = tmp_path / "cache", 8 * COPY
    options = {"cache_dir": cache, "cache_limit": limit, "download_timeout": 500, "shuffle_window": SAMPLES}
    dataset = mixed(web.url, **options)
    mine = StreamingDataLoader(dataset, 8, num_workers=workers)
    with watched(lambda: used(cache)) as use:
        found = read(mine)
    local = StreamingDataLoader(mixed(stored, shuffle_window=SAMPLES), 8, num_workers=0)
    assert found == read(local)
    assert max(use) <= limit
    assert web.downloads().total() <= 3 * SHARDS  # one and a half epochs of the large one, half of the other


def test_a_run_resumes_with_another_limit_in_the_window_of_its_state(web: Store, tmp_path: Path) -> None:
    first = loader(web.url, workers=0, cache_dir=tmp_path / "a", cache_limit=4 * COPY, shuffle_window=SAMPLES)
    batches = iter(first)
    read(next(batches) for _ in range(7))
    state = first.state_dict()
    rest = read(batches)
    for limit in (f"{3 * COPY}B", "1GB", None):
        second = loader(web.url, workers=0, cache_dir=tmp_path / "b", cache_limit=limit)
        second.load_state_dict(state)
        assert second.state_dict() == state
        assert read(second) == rest


def test_batches_and_samples_that_are_kept_hold_no_room(web: Store, stored: Path, tmp_path: Path) -> None:
    options = {"cache_dir": tmp_path, "cache_limit": 3 * COPY, "download_timeout": 500, "shuffle_window": SAMPLES}
    mine = loader(web.url, workers=0, **options)
    kept = list(mine)
    local = loader(stored, workers=0, shuffle_window=mine.state_dict()["shuffle_window"])
    assert read(kept) == read(local)
    dataset = StreamingDataset(web.url, **options)
    samples = [dataset[number] for number in range(0, SHARDS * SAMPLES, SAMPLES)]
    assert [sample["__key__"] for sample in samples] == [f"{number:05}" for number in range(0, 1200, SAMPLES)]
