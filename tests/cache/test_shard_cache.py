"""The cache as one process sees it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import wdsdist
from tests.support import folders
from tests.support.damage import cut, flip, flip_keeping_its_time, open_files_limited
from tests.support.memory_store import Fault, MemoryStore
from wdsdist.cache import Need, ShardCache, cached_path, copy_key, kept
from wdsdist.cache.counters import Counters
from wdsdist.cache.priorities import all_needs
from wdsdist.cache.shard_cache import BUSY
from wdsdist.errors import CacheError, NotFoundError, ShardDamagedError, StorageError
from wdsdist.samples.shard_reader import ShardReader
from wdsdist.shards import index as shardindex
from wdsdist.shards.manifest import Manifest, Shard


@pytest.fixture
def cache(tmp_path: Path) -> ShardCache:
    return ShardCache(tmp_path / "cache")


@pytest.fixture
def limited(tmp_path: Path, room: int) -> Callable[..., ShardCache]:
    """Make a cache with room for some shards."""
    return lambda shards, timeout=60.0: ShardCache(tmp_path / "cache", limit=int(shards * room), timeout=timeout)


@pytest.fixture
def fetched(store: MemoryStore) -> Callable[[], list[str]]:
    """Return the names of the shards that were fetched so far."""
    return lambda: [path.removeprefix("train/") for path in store.paths("read") if path.endswith(".tar")]


@contextlib.contextmanager
def at(fault: Fault, store: MemoryStore, action: Callable[[], object]) -> Iterator[None]:
    """Let a thread do something that a stall holds up, run the block meanwhile, and let it go on."""
    store.plant(fault)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(action)
        try:
            assert fault.reached.wait(10)
            yield
        finally:
            fault.release()
        running.result()


def copy_of(cache: ShardCache, remote: Manifest, number: int) -> Path:
    assert cache.folder is not None
    return cached_path(remote, number, cache.folder)


def test_a_shard_is_fetched_once_and_its_index_loaded_once(
    limited: Callable[..., ShardCache],
    remote: Manifest,
    packed: Path,
    fetched: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    cache = limited(3)
    with cache.pin(remote, 3) as pinned:
        assert all_needs(tmp_path / "cache" / "readers").ranks == {}  # it waits for nothing any more
        assert pinned.path.read_bytes() == (packed / "03.tar").read_bytes()
        assert shardindex.dumps(pinned.index) == (packed / "03.tar.wdsindex").read_bytes()
    loaded = []
    load = shardindex.load
    monkeypatch.setattr(shardindex, "load", lambda path: loaded.append(path) or load(path))
    again = ShardCache(cache.folder)
    assert ShardReader(remote, again).shard(3).key(0) == "shard03-0000"
    assert len(loaded) == 1
    assert fetched() == ["03.tar"]
    assert cache.counters() == Counters(shards_fetched=1, bytes_fetched=pinned.path.stat().st_size)
    assert again.counters() == Counters(cache_hits=1)


def test_an_index_is_asked_for_while_its_shard_comes(cache: ShardCache, store: MemoryStore, remote: Manifest) -> None:
    index = Fault("train/00.tar.wdsindex", "slow", seconds=0.0)
    store.plant(index)
    with at(Fault("train/00.tar", "stall"), store, lambda: cache.pin(remote, 0).close()):
        assert index.reached.wait(10)


def test_two_folders_are_two_caches(remote: Manifest, tmp_path: Path, fetched: Callable[[], list[str]]) -> None:
    for name in ("one", "other"):
        ShardCache(tmp_path / name).pin(remote, 0).close()
    assert fetched() == ["00.tar"] * 2


def test_a_copy_that_agrees_with_its_stamp_is_not_hashed(
    cache: ShardCache, remote: Manifest, no_hash: Callable[[], None]
) -> None:
    cache.pin(remote, 0).close()
    no_hash()
    cache.pin(remote, 0).close()


def replace_by_nothing(path: Path) -> None:
    path.unlink()
    path.touch()


def replace_by_link(path: Path) -> None:
    target = path.parent.parent.parent / "precious"
    target.write_bytes(b"precious")
    path.unlink()
    path.symlink_to(target)


@pytest.mark.parametrize("alter", [flip, flip_keeping_its_time, cut, replace_by_nothing, replace_by_link])
@pytest.mark.parametrize("part", ["", ".wdsindex", ".wdsstamp"])
def test_an_altered_copy_is_never_served(
    alter: Callable[[Path], None], part: str, cache: ShardCache, remote: Manifest, packed: Path, tmp_path: Path
) -> None:
    cache.pin(remote, 0).close()
    copy = copy_of(cache, remote, 0)
    alter(copy.with_name(copy.name + part))
    with cache.pin(remote, 0) as pinned:
        assert not copy.is_symlink()
        assert pinned.path.read_bytes() == (packed / "00.tar").read_bytes()
        assert shardindex.dumps(pinned.index) == (packed / "00.tar.wdsindex").read_bytes()
    if alter is replace_by_link:
        assert (tmp_path / "precious").read_bytes() == b"precious"


def test_nothing_is_written_through_a_link(cache: ShardCache, remote: Manifest, tmp_path: Path) -> None:
    cache.pin(remote, 0).close()
    part = copy_of(cache, remote, 1).with_name("01.tar.wdspart")
    (tmp_path / "precious").write_bytes(b"precious")
    part.symlink_to(tmp_path / "precious")
    with pytest.raises(CacheError, match="symbolic links"):
        cache.pin(remote, 1)
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_a_copy_that_goes_between_opening_and_locking_is_fetched_again(
    cache: ShardCache, remote: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.pin(remote, 0).close()
    copy = copy_of(cache, remote, 0)
    flock, gone = fcntl.flock, threading.Event()

    def late(descriptor: int, operation: int) -> None:
        if not gone.is_set() and os.path.samestat(os.fstat(descriptor), copy.stat()):
            gone.set()
            copy.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with cache.pin(remote, 0) as pinned:
        assert pinned.path.exists()


def test_a_cache_that_is_deleted_while_a_shard_is_fetched_is_made_anew(
    cache: ShardCache, remote: Manifest, store: MemoryStore
) -> None:
    assert cache.folder is not None
    with at(Fault("train/00.tar", "stall"), store, lambda: cache.pin(remote, 0).close()):
        shutil.rmtree(cache.folder)
    assert copy_of(cache, remote, 0).exists()


def test_an_index_of_another_shard_is_not_used(cache: ShardCache, remote: Manifest, packed: Path) -> None:
    for number in (0, 1):
        cache.pin(remote, number).close()
    copy_of(cache, remote, 1).with_name("01.tar.wdsindex").replace(
        copy_of(cache, remote, 0).with_name("00.tar.wdsindex")
    )
    with cache.pin(remote, 0) as pinned:
        assert shardindex.dumps(pinned.index) == (packed / "00.tar.wdsindex").read_bytes()


def test_a_shard_is_counted_before_others_can_read_it(cache: ShardCache, remote: Manifest) -> None:
    """They may be done with the epoch, and its figures be read, before the one that fetched it goes on."""
    counted: list[tuple[Counters, bool]] = []
    cache.tell(lambda one: counted.append((one, copy_of(cache, remote, 0).exists())))
    for _ in range(2):
        cache.pin(remote, 0).close()
    fetched = Counters(shards_fetched=1, bytes_fetched=remote.shard(0).size)
    assert [one for one in counted if any(one[0])] == [(fetched, False), (Counters(cache_hits=1), True)]


def test_a_part_counts_as_what_is_reserved_for_it(
    limited: Callable[..., ShardCache], store: MemoryStore, remote: Manifest
) -> None:
    cache = limited(1.5, 60)
    with at(Fault("train/00.tar", "stall"), store, lambda: cache.pin(remote, 0).close()):
        part = copy_of(cache, remote, 0).with_name("00.tar.wdspart")
        assert part.stat().st_blocks * 512 >= remote.shard(0).size  # so that a full disk shows before the first byte
        os.truncate(part, 0)
        with pytest.raises(CacheError, match="cache_limit are missing"):
            limited(1.5, 1).pin(remote, 1)


def test_a_copy_that_only_moved_is_hashed_and_kept(
    cache: ShardCache, remote: Manifest, fetched: Callable[[], list[str]], tmp_path: Path
) -> None:
    cache.pin(remote, 0).close()
    copy = copy_of(cache, remote, 0)
    (tmp_path / "moved").write_bytes(copy.read_bytes())
    (tmp_path / "moved").replace(copy)
    for _ in range(2):
        cache.pin(remote, 0).close()
    assert fetched() == ["00.tar"]


def test_what_was_locked_is_seen_to_be_altered(cache: ShardCache, remote: Manifest) -> None:
    pinned = cache.pin(remote, 0)
    assert pinned.lock()
    pinned.unlock()
    assert pinned.lock()
    pinned.unlock()
    flip(pinned.path)
    assert not pinned.lock()
    assert folders.is_free(pinned.path)


def test_copies_go_by_their_last_use_where_nobody_says_what_comes(
    limited: Callable[..., ShardCache], remote: Manifest, tmp_path: Path
) -> None:
    cache = limited(6)
    for number in (0, 1, 2, 3, 4, 5, 0, 2, 4, 6, 7, 8):
        cache.pin(remote, number).close()
    assert folders.copies(tmp_path) == ["00.tar", "02.tar", "04.tar", "06.tar", "07.tar", "08.tar"]


def test_copies_go_by_their_next_use(limited: Callable[..., ShardCache], remote: Manifest, tmp_path: Path) -> None:
    cache = limited(3)
    for number in (0, 1, 2):
        cache.pin(remote, number).close()
    cache.expect([Need(copy_key(remote, number), batch) for batch, number in enumerate((3, 0, 2, 1))])
    cache.pin(remote, 3).close()
    assert folders.copies(tmp_path) == ["00.tar", "02.tar", "03.tar"]


def test_what_is_pinned_stays_and_the_error_says_what_is_missing(
    limited: Callable[..., ShardCache], remote: Manifest, tmp_path: Path, room: int
) -> None:
    cache = limited(3)
    pins = [cache.pin(remote, number) for number in (0, 1, 2)]
    with pytest.raises(
        CacheError,
        match=rf"faulty://bucket/train/03\.tar could not be had within 1 seconds: [\d,]+ bytes of the {3 * room:,} of "
        rf"cache_limit are missing",
    ):
        limited(3, 1).pin(remote, 3)
    assert folders.leftovers(tmp_path / "cache") == []
    pins[1].unlock()
    cache.pin(remote, 3).close()
    assert not pins[1].lock()
    assert pins[0].lock()
    assert folders.copies(tmp_path) == ["00.tar", "02.tar", "03.tar"]


def test_a_limit_that_cannot_do_is_an_error_at_once(
    limited: Callable[..., ShardCache], store: MemoryStore, remote: Manifest, room: int
) -> None:
    size = remote.shard(0).size
    unsized = Manifest.of("faulty://bucket/train", [Shard("00.tar", 20, -1, "")])
    for read, message in [
        (lambda: limited(0.5, 100).pin(remote, 0), rf"but {size:,} are needed at once, for 1 shard:"),
        (
            lambda: ShardReader(remote, limited(2, 100)).hold([0, 1, 2]),
            rf"but {3 * size:,} are needed at once, for 3 shards:",
        ),
        (lambda: limited((room - 1) / room, 100).pin(remote, 0), rf"/00\.tar takes {room:,} with its index"),
        (lambda: limited(0.5, 100).pin(unsized, 0), rf"/00\.tar takes {room:,} with its index"),
    ]:
        with pytest.raises(CacheError, match=message):
            read()
    store.plant(Fault("train/00.tar", "no-size"))
    with pytest.raises(CacheError, match=r"faulty://bucket/train/00\.tar has a size that neither"):
        limited(3, 100).pin(unsized, 0)


def test_fetching_ahead_takes_only_what_is_needed_later(
    limited: Callable[..., ShardCache],
    remote: Manifest,
    tmp_path: Path,
    store: MemoryStore,
    fetched: Callable[[], list[str]],
) -> None:
    cache = limited(2)
    assert {cache.fetch_ahead(remote, number) for number in (0, 1, 0)} == {None}
    assert fetched() == ["00.tar", "01.tar"]
    cache.expect([Need(copy_key(remote, number), 0) for number in (0, 2)])
    store.requests.clear()
    assert cache.fetch_ahead(remote, 3) not in (None, BUSY)  # nobody needs it, as nobody needs shard 1
    assert store.requests == []
    assert cache.fetch_ahead(remote, 2) is None
    assert folders.copies(tmp_path) == ["00.tar", "02.tar"]
    cache.expect([Need(copy_key(remote, number), 0) for number in (0, 2, 1)])
    assert cache.fetch_ahead(remote, 1) not in (None, BUSY)


def test_who_waits_for_a_fetch_that_fails_is_told_why(store: MemoryStore, remote: Manifest, tmp_path: Path) -> None:
    """Two need a shard from a store that has gone: the error of each names it, also of the one that only waited."""
    store.plant(Fault("train/00.tar", "error", after=1, verb="read", error=PermissionError("the store has gone")))
    with (
        at(Fault("train/00.tar", "stall"), store, lambda: ShardCache(tmp_path).fetch_ahead(remote, 0)),
        pytest.raises(StorageError, match="the store has gone"),
    ):
        ShardCache(tmp_path, timeout=0.1).pin(remote, 0)


def test_what_waits_for_room_in_vain_is_told_so_however_slow_the_store(
    limited: Callable[..., ShardCache], store: MemoryStore, remote: Manifest
) -> None:
    store.plant(Fault("*", "stall", verb="info"))
    with limited(1).pin(remote, 0), pytest.raises(CacheError, match="cache_limit are missing"):
        limited(1, 0.5).pin(remote, 1)


def test_a_store_has_time_to_say_what_keeps_another_process(
    store: MemoryStore, remote: Manifest, tmp_path: Path
) -> None:
    answer = Fault("train/00.tar", "slow", after=1, seconds=0.2)
    store.plant(answer)
    with (
        at(Fault("train/00.tar", "stall"), store, lambda: ShardCache(tmp_path).fetch_ahead(remote, 0)),
        pytest.raises(CacheError, match="another process is fetching it"),
    ):
        ShardCache(tmp_path, timeout=0.1).pin(remote, 0)
    assert answer.reached.is_set()


def test_a_folder_that_goes_while_it_is_used_is_made_anew(cache: ShardCache, remote: Manifest) -> None:
    cache.pin(remote, 0).close()
    assert cache.folder is not None
    shutil.rmtree(cache.folder)
    cache.expect([Need("a", 0)])
    with cache.pin(remote, 0) as pinned:
        assert pinned.path.is_file()


def test_fetching_ahead_raises_nothing(store: MemoryStore, remote: Manifest, tmp_path: Path) -> None:
    del store.files["train/05.tar"]
    assert ShardCache(tmp_path / "cache").fetch_ahead(remote, 5) not in (None, BUSY)
    (tmp_path / "file").touch()
    assert ShardCache(tmp_path / "file").fetch_ahead(remote, 4) not in (None, BUSY)
    assert folders.leftovers(tmp_path / "cache") == []


def test_wrong_bytes_once_are_fetched_again(
    cache: ShardCache, store: MemoryStore, remote: Manifest, packed: Path
) -> None:
    store.plant(Fault("train/00.tar", "wrong-bytes", times=1), Fault("train/00.tar", "wrong-length", times=1))
    with cache.pin(remote, 0) as pinned:
        assert pinned.path.read_bytes() == (packed / "00.tar").read_bytes()
    assert cache.counters()._replace(bytes_fetched=0) == Counters(shards_fetched=1, retries=2)


def test_a_wrong_index_once_is_fetched_again(
    limited: Callable[..., ShardCache], store: MemoryStore, remote: Manifest, room: int, tmp_path: Path
) -> None:
    store.plant(Fault("train/00.tar.wdsindex", "wrong-bytes", times=1))
    index = store.files["train/00.tar.wdsindex"]
    with limited(1).pin(remote, 0) as pinned:
        assert shardindex.dumps(pinned.index) == index == pinned.path.with_name("00.tar.wdsindex").read_bytes()
    assert store.paths("read").count("train/00.tar.wdsindex") == 2
    assert folders.use(tmp_path / "cache") <= room


def test_wrong_bytes_always_are_an_error_and_never_in_the_cache(
    cache: ShardCache, store: MemoryStore, remote: Manifest, packed: Path, tmp_path: Path
) -> None:
    for kind, message in [
        ("wrong-length", r"faulty://bucket/train/00\.tar cannot be read: [\d,]+ bytes where .* \(after 5 attempts"),
        ("wrong-bytes", r"does not have the digest that index.json gives.* \(after 3 attempts\)"),
    ]:
        store.plant(Fault("train/00.tar", kind))
        with pytest.raises(ShardDamagedError, match=message):
            cache.pin(remote, 0)
        store.heal()
    for index in (b"no index", (packed / "01.tar.wdsindex").read_bytes()):
        store.files["train/00.tar.wdsindex"] = index
        with pytest.raises(ShardDamagedError, match=r"faulty://bucket/train/00\.tar.*index.*\(after 3 attempts\)"):
            cache.pin(remote, 0)
    del store.files["train/01.tar"]
    with pytest.raises(NotFoundError, match=r"faulty://bucket/train/01\.tar does not exist"):
        cache.pin(remote, 1)
    assert folders.copies(tmp_path) == folders.leftovers(tmp_path / "cache") == []


def test_shards_without_index_or_size_are_indexed_once(
    tmp_path: Path, store: MemoryStore, remote: Manifest, room: int, no_scan: Callable[[], None]
) -> None:
    del store.files["train/00.tar.wdsindex"]
    cache = ShardCache(tmp_path / "cache", limit=2 * room + (1 << 17))
    cache.pin(remote, 0).close()
    no_scan()
    with cache.pin(remote, 0) as pinned:
        assert pinned.index.num_samples == 20
    with ShardCache(tmp_path / "unlimited").pin(
        Manifest.of("faulty://bucket/train", [Shard("01.tar", 20, -1, "")]), 0
    ) as one:
        assert one.index.sha256 == remote.shard(1).sha256


def test_a_copy_that_is_being_verified_stays(limited: Callable[..., ShardCache], remote: Manifest) -> None:
    cache = limited(1)
    cache.pin(remote, 0).close()
    with kept(copy_of(cache, remote, 0)), pytest.raises(CacheError, match="cache_limit are missing"):
        limited(1, 0.5).pin(remote, 1)
    cache.pin(remote, 1).close()
    with kept(copy_of(cache, remote, 0)):
        assert not copy_of(cache, remote, 0).exists()


def test_files_of_others_are_neither_counted_nor_touched(
    limited: Callable[..., ShardCache], remote: Manifest, tmp_path: Path, packed: Path
) -> None:
    cache = limited(2)
    cache.pin(remote, 0).close()
    store = copy_of(cache, remote, 0).parent
    strangers = [tmp_path / "cache" / "notes.txt", store / "notes.txt", store / "99.tar", store / "98.tar.wdsindex",
                 tmp_path / "cache" / "train" / "00.tar", tmp_path / "cache" / "x.wdspart"]  # fmt: skip
    for path in strangers:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100_000))
    os.link(copy_of(cache, remote, 0), tmp_path / "linked")
    for number in range(1, 6):
        cache.pin(remote, number).close()
    assert all(path.read_bytes() == bytes(100_000) for path in strangers)
    assert (tmp_path / "linked").read_bytes() == (packed / "00.tar").read_bytes()
    assert len(folders.copies(store)) == 2 + 1


def test_a_data_set_that_was_uploaded_anew_replaces_the_old_copy(
    cache: ShardCache, store: MemoryStore, remote: Manifest, packed: Path
) -> None:
    cache.pin(remote, 0).close()
    for suffix in ("", ".wdsindex"):
        store.files[f"train/00.tar{suffix}"] = (packed / f"07.tar{suffix}").read_bytes()
    listed = remote.shard(7)
    new = Manifest.of("faulty://bucket/train", [Shard("00.tar", 20, listed.size, listed.sha256)])
    assert ShardReader(new, cache).shard(0).key(0) == "shard07-0000"


def test_a_shard_is_refetched_under_readers_that_keep_the_old_one(
    cache: ShardCache, remote: Manifest, packed: Path, fetched: Callable[[], list[str]]
) -> None:
    cache.pin(remote, 0).close()
    reader = ShardReader(remote, cache)
    shard = reader.shard(0)
    whole, key = bytes(shard.content), shard.key(0)
    index = copy_of(cache, remote, 0).with_name("00.tar.wdsindex")
    before = index.stat().st_ino
    cache.pin(remote, 0, anew=True).close()
    assert (bytes(shard.content), shard.key(0)) == (whole, key)
    assert index.stat().st_ino != before  # readers have the old one mapped
    reader.release()
    assert reader.shard(0) is not shard
    assert fetched() == ["00.tar"] * 2


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_an_error(
    number: int, cache: ShardCache, remote: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(CacheError, match=r"cannot be locked \(.*\): choose a cache_dir on a file system with flock"):
        cache.pin(remote, 0)


def test_a_folder_that_cannot_be_written_is_an_error(remote: Manifest, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=r"file/cache cannot be used as a cache \(.*\): choose another cache_dir"):
        ShardCache(tmp_path / "file" / "cache").pin(remote, 0)


def test_a_limit_of_open_files_is_told_from_a_folder_that_is_no_cache(cache: ShardCache, remote: Manifest) -> None:
    cache.pin(remote, 0).close()
    told = r"00\.tar of .* bytes cannot be opened \(Too many open files\): raise the limit"
    with open_files_limited(0), pytest.raises(CacheError, match=told):
        cache.pin(remote, 0)


def test_folders_are_closed_to_others(cache: ShardCache, remote: Manifest) -> None:
    cache.pin(remote, 0).close()
    assert cache.folder is not None
    assert {path.stat().st_mode & 0o777 for path in (cache.folder, copy_of(cache, remote, 0).parent)} == {0o700}


def test_local_shards_are_read_in_place(packed: Path, cache: ShardCache) -> None:
    local = wdsdist.open(packed)
    with cache.pin(local, 0) as pinned:
        assert pinned.path == packed / "00.tar"
        pinned.unlock()
        assert pinned.lock()
    assert cache.fetch_ahead(local, 1) is None
    assert cache.folder is not None
    assert not cache.folder.exists()


def test_threads_share_one_fetch(
    limited: Callable[..., ShardCache], remote: Manifest, fetched: Callable[[], list[str]]
) -> None:
    cache = limited(3, timeout=10)
    errors = []

    def read() -> None:
        try:
            for number in (0, 1, 2, 1, 0):
                with cache.pin(remote, number) as pinned:
                    assert pinned.index.key(0) == f"shard{number:02}-0000"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(fetched()) == ["00.tar", "01.tar", "02.tar"]
    assert cache.counters().cache_hits + cache.counters().shards_fetched == 30


def test_it_moves_to_another_process_without_what_it_holds(cache: ShardCache, remote: Manifest) -> None:
    cache.pin(remote, 0)
    moved = pickle.loads(pickle.dumps(cache))
    assert (moved.folder, moved.limit, moved.timeout) == (cache.folder, None, cache.timeout)
    assert moved.counters() == Counters()
