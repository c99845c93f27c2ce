"""Prefetch: its queue, when it begins, and what it leaves to others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from tests.cache.conftest import SHARDS
from tests.support.sources import Shards
from tests.support.web import Web
from wdsdist.cache.cached_shards import CachedShards
from wdsdist.cache.chunk_file import OpenCopy
from wdsdist.cache.prefetch import Prefetch
from wdsdist.sampling.shard_schedule import Use
from wdsdist.shards.manifest import Manifest

USES = [Use(0, 9, 2), Use(10, 19, 0), Use(20, 29, 1), Use(30, 39, 3)]


@pytest.fixture
def shards(remote: Manifest, tmp_path: Path) -> Shards:
    return Shards(remote, tmp_path / "cache")


@pytest.fixture
def prefetch(shards: Shards) -> Iterator[Prefetch]:
    assert isinstance(shards.source, CachedShards)
    made = Prefetch(shards.source, iter(USES), room=10**9)
    yield made
    made.close()


def ended() -> None:
    """Wait for the threads of prefetch."""
    for thread in threading.enumerate():
        if thread.name.startswith("wdsdist-prefetch"):
            thread.join()


def is_there(shards: Shards, number: int) -> bool:
    copy = shards.cache._existing(shards.source.shard(number))  # type: ignore[attr-defined]
    return copy is not None and bool(copy.map.all())


def test_all_shards_come_once_the_first_batch_has_its_chunks(shards: Shards, prefetch: Prefetch, web: Web) -> None:
    asked = len(web.asked)
    prefetch.reach(0)
    assert len(web.asked) == asked
    needed = {2: lambda index: np.array([3])}
    shards.source.open(needed)
    while not all(is_there(shards, number) for number in range(SHARDS)):
        pass
    assert sum(web.bytes_of[f"{number:02}.tar"] for number in range(SHARDS)) <= 1.1 * sum(
        path.stat().st_size for path in web.folder.glob("*.tar")
    )


def test_a_first_batch_that_fails_lets_prefetch_begin(shards: Shards, prefetch: Prefetch) -> None:
    prefetch.reach(0)

    def fail(index: object) -> np.ndarray:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shards.source.open({2: fail})
    while not is_there(shards, 3):
        pass


def test_prefetch_that_is_closed_before_it_begins_fetches_nothing(shards: Shards, prefetch: Prefetch, web: Web) -> None:
    prefetch.reach(0)
    prefetch.close()
    ended()
    assert not any(web.bytes_of[f"{number:02}.tar"] for number in range(SHARDS))


def test_needs_are_published_and_withdrawn(shards: Shards, prefetch: Prefetch) -> None:
    prefetch.reach(0)
    prefetch.begin()
    while not all(is_there(shards, number) for number in range(SHARDS)):
        pass
    found = {copy.key: copy.next_use for copy in shards.cache.catalog.copies()}
    assert found == {shards.key(2): 0, shards.key(0): 10, shards.key(1): 20, shards.key(3): 30}
    prefetch.reach(15)
    found = {copy.key: copy.next_use for copy in shards.cache.catalog.copies()}
    assert found == {shards.key(2): None, shards.key(0): 0, shards.key(1): 5, shards.key(3): 15}
    prefetch.close()
    assert all(copy.next_use is None for copy in shards.cache.catalog.copies())


def test_threads_fetch_the_nearest_shard_and_wait_for_the_next_batch_without_room(
    shards: Shards, prefetch: Prefetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, has_room = SimpleQueue[str](), threading.Event()

    def fetch_ahead(copy: OpenCopy, needs: object, goes_on: object) -> bool:
        asked.put(copy.shard.key)
        return has_room.is_set()

    monkeypatch.setattr(shards.cache, "fetch_ahead", fetch_ahead)
    prefetch.reach(0)
    prefetch.begin()
    before = [asked.get()]
    while not asked.empty():
        before.append(asked.get())
    assert set(before) == {shards.key(2)}
    has_room.set()
    prefetch.reach(1)
    order = list(dict.fromkeys(asked.get() for _ in range(4)))
    while len(order) < SHARDS:
        order = list(dict.fromkeys([*order, asked.get()]))
    assert order == [shards.key(number) for number in (2, 0, 1, 3)]


def test_a_shard_that_is_needed_again_after_its_eviction_is_fetched_again(shards: Shards) -> None:
    assert isinstance(shards.source, CachedShards)
    room = int(1.5 * shards.manifest.read_sizes.max())
    prefetch = Prefetch(shards.source, iter([Use(0, 9, 2), Use(10, 19, 0), Use(20, 29, 2)]), room=room)
    prefetch.reach(0)
    prefetch.begin()
    for batch, number in ((0, 2), (10, 0), (20, 2)):
        prefetch.reach(batch)
        while not is_there(shards, number):
            pass
        while not shards.cache.evict(shards.key(number)):  # until its thread has closed it
            pass
    prefetch.close()
