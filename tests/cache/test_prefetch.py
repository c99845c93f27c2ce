"""Prefetch: which shards its threads fetch, when, and how many of them at once."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from wdsdist.cache import ShardCache
from wdsdist.cache.prefetch import Prefetch
from wdsdist.sampling.shard_schedule import Use
from wdsdist.shards.manifest import Manifest


class Fetches(ShardCache):
    """A cache that notes the shards that are fetched ahead, and has each when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.let_go = threading.Semaphore(0)

    def expect(self, *_: Any) -> None: ...

    def fetch_ahead(self, _: Manifest, number: int, *_more: Any) -> None:
        self.begun.put(number)
        assert self.let_go.acquire(timeout=60)


@pytest.fixture
def prefetching(remote: Manifest) -> Iterator[Callable[..., tuple[Prefetch, Fetches]]]:
    """Make a prefetch of shards 2, 0 and 1, of which the first is needed at once."""
    made: list[tuple[Prefetch, Fetches]] = []

    def make(**more: Any) -> tuple[Prefetch, Fetches]:
        cache, uses = Fetches(), [Use(0, 3, 2), Use(2, 3, 0), Use(3, 5, 1)]
        made.append((Prefetch(cache, remote, iter(uses), room=10**9, **more), cache))
        return made[-1]

    yield make
    for prefetch, cache in made:
        prefetch.close()
        cache.let_go.release(10)


@pytest.mark.parametrize(
    "ask",
    [
        lambda cache, remote: cache.pin_parts(remote, {}, batch=(0,)),
        lambda cache, remote: cache.pin(remote, 0, batch=(0,)).close(),
        lambda cache, _: cache.rest(),
    ],
    ids=["parts", "whole", "held"],
)
def test_prefetch_begins_once_the_first_batch_has_its_shards_or_parts_or_waits_for_whole_shards(
    prefetching: Callable[..., tuple[Prefetch, Fetches]],
    remote: Manifest,
    ask: Callable[[ShardCache, Manifest], object],
) -> None:
    prefetch, cache = prefetching()
    prefetch.reach(0)
    cache.let_go.release(3)
    assert cache.begun.empty()
    ask(cache, remote)
    assert {cache.begun.get(timeout=60) for _ in range(3)} == {0, 1, 2}


def test_a_first_batch_that_finds_all_in_the_cache_leaves_its_shards_to_the_next_one(
    prefetching: Callable[..., tuple[Prefetch, Fetches]],
) -> None:
    prefetch, cache = prefetching()
    prefetch.reach(0)
    cache.let_go.release(3)
    prefetch.reach(1)
    assert {cache.begun.get(timeout=60) for _ in range(3)} == {0, 1, 2}


def test_many_workers_of_a_rank_fetch_one_shard_each_at_a_time(
    prefetching: Callable[..., tuple[Prefetch, Fetches]],
) -> None:
    prefetch, cache = prefetching(num_workers=10**6)
    prefetch.reach(0)
    prefetch.begin()
    for shard in (2, 0, 1):  # the first may be one that was begun before all of them were known
        assert cache.begun.get(timeout=60) in (shard, 0, 2)
        assert cache.begun.empty()
        cache.let_go.release()


def test_a_lone_worker_fetches_the_next_shard_while_a_large_one_stalls_or_is_verified(remote: Manifest) -> None:
    cache = Fetches()
    large = dataclasses.replace(remote, sizes=np.full(len(remote.counts), 1 << 30, np.int64))
    prefetch = Prefetch(cache, large, iter([Use(1, 3, 2), Use(2, 3, 0), Use(3, 5, 1)]), room=1 << 33)
    prefetch.reach(0)
    prefetch.begin()
    try:
        assert {cache.begun.get(timeout=10) for _ in range(2)} == {2, 0}
        assert cache.begun.empty()
    finally:
        prefetch.close()
        cache.let_go.release(10)
