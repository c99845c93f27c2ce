"""Caches that workers, ranks, jobs and runs share, with room for a part of the data, on full disks, through kills."""

from __future__ import annotations

import contextlib
import json
import multiprocessing.util
import os
import random
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wdsdist
from tests.support.damage import cut, flip, flip_keeping_its_time
from tests.support.mounts import with_mounts
from tests.support.programs import command
from tests.support.ranks import Outcome, Ranks
from tests.support.stores import COPY, NAMES, SAMPLES, SHARDS, WINDOW, Store, expected, strange_copies, used, watched
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


def check_all(outcomes: list[Outcome], stored: Path, *, epoch: int = 0) -> None:
    world = len(outcomes)
    assert [outcome.error for outcome in outcomes] == [None] * world
    assert [one.batches for one in outcomes] == [expected(stored, rank, world, epoch=epoch) for rank in range(world)]


@pytest.mark.parametrize("options", [{}, {"cache_limit": 2 * SHARDS * COPY}, {"order": "sampler"}], ids=str)
def test_each_shard_is_downloaded_once_by_each_node_that_reads_it(
    web: Store, tmp_path: Path, options: dict[str, Any]
) -> None:
    nodes = [tmp_path / "a", tmp_path / "b"]
    read: list[set[str]] = [set(), set()]
    with Ranks(web, *nodes, world_size=4, **options) as ranks:
        for _ in range(2):
            for rank, outcome in enumerate(ranks.all()):
                assert outcome.is_over
                read[rank // 2] |= outcome.shards
            assert web.downloads() == Counter(name for names in read for name in names)


def test_four_ranks_download_each_shard_once_and_in_the_next_epoch_none(
    store: Store, stored: Path, tmp_path: Path
) -> None:
    with Ranks(store, tmp_path / "cache", world_size=4) as ranks:
        check_all(ranks.all(), stored)
        assert store.downloads() == Counter(NAMES)
        store.proxy.forget()
        check_all(ranks.all(), stored, epoch=1)
    assert not store.downloads()


def test_jobs_share_a_cache_from_which_another_evicts(web: Store, stored: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with Ranks(web, cache, world_size=1) as one, Ranks(web, cache, seed=5) as other:
        one.tell("take")
        assert all(outcome.is_over for outcome in other.all())
        check_all(one.outcomes(), stored)
    assert web.downloads() == Counter(NAMES), "what stays is downloaded once"
    for name in NAMES[::3]:
        (copy,) = cache.glob(f"*/{name.removesuffix('.tar')}-*.tar")
        copy.unlink()
    web.proxy.forget()
    limit = 12 * COPY
    with (
        Ranks(web, cache, cache_limit=limit) as evicting,
        Ranks(web, cache, world_size=1, seed=7) as one,
        Ranks(web, cache, seed=5) as other,
    ):
        first = [outcome.batches for outcome in evicting.all("take", 40)]
        assert used(cache) <= limit
        jobs = (evicting, one, other)
        for job in jobs:
            job.tell("take")
        outcomes = [outcome for job in jobs for outcome in job.outcomes()]
    assert all(outcome.is_over for outcome in outcomes)
    for rank, outcome in enumerate(outcomes[:2]):
        assert first[rank] + outcome.batches == expected(stored, rank, 2)
    # The job with the limit reads past the cache while the others hold the copies that it could evict: how often it
    # does, the machine decides.
    made = COPY * sum(outcome.stats.shards_fetched for outcome in outcomes)
    assert sum(outcome.stats.bytes_fetched for outcome in outcomes[2:]) <= made, "a copy is downloaded once"


def empty(path: Path) -> None:
    os.truncate(path, 0)


def test_copies_that_were_altered_between_runs_are_downloaded_again(web: Store, stored: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with Ranks(web, cache) as ranks:
        check_all(ranks.all(), stored)
    damage: list[Callable[[Path], None]] = [flip, flip_keeping_its_time, cut, empty, Path.unlink]
    for number, alter in enumerate(damage):
        (copy,) = cache.glob(f"*/{NAMES[7 * number].removesuffix('.tar')}-*.tar")
        alter(copy)
    web.proxy.forget()
    with Ranks(web, cache) as ranks:
        check_all(ranks.all(), stored)
    assert web.downloads() - Counter() == Counter(NAMES[7 * number] for number in range(len(damage)))


@pytest.mark.parametrize("limit", [None, 12 * COPY])
def test_nobody_waits_for_ranks_that_read_no_more_or_evaluate_alone(
    web: Store, stored: Path, tmp_path: Path, limit: int | None
) -> None:
    with Ranks(web, tmp_path / "cache", cache_limit=limit, download_timeout=500) as ranks:
        ranks.all("take", 3)
        ranks.tell("leave", rank=0)
        ranks.pipes[0].recv()
        ranks.tell("evaluate", rank=0)  # while rank 1 holds on in the middle of its epoch
        assert ranks.outcome(0).batches == expected(stored, 0, 1)
        ranks.tell("take", rank=1)  # while rank 0 reads nothing
        rest = ranks.outcome(1)
        assert rest.batches == expected(stored, 1, 2)[3:]
        check_all(ranks.all(), stored, epoch=1)


LIMIT = 12 * COPY


def one_worker(ranks: Ranks, chance: random.Random) -> set[int]:
    victim = chance.randrange(2)
    workers = [number for number in ranks.members(victim) if number != ranks.processes[victim].pid]
    for worker in workers[:1]:  # none, where they have not been started yet
        os.kill(worker, signal.SIGKILL)
    return set()


def one_rank(ranks: Ranks, chance: random.Random) -> set[int]:
    victim = chance.randrange(2)
    ranks.processes[victim].kill()
    return {victim}


def all_of_them(ranks: Ranks, _: random.Random) -> set[int]:
    for rank in range(2):
        ranks.kill_group(rank)
    return {0, 1}


KILLS: list[Callable[[Ranks, random.Random], set[int]]] = [one_worker, one_rank, all_of_them]
"""Each returns the ranks that are dead then."""


def shared_memory(ranks: Ranks) -> list[str]:
    """Return the named shared memory that the processes map, which would outlive them."""
    maps = []
    for number in (number for rank in range(2) for number in ranks.members(rank)):
        with contextlib.suppress(OSError):
            maps += Path(f"/proc/{number}/maps").read_text().splitlines()
    return [line for line in maps if "/dev/shm/" in line and not line.endswith("(deleted)")]


def check(rank: int, outcome: Outcome, stored: Path) -> None:
    """Check that a rank got its whole epoch, or an error because it lost a worker."""
    whole = expected(stored, rank, 2)
    assert outcome.batches == (whole if outcome.is_over else whole[: len(outcome.batches)])
    assert outcome.is_over or isinstance(outcome.error, RuntimeError), outcome.error


@pytest.mark.timeout(1200)
def test_whoever_is_killed_a_restart_completes_and_nothing_is_left(
    web: Store, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiprocessing.util.get_temp_dir()  # of this process, which is not a leftover
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    cache, chance = tmp_path / "cache", random.Random(0)
    named: list[str] = []
    with watched(lambda: used(cache)) as use:
        for number in range(len(KILLS)):
            with Ranks(web, cache, cache_limit=LIMIT, download_timeout=500) as ranks:
                ranks.tell("take")
                time.sleep(chance.uniform(0, 1.5))  # at any moment: no event marks it
                named += shared_memory(ranks)
                dead = KILLS[number](ranks, chance)
                for rank in {0, 1} - dead:
                    check(rank, ranks.outcome(rank), stored)
                with Ranks(web, cache, cache_limit=LIMIT, download_timeout=500) as restarted:
                    outcomes = restarted.all()
                assert [outcome.error for outcome in outcomes] == [None, None]
                assert [outcome.batches for outcome in outcomes] == [expected(stored, rank, 2) for rank in range(2)]
    assert max(use) <= LIMIT
    assert named == []
    assert list(temporary.iterdir()) == []
    with Ranks(web, cache, cache_limit=LIMIT, world_size=1, workers=0) as last:
        assert last.all()[0].batches == expected(stored, 0, 1)
    left = {re.sub("-[0-9a-f]{8}", "", path.name) for path in cache.glob("*/*")}
    assert left <= {f"{name}{suffix}" for name in NAMES for suffix in ("", ".wdsindex")}
    assert strange_copies(cache, stored) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_is_an_error_and_the_next_run_goes_on(
    web: Store, stored: Path, tmp_path: Path, workers: int
) -> None:
    program = command("reading_on_a_small_disk", web.url, stored, tmp_path, workers, WINDOW)
    (batches, error, message), strange, limited, roomy = json.loads(with_mounts(program, tmp_path))
    whole = expected(stored, 0, 1)
    assert (batches, error) == (whole[: len(batches)], "CacheError")
    assert len(batches) < len(whole)
    for part in (f"cache has no room for {web.url}/", "No space left on device", "are free on its disk"):
        assert part in message
    assert strange == []
    assert limited == roomy == [whole, "", ""]
