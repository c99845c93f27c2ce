"""A cache that ranks, jobs and runs share: each shard is downloaded once, and nobody waits for another's training."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.damage import cut, flip, flip_keeping_its_time
from tests.support.ranks import Outcome, Ranks
from tests.support.stores import COPY, NAMES, SHARDS, Store, expected, used

# Real ranks against deadlines of seconds: beside other tests on two cores they would be measured, not tested.
pytestmark = pytest.mark.slow


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
    fetched = sum(outcome.stats.shards_fetched for outcome in outcomes)
    assert sum(web.downloads().values()) <= 1.5 * fetched, "little is downloaded in vain, or by two at once"


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
    lost = Counter(NAMES[7 * number] for number in range(2, len(damage)))
    assert web.downloads() - Counter() == lost  # of the others, only a member that was altered


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
