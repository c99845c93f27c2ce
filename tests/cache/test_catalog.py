"""The catalog: room, eviction by next use, readers that die."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tests.cache.conftest import running
from wdsdist.cache import chunk_file
from wdsdist.cache.catalog import Catalog
from wdsdist.cache.chunk_cache import ChunkCache
from wdsdist.cache.folder import CATALOG
from wdsdist.cache.locks import LockableFile
from wdsdist.errors import CacheError
from wdsdist.shards.source import CacheOptions

Make = Callable[..., Catalog]


@pytest.fixture
def evicted() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, evicted: list[str]) -> Make:
    def evict(key: str) -> bool:
        if "pinned" in key:
            return False
        evicted.append(key)
        return True

    return lambda limit=1000: Catalog(tmp_path / "cache", limit, evict)


def add(catalog: Catalog, key: str, size: int, source: str = "") -> bool:
    return catalog.reserve(key, size, most=size, source=source)


def keys(catalog: Catalog) -> set[str]:
    return {copy.key for copy in catalog.copies()}


def test_copies_go_by_their_last_use_if_no_process_needs_them(make: Make, evicted: list[str]) -> None:
    catalog = make()
    for number in range(3):
        assert add(catalog, f"f/{number}", 300, "s3://a")
    catalog.use(["f/0"])
    assert add(catalog, "f/3", 300, "s3://a")
    assert evicted == ["f/1"]
    assert keys(make(None)) == {"f/0", "f/2", "f/3"}


def test_copies_go_by_their_next_use_and_a_nearer_one_stays(make: Make, evicted: list[str]) -> None:
    catalog = make()
    catalog.expect("job", 10, {"f/near": 11, "f/far": 30, "f/next": 20, "f/later": 40})
    for name in ("near", "far", "unneeded"):
        assert add(catalog, f"f/{name}", 300, "s3://a")
    assert add(catalog, "f/next", 600, "s3://a")
    assert evicted == ["f/unneeded", "f/far"]
    assert not add(catalog, "f/later", 300, "s3://a")
    assert add(catalog, "f/now", 900, "s3://a")  # a batch waits for it
    assert evicted == ["f/unneeded", "f/far", "f/next", "f/near"]


def test_jobs_are_compared_by_how_far_each_is_from_what_it_needs(make: Make, evicted: list[str]) -> None:
    mine, other = make(), make()
    mine.expect("early", 0, {"f/a": 30})
    other.expect("late", 1000, {"f/b": 1010})
    for name in ("a", "b"):
        assert add(mine, f"f/{name}", 500)
    assert add(mine, "f/c", 500)
    assert evicted == ["f/a"]


def test_the_reader_of_a_job_that_is_furthest_behind_counts(make: Make) -> None:
    ahead, behind = make(), make()
    ahead.expect("job", 50, {"f/a": 60})
    add(ahead, "f/a", 10)
    assert ahead.copies()[0].next_use == 10
    behind.expect("job", 20, {"f/z": 20})
    assert ahead.copies()[0].next_use == 40
    behind.expect("job", 20, {})
    assert ahead.copies()[0].next_use == 10


def test_an_epoch_that_ends_withdraws_its_own_list_only(make: Make) -> None:
    catalog = make()
    add(catalog, "f/a", 10)
    catalog.expect("first", 5, {"f/a": 5})
    catalog.expect("second", 0, {"f/a": 3})
    catalog.expect("first", 9, {})
    assert catalog.copies()[0].next_use == 3
    catalog.expect("second", 9, {})
    assert catalog.copies()[0].next_use is None


def test_a_limit_is_kept_by_growing_copies_too(make: Make, evicted: list[str]) -> None:
    catalog = make()
    assert add(catalog, "f/a", 400)
    assert add(catalog, "f/b", 100)
    assert catalog.reserve("f/b", 400, most=2000)
    assert not evicted
    assert catalog.reserve("f/b", 101, most=2000)
    assert evicted == ["f/a"]
    assert catalog.reserve("f/b", 900, most=800)  # no more than it can take
    assert [(copy.key, copy.bytes) for copy in catalog.copies()] == [("f/b", 800)]
    assert not catalog.reserve("f/b", 400, most=2000)
    assert not add(catalog, "f/c", 1001)
    assert keys(catalog) == {"f/b"}


def test_what_is_pinned_stays(make: Make, evicted: list[str]) -> None:
    catalog = make()
    assert add(catalog, "f/pinned", 600)
    assert add(catalog, "f/a", 300)
    assert not add(catalog, "f/b", 600)
    assert add(catalog, "f/b", 400)
    assert evicted == ["f/a"]


def test_a_copy_that_is_made_again_while_it_is_evicted_stays_in_the_catalog(make: Make, tmp_path: Path) -> None:
    other = make(None)

    def evict(key: str) -> bool:
        return add(other, key, 50)

    catalog = Catalog(tmp_path / "cache", 1000, evict)
    assert add(catalog, "f/a", 600)
    assert add(catalog, "f/b", 600)
    assert keys(catalog) == {"f/a", "f/b"}


def test_without_a_limit_nothing_is_evicted_and_copies_are_known_to_others(make: Make, evicted: list[str]) -> None:
    assert add(make(None), "f/a", 10**9)
    assert not evicted
    assert add(make(), "f/b", 10)
    assert evicted == ["f/a"]


def test_the_dead_need_nothing(make: Make, tmp_path: Path) -> None:
    catalog = make()
    add(catalog, "f/a", 10)
    catalog.expect("job", 0, {"f/z": 3})
    other = make()
    with running(lambda done: (other.expect("job", 0, {"f/a": 7}), done())):
        assert catalog.copies()[0].next_use == 7
    assert catalog.copies()[0].next_use is None
    with sqlite3.connect(tmp_path / "cache" / CATALOG) as database:
        assert database.execute("SELECT COUNT(*) FROM readers").fetchone() == (1,)
        assert database.execute("SELECT DISTINCT key FROM needs").fetchall() == [("f/z",)]


def test_a_fork_joins_on_its_own_and_leaves_its_parent_alone(tmp_path: Path) -> None:
    cache = ChunkCache(CacheOptions(tmp_path / "cache"))
    add(cache.catalog, "f/a", 10)
    cache.catalog.expect("job", 0, {"f/a": 1})
    with running(lambda done: (cache.catalog.expect("other", 0, {"f/a": 5}), add(cache.catalog, "f/b", 20), done())):
        pass
    assert [(copy.key, copy.next_use) for copy in cache.catalog.copies()] == [("f/b", None), ("f/a", 1)]


def test_a_fork_waits_for_the_transactions_of_other_threads(tmp_path: Path) -> None:
    cache = ChunkCache(CacheOptions(tmp_path / "cache"))
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            cache.catalog.copies()

    add(cache.catalog, "f/a", 10)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            with running(lambda done: (add(cache.catalog, "f/b", 20), done())):
                pass
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("fault", ["deleted", "folder", "damaged", "garbage"])
def test_a_catalog_that_is_lost_is_made_from_what_is_there(make: Make, tmp_path: Path, fault: str) -> None:
    catalog = make(10**9)
    add(catalog, "0123/x-12345678.tar", 10, "s3://a")
    path = tmp_path / "cache" / "0123" / "x-12345678.tar"
    path.parent.mkdir()
    with LockableFile(path, writable=True, create=True) as file:
        chunk_file.initialise(file, 5000, source="s3://a")
    if fault == "folder":
        shutil.rmtree(tmp_path / "cache")
    elif fault == "deleted":
        (tmp_path / "cache" / CATALOG).unlink()
    else:
        content = b"no database" * 1000 if fault == "garbage" else b"SQLite format 3\0" + b"\xff" * 5000
        for file in (tmp_path / "cache").glob(f"{CATALOG}*"):
            file.unlink()
        (tmp_path / "cache" / CATALOG).write_bytes(content)
    if fault in ("damaged", "garbage"):
        with pytest.raises(CacheError, match="run the program again"):
            add(catalog, "f/b", 10)
    found = {copy.key: (copy.bytes, copy.source) for copy in catalog.copies()}
    kept = {"0123/x-12345678.tar": (chunk_file.room_of(5000, 0), "s3://a")}
    assert found == ({} if fault == "folder" else kept)


@pytest.mark.slow
def test_processes_may_begin_a_catalog_at_once(tmp_path: Path) -> None:
    def begin(root: Path, barrier: Barrier) -> None:
        barrier.wait(60)
        Catalog(root, None, lambda _: True).copies()

    fork = multiprocessing.get_context("fork")
    for number in range(20):
        barrier = fork.Barrier(6)
        processes = [fork.Process(target=begin, args=(tmp_path / str(number), barrier)) for _ in range(6)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * 6


@pytest.mark.slow
def test_processes_that_are_killed_leave_the_catalog_right(tmp_path: Path) -> None:
    """64 processes read, reserve and evict; half of them are killed. No step takes long, and sums stay right."""
    folder, limit = tmp_path / "cache", 20_000
    slow = tmp_path / "slow"

    def work() -> None:
        rng = random.Random(os.getpid())
        catalog = Catalog(folder, limit, lambda key: rng.random() < 0.9)
        at = rng.randrange(200)
        while True:
            began, cpu = time.perf_counter(), time.thread_time()
            if rng.random() < 0.5:
                catalog.expect("job", at, {f"f/{(at + ahead) % 400}": at + ahead for ahead in range(50)})
                at += 2
            else:
                add(catalog, f"f/{rng.randrange(400)}", 100, "s3://a")
            if time.thread_time() - cpu > 0.1:  # many times what `bench_cache` shows, on a machine that is busy
                with slow.open("a") as file:
                    file.write(f"{time.perf_counter() - began:.3f} {time.thread_time() - cpu:.3f}\n")
            time.sleep(rng.expovariate(5))

    def start() -> int:
        child = os.fork()
        if not child:
            try:
                work()
            finally:
                os._exit(1)
        return child

    children = [start() for _ in range(64)]

    def kill(child: int) -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    for _ in range(32):
        time.sleep(0.1)  # the moment of a kill must be any
        kill(children.pop(random.randrange(len(children))))
        children.append(start())
    assert all(os.waitpid(child, os.WNOHANG) == (0, 0) for child in children)  # none has ended by an error
    for child in children:
        kill(child)
    catalog = Catalog(folder, limit, lambda key: True)
    assert 0 < sum(copy.bytes for copy in catalog.copies()) <= limit
    assert all(copy.next_use is None for copy in catalog.copies())
    with sqlite3.connect(folder / CATALOG) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT COUNT(*) FROM needs").fetchone() == (0,)
    assert {path.name for path in folder.iterdir()} <= {CATALOG, f"{CATALOG}-wal", f"{CATALOG}-shm", ".locks"}
    assert not slow.exists(), slow.read_text()
