"""Parts of shards: sparse copies, whatever befalls the process, the disk, the store or the folder meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import wdsdist
from tests.support import folders
from tests.support.heard import heard
from tests.support.memory_store import Fault, MemoryStore
from tests.support.tars import plain_tar
from tests.support.watched import watched
from tests.support.web import Web, served
from wdsdist import storage
from wdsdist._util.array_types import Int64s
from wdsdist.cache import Need, PinnedPart, ShardCache, cached_path, copy_key, shard_cache
from wdsdist.cache.extents import ExtentMap
from wdsdist.cache.fetch import Fetched, fetch
from wdsdist.cache.locks import LockableFile, pauses
from wdsdist.cache.parts import PartFetcher, PartNeeds
from wdsdist.cache.request import ShardRequest
from wdsdist.cache.space import CacheSpace, Refusal
from wdsdist.cache.usage import all_held
from wdsdist.cli import _wdsdist
from wdsdist.errors import CacheError, NotFoundError, ShardDamagedError, StorageError
from wdsdist.samples.fields import Fields
from wdsdist.samples.shard_reader import ShardReader
from wdsdist.shards import index as shard_index
from wdsdist.shards.index import ShardIndex
from wdsdist.shards.manifest import Manifest
from wdsdist.storage import RequestPolicy, use_policy
from wdsdist.storage.link_speed import note_speed

SHARDS, SAMPLES, SIZE = 3, 40, 40_000
KB = 1 << 10


def member(number: int) -> bytes:
    return np.random.default_rng(number).bytes(SIZE)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of shards of 1.6 MB each: a label and 40 KB a sample."""
    folder = tmp_path_factory.mktemp("packed")
    for shard in range(SHARDS):
        numbers = range(shard * SAMPLES, (shard + 1) * SAMPLES)
        members = [
            (f"{n:04}.{kind}", b"%d" % n if kind == "cls" else member(n)) for n in numbers for kind in ("bin", "cls")
        ]
        (folder / f"{shard:02}.tar").write_bytes(plain_tar(members))
    wdsdist.index(folder)
    return folder


@pytest.fixture
def open_dataset(remote: Manifest, tmp_path: Path) -> Callable[..., wdsdist.StreamingDataset]:
    return lambda **more: wdsdist.StreamingDataset(remote, **{"cache_dir": tmp_path / "cache", **more})


def is_right(sample: dict[str, Any]) -> bool:
    return bytes(sample["bin"]) == member(int(sample["__key__"]))


def tar_bytes(store: MemoryStore) -> int:
    """Return the bytes of ranges of tars that were asked for."""
    asked = [request for request in store.requests if request.path.endswith(".tar")]
    assert all(request.stop is not None for request in asked)
    return sum((request.stop or 0) - (request.start or 0) for request in asked)


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def sparse_copies(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.wdssparse"))


def test_a_sample_takes_its_index_and_one_range(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore, tmp_path: Path
) -> None:
    dataset = open_dataset()
    store.requests.clear()
    assert is_right(dataset[50])
    assert store.paths("read") == ["train/01.tar.wdsindex", "train/01.tar"]
    assert tar_bytes(store) < SIZE + 2 * KB
    assert folders.copies(tmp_path) == []
    store.requests.clear()
    assert is_right(open_dataset()[50])  # as another process would read it
    assert is_right(dataset[51])
    assert len(store.requests) == 1


def test_an_index_that_a_shard_lacks_is_asked_for_once(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore
) -> None:
    del store.files["train/01.tar.wdsindex"]
    dataset = open_dataset()
    assert is_right(dataset[50])
    assert is_right(dataset[51])
    assert store.paths("read").count("train/01.tar.wdsindex") == 1


def test_parts_that_are_there_count_as_hits_and_are_verified(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore, tmp_path: Path
) -> None:
    for expected in (0, SHARDS):
        dataset = open_dataset(fields=("cls",))
        for number in sorted(2 * [*range(0, SHARDS * SAMPLES, SAMPLES)]):
            assert bytes(dataset[number]["cls"]) == b"%d" % number
        assert dataset.cache.counters().cache_hits == expected
    words = ["verify", f"{store.url}/train", "--cached", "--cache-dir", str(tmp_path / "cache")]
    done = CliRunner().invoke(_wdsdist, words)
    assert done.exit_code == 0
    assert "no damage" in done.output


def test_labels_alone_are_all_that_is_fetched(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore, tmp_path: Path
) -> None:
    dataset = open_dataset(fields=("cls",))
    store.requests.clear()
    loader = wdsdist.StreamingDataLoader(dataset, 8, num_workers=0)
    labels = sorted(int(bytes(label)) for batch in loader for label in batch["cls"])
    assert labels == list(range(SHARDS * SAMPLES))
    assert tar_bytes(store) < 0.03 * SHARDS * SAMPLES * SIZE
    assert folders.copies(tmp_path) == []


@pytest.fixture
def small(tmp_path: Path) -> Iterator[MemoryStore]:
    """A store with one shard of 2.2 MB: a label and 1.5 KB a sample, so that labels lie 3 KB from each other."""
    source = tmp_path / "small"
    source.mkdir()
    kinds = {"bin": 1500, "cls": 1}
    members = [(f"{n:04}.{kind}", bytes(size)) for n in range(700) for kind, size in kinds.items()]
    (source / "00.tar").write_bytes(plain_tar(members))
    wdsdist.index(source)
    with MemoryStore(files_in(source)) as store:
        yield store


def labels_of(*samples: int) -> PartNeeds:
    """Return the part needs of a batch: the labels of some samples, in an epoch that reads all labels."""
    return PartNeeds(lambda _: 2 * np.array(samples) + 1, lambda index: np.arange(1, len(index.sizes), 2))


@pytest.mark.parametrize(
    ("rate", "each", "asked"),
    [(None, [9], [9]), (None, [10], [1]), (None, [5, 4, 10], [5, 4, 9]), (90e6, [3], [2]), (1e6, [20], [20])],
)
def test_all_labels_of_small_samples_come_at_once_where_those_of_batches_cost_as_much(
    small: MemoryStore, tmp_path: Path, rate: float | None, each: list[int], asked: list[int]
) -> None:
    if rate is not None:
        note_speed(small.url, delay=0.02, size=1 << 20, seconds=(1 << 20) / rate)
    remote, cache, samples = wdsdist.open(small.url), ShardCache(tmp_path / "cache"), iter(range(0, 700, 30))
    for number, requests in zip(each, asked, strict=True):
        small.requests.clear()
        with closing(cache.pin_parts(remote, {0: labels_of(*itertools.islice(samples, number))}, batch=[0])[0]) as part:
            assert small.paths("read").count("00.tar") == requests
            assert part.has(np.arange(1, 1400, 2)) == (requests != number)
    assert folders.copies(tmp_path / "cache") == []


def test_a_label_that_no_batch_needs_yet_may_be_wrong(small: MemoryStore, tmp_path: Path) -> None:
    remote, cache = wdsdist.open(small.url), ShardCache(tmp_path / "cache")
    index = shard_index.loads(small.files["00.tar.wdsindex"], "00.tar.wdsindex")
    content, place = bytearray(small.files["00.tar"]), int(index.offsets[2 * 699 + 1])
    content[place] ^= 1
    small.files["00.tar"] = bytes(content)
    with closing(cache.pin_parts(remote, {0: labels_of(*range(0, 600, 30))}, batch=[0])[0]) as part:
        assert part.has(np.arange(1, 2 * 699, 2))
        assert small.paths("read").count("00.tar") == 1


def test_what_a_batch_needs_comes_with_the_labels_also_where_its_epoch_does_not_read_it(
    small: MemoryStore, tmp_path: Path
) -> None:
    """As where a program asks for a sample while it iterates over others."""
    labels, cache = labels_of(*range(0, 600, 30)), ShardCache(tmp_path / "cache")
    needs = PartNeeds(lambda index: np.append(0, labels.now(index)), labels.epoch)
    with closing(cache.pin_parts(wdsdist.open(small.url), {0: needs}, batch=[0])[0]) as part:
        assert small.paths("read").count("00.tar") == 1
        assert part.has(np.append(0, np.arange(1, 1400, 2)))


def test_labels_for_which_the_cache_has_no_room_come_without_the_others(small: MemoryStore, tmp_path: Path) -> None:
    remote, cache = wdsdist.open(small.url), ShardCache(tmp_path / "cache", limit=1 << 20)
    with closing(cache.pin_parts(remote, {0: labels_of(*range(0, 600, 30))}, batch=[0])[0]) as part:
        assert small.paths("read").count("00.tar") == 20
        assert not part.has(np.arange(1, 1400, 2))


def test_of_shards_in_which_a_node_takes_few_samples_at_random_these_are_all_that_is_fetched(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, number in {"RANK": 7, "WORLD_SIZE": 40, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(number))
    dataset = open_dataset(order="sampler", cache_limit="1MB")  # less than a shard
    store.requests.clear()
    (batch,) = wdsdist.StreamingDataLoader(dataset, 3, num_workers=0)
    assert all(
        is_right({"__key__": key, "bin": data}) for key, data in zip(batch["__key__"], batch["bin"], strict=True)
    )
    assert 3 * SIZE < tar_bytes(store) < 3 * (SIZE + 2 * KB)  # with its headers
    assert folders.copies(tmp_path) == []
    needed = 0
    for shard in range(SHARDS):
        path, members = f"train/{shard:02}.tar.wdsindex", dataset.sample_reader.epoch_members(shard)
        assert members is not None
        needed += len(members(shard_index.loads(store.files[path], path)))
    assert needed == 2 * 3
    assert np.array_equal(dataset.manifest.needed_of(1 / 8), dataset.manifest.read_sizes)  # more ranges than parts


def test_a_thin_view_takes_little_more_than_its_samples(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore, remote: Manifest, tmp_path: Path
) -> None:
    view = remote.select(keys=[f"{number:04}" for number in range(0, SHARDS * SAMPLES, 10)])
    dataset = wdsdist.StreamingDataset(view, cache_dir=tmp_path / "cache")
    store.requests.clear()
    batches = list(wdsdist.StreamingDataLoader(dataset, 4, num_workers=0))
    assert sum(len(batch["__key__"]) for batch in batches) == 12
    assert tar_bytes(store) < 1.3 * 12 * SIZE
    assert 12 * SIZE < view.needed_sizes.sum() < 1.6 * 12 * SIZE
    half = remote.select(keys=[f"{number:04}" for number in range(0, SHARDS * SAMPLES, 2)])
    assert np.array_equal(half.needed_sizes, half.read_sizes)  # which is fetched whole


def test_warming_fetches_of_a_thin_view_its_samples_alone(web: Web, tmp_path: Path) -> None:
    view = wdsdist.open(web.url).select(keys=[f"{number:04}" for number in range(0, SHARDS * SAMPLES, 10)])
    words = ["cache", "warm", str(view.save(tmp_path / "thin")), "--cache-dir", str(tmp_path / "cache")]
    done = CliRunner().invoke(_wdsdist, [*words, "--cache-limit", "2MB", "--batch-size", "4"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"warm: {SHARDS} shards, ")
    assert 12 * SIZE < sum(web.bytes_of[f"{shard:02}.tar"] for shard in range(SHARDS)) < 1.3 * 12 * SIZE
    web.asked.clear()
    dataset = wdsdist.StreamingDataset(view, cache_dir=tmp_path / "cache", cache_limit="2MB")
    assert all(is_right(sample) for sample in dataset)
    assert web.asked == []


def test_warming_fetches_of_some_fields_these_alone(web: Web, tmp_path: Path) -> None:
    words = ["cache", "warm", web.url, "--cache-dir", str(tmp_path / "cache"), "--batch-size", "4"]
    done = CliRunner().invoke(_wdsdist, [*words, "--cache-limit", "1MB", "--fields", "cls"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"warm: {SHARDS} shards, ")
    assert sum(web.bytes_of[f"{shard:02}.tar"] for shard in range(SHARDS)) < 0.03 * SHARDS * SAMPLES * SIZE
    web.asked.clear()
    dataset = wdsdist.StreamingDataset(web.url, cache_dir=tmp_path / "cache", fields=("cls",))
    web.asked.clear()
    assert sorted(int(bytes(sample["cls"])) for sample in dataset) == list(range(SHARDS * SAMPLES))
    assert web.asked == []
    refused = CliRunner().invoke(_wdsdist, [*words, "--fields", "clas"])
    assert refused.exit_code == 2
    assert "has no member 'clas'" in refused.stderr


def test_what_comes_between_samples_takes_its_part_of_the_limit(
    remote: Manifest, store: MemoryStore, tmp_path: Path
) -> None:
    """Coalesced ranges: up to a quarter more than the bytes needed comes in one request."""
    needs = PartNeeds(lambda _: 2 * np.array([number for number in range(19) if number % 5 != 4]))
    room = 16 * (SIZE + 9 * KB)
    for limit in (room, 19 * (SIZE + 10 * KB)):
        cache = ShardCache(tmp_path / str(limit), limit=limit)
        used = 0
        for part in cache.pin_parts(remote, {0: needs}, batch=[0]).values():
            used = part.path.stat().st_blocks * 512
            part.close()
        assert used <= limit
    assert used > room


def test_a_link_that_is_measured_meanwhile_does_not_take_more_than_was_reserved(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a faster one larger gaps come along, here two samples between the others."""
    allocated = []

    def measured(space: CacheSpace, request: ShardRequest, sparse: int, ranges: Int64s, *, recorded: int) -> None:
        assert not allocate(space, request, sparse, ranges, recorded=recorded)
        allocated.append(os.fstat(sparse).st_blocks)
        note_speed(request.location, delay=0.5, size=1 << 20, seconds=0.01)

    allocate = CacheSpace.allocate
    monkeypatch.setattr(CacheSpace, "allocate", measured)
    with MemoryStore(store.files) as far:
        note_speed(far.url, delay=0.02, size=1 << 20, seconds=1)
        cache = ShardCache(tmp_path / "cache", limit=2 << 20)
        remote, needs = wdsdist.open(f"{far.url}/train"), samples_of(*range(9), *range(11, 20))
        with closing(cache.pin_parts(remote, {0: needs})[0]) as part:
            assert [part.path.stat().st_blocks] == allocated


def sparse_readers(
    remote: Manifest, cache: Path, *, number: int, limit: int = 1_000 * KB, timeout: float = 60
) -> list[ShardReader]:
    """Return readers of a view with a quarter of each shard, 410 KB, in a cache with room for two of them."""
    view = remote.select(keys=[f"{number:04}" for number in range(0, SHARDS * SAMPLES, 4)])
    return [ShardReader(view, ShardCache(cache, limit=limit, timeout=timeout)) for _ in range(number)]


def test_a_batch_of_a_view_waits_until_others_free_the_room_for_its_parts(remote: Manifest, tmp_path: Path) -> None:
    ours, theirs = sparse_readers(remote, tmp_path / "cache", number=2)
    all_of_them = Fields(None), np.arange(SAMPLES // 4)
    theirs.hold([0], lambda _: all_of_them)

    def let_go(warning: str) -> None:
        if "of cache_limit are missing" in warning:
            theirs.release()

    with use_policy(RequestPolicy(first_warning=0.02, next_warning=0.02)), heard(let_go):
        held = ours.hold([1, 2], lambda _: all_of_them)
    assert [held[shard].num_samples for shard in (1, 2)] == [SAMPLES // 4] * 2


def test_what_is_there_while_room_for_the_rest_is_waited_for_is_one_hit(remote: Manifest, tmp_path: Path) -> None:
    before, ours, theirs = sparse_readers(remote, tmp_path / "cache", number=3)
    all_of_them = Fields(None), np.arange(SAMPLES // 4)
    before.hold([1], lambda _: all_of_them)
    before.release()
    theirs.hold([0], lambda _: all_of_them)

    def let_go(warning: str) -> None:
        if "of cache_limit are missing" in warning:
            theirs.release()

    with use_policy(RequestPolicy(first_warning=0.1, next_warning=0.1)), heard(let_go):
        ours.hold([1, 2], lambda _: all_of_them)
    assert ours.cache.counters().cache_hits == 1


def test_a_batch_waits_for_room_also_where_another_waits_for_the_same_shards(remote: Manifest, tmp_path: Path) -> None:
    ours, theirs = sparse_readers(remote, tmp_path / "cache", number=2)
    all_of_them = Fields(None), np.arange(SAMPLES // 4)
    theirs.hold([0], lambda _: all_of_them)
    earlier = CacheSpace(tmp_path / "cache", 1_000 * KB)
    earlier.claim({copy_key(remote, shard) for shard in (0, 1, 2)}, storage.Deadline(60))

    def let_go(warning: str) -> None:
        if "of cache_limit are missing" in warning:
            theirs.release()
            earlier.reader._claims.clear()  # as of the thread that waited
            earlier.reader._publish()

    with use_policy(RequestPolicy(first_warning=0.02, next_warning=0.02)), heard(let_go):
        held = ours.hold([1, 2], lambda _: all_of_them)
    assert [held[shard].num_samples for shard in (1, 2)] == [SAMPLES // 4] * 2


def test_a_batch_waits_for_parts_that_another_process_fetches_where_both_together_would_have_no_room(
    remote: Manifest, store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = sparse_readers(remote, tmp_path / "cache", number=2, limit=700 * KB)
    all_of_them, stall = (Fields(None), np.arange(SAMPLES // 4)), Fault("train/00.tar", "stall")
    store.plant(stall)

    def pin(*args: Any, **options: Any) -> Any:
        found = pin_parts(*args, **options)
        if isinstance(found[0], Refusal):
            stall.release()
        return found

    pin_parts = PartFetcher.pin
    monkeypatch.setattr(PartFetcher, "pin", pin)
    with ThreadPoolExecutor(1) as another:
        held = another.submit(theirs.hold, [0], lambda _: all_of_them)
        assert stall.reached.wait(60)
        try:
            assert ours.hold([0], lambda _: all_of_them)[0].num_samples == SAMPLES // 4
        finally:
            stall.release()
        assert held.result(60)[0].num_samples == SAMPLES // 4
    assert ours.cache.counters().bytes_fetched == 0


def test_room_that_others_do_not_free_in_time_is_an_error(remote: Manifest, tmp_path: Path) -> None:
    ours, theirs = sparse_readers(remote, tmp_path / "cache", number=2, timeout=0.5)
    all_of_them = Fields(None), np.arange(SAMPLES // 4)
    theirs.hold([0], lambda _: all_of_them)
    with pytest.raises(CacheError, match=r"could not be had within 0\.5 seconds: .* of cache_limit are missing"):
        ours.hold([1, 2], lambda _: all_of_them)


def test_parts_that_have_no_room_whatever_others_free_are_an_error_at_once(remote: Manifest, tmp_path: Path) -> None:
    (ours,) = sparse_readers(remote, tmp_path / "cache", number=1)
    with pytest.raises(CacheError, match=r"cache_limit is 1,024,000 bytes but 5,\d+,\d+ are needed at once"):
        ours.hold([0, 1, 2], lambda _: (Fields(None), np.arange(SAMPLES // 4)))


def test_a_shard_that_has_come_meanwhile_gets_no_parts_that_evict_others(
    remote: Manifest, store: MemoryStore, tmp_path: Path
) -> None:
    root, limit = tmp_path / "cache", 3_500 * KB
    for number in (0, 1):
        ShardCache(root, limit=limit).pin(remote, number).close()
    request = ShardRequest(remote, 0, root, storage.Deadline(60))
    space = CacheSpace(root, limit)
    space.claim({request.paths.key}, request.deadline)
    assert isinstance(PartFetcher(space, lambda _: None).pin({0: (request, samples_of(5))})[0], Refusal)
    assert folders.copies(root) == ["00.tar", "01.tar"]
    assert store.paths("read").count("train/00.tar") == 1
    assert sparse_copies(root) == []


@pytest.mark.parametrize("spare", [0, 64 * KB])
def test_the_parts_of_a_shard_do_not_keep_all_of_it_out(spare: int, remote: Manifest, tmp_path: Path) -> None:
    room = int(remote.read_sizes[0]) + len(storage.read(f"{remote.location(0)}.wdsindex")) + 512
    cache = ShardCache(tmp_path / "cache", limit=room + spare, timeout=60)
    with closing(cache.pin_parts(remote, {0: PartNeeds(lambda _: np.arange(8))})[0]):
        pass
    cache.rest()
    with cache.pin(remote, 0) as pinned:
        assert pinned.path.stat().st_size == remote.read_sizes[0]


def test_what_killed_fetches_had_reserved_beside_parts_does_not_count_against_the_limit(
    remote: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, size = tmp_path / "cache", int(remote.read_sizes[0])

    def fetch(number: int) -> None:
        cache = ShardCache(folder)
        cache.pin_parts(remote, {number: samples_of(5)})[number].close()
        monkeypatch.setattr(os, "posix_fallocate", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        cache.pin(remote, number)

    for number in range(SHARDS):
        assert folders.status(folders.forked(lambda number=number: fetch(number))) == -signal.SIGKILL
    limit = int(2.5 * size)
    cache = ShardCache(folder, limit=limit)
    for number in range(SHARDS):
        cache.pin(remote, number).close()
        assert folders.use(folder) <= limit


def test_parts_that_were_had_do_not_keep_other_processes_out(remote: Manifest, tmp_path: Path) -> None:
    job, another = (ShardCache(tmp_path / "cache", limit=1_700 * KB, timeout=60) for _ in range(2))
    job.pin_parts(remote, {0: PartNeeds(lambda _: np.arange(8))})[0].close()
    another.pin(remote, 1).close()


def test_the_first_batch_does_not_wait_for_its_shards(
    open_dataset: Callable[..., wdsdist.StreamingDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def fetch_later(*arguments: Any) -> Fetched:
        assert go_on.wait(60)
        return fetch(*arguments)

    monkeypatch.setattr(shard_cache, "fetch", fetch_later)
    batches = iter(wdsdist.StreamingDataLoader(open_dataset(), 6, num_workers=0))
    first = next(batches)
    go_on.set()
    taken = [first, *batches]
    assert all(is_right({"__key__": key, "bin": data}) for batch in taken for key, data in
               zip(batch["__key__"], batch["bin"], strict=True))  # fmt: skip
    assert sorted(int(key) for batch in taken for key in batch["__key__"]) == list(range(SHARDS * SAMPLES))


def test_of_shards_that_are_coming_only_the_first_batch_takes_parts(remote: Manifest, tmp_path: Path) -> None:
    cache, needs = ShardCache(tmp_path / "cache"), PartNeeds(lambda _: np.arange(2))
    cache.expect([Need(copy_key(remote, number), number) for number in range(SHARDS)])
    cache.first_batch()
    with closing(cache.pin_parts(remote, {0: needs})[0]):
        assert cache.pin_parts(remote, {1: needs}) == {}


def test_at_the_start_of_an_epoch_later_batches_take_parts_too(remote: Manifest, tmp_path: Path) -> None:
    cache, needs = ShardCache(tmp_path / "cache"), PartNeeds(lambda _: np.arange(2))
    cache.expect([Need(copy_key(remote, number), number) for number in range(SHARDS)])
    cache.is_opening = True
    with closing(cache.pin_parts(remote, {1: needs})[1]):
        assert cache.pin_parts(remote, {2: PartNeeds(lambda _: np.arange(SAMPLES))}) == {}


def test_what_batches_fetch_along_is_there_for_the_next_ones(
    remote: Manifest, store: MemoryStore, tmp_path: Path
) -> None:
    reader = ShardReader(remote, ShardCache(tmp_path / "cache"))
    reader.along = lambda _: np.arange(3, 9)
    whole = Fields(None)
    reader.hold([1], lambda _: (whole, np.array([3])))
    reader.release()
    asked = len(store.requests)
    reader.hold([1], lambda _: (whole, np.array([5, 8])))
    assert len(store.requests) == asked
    reader.hold([1], lambda _: (whole, np.array([20])))
    assert len(store.requests) > asked


def test_an_epoch_moves_each_byte_and_each_index_once(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore
) -> None:
    dataset, fetched = open_dataset(), threading.Semaphore(0)
    dataset.cache.tell(lambda one: fetched.release() if one.shards_fetched else None)
    store.requests.clear()
    batches = iter(wdsdist.StreamingDataLoader(dataset, 6, num_workers=0))
    taken = [next(batches)]
    assert all(fetched.acquire(timeout=60) for _ in range(SHARDS))  # their copies may not be in place yet
    taken += batches
    assert all(is_right({"__key__": key, "bin": data}) for batch in taken for key, data in
               zip(batch["__key__"], batch["bin"], strict=True))  # fmt: skip
    sizes = {path: len(content) for path, content in store.files.items() if path.endswith(".tar")}
    moved = sum((one.stop or sizes[one.path]) - (one.start or 0) for one in store.requests if one.path in sizes)
    # Of a range of which little is there, all comes: at most a hundredth twice, and what was on the wire.
    assert sum(sizes.values()) <= moved <= 1.05 * sum(sizes.values())
    first = [divmod(int(key) + 0.5, SAMPLES) for key in taken[0]["__key__"]]
    middles = [(f"train/{int(shard):02}.tar", sample * sizes["train/00.tar"] / SAMPLES) for shard, sample in first]
    are_first = [
        len(part := range(one.start or 0, one.stop or sizes[one.path])) < SAMPLES // 2 * SIZE
        and any(one.path == path and int(middle) in part for path, middle in middles)
        for one in store.requests
        if one.path in sizes
    ]
    assert are_first[0]
    assert are_first == sorted(are_first, reverse=True)  # nothing is fetched ahead before
    assert dataset.cache.counters().bytes_fetched == moved
    indexes = [path for path in store.paths("read") if path.endswith("index")]
    assert sorted(indexes) == [f"train/{shard:02}.tar.wdsindex" for shard in range(SHARDS)]


def test_parts_are_taken_from_what_the_fetch_of_the_whole_shard_has_got(
    remote: Manifest, store: MemoryStore, tmp_path: Path
) -> None:
    cache, rest = ShardCache(tmp_path / "cache"), Fault("train/00.tar", "stall", after=1)
    store.plant(rest)
    part_bytes = len(store.files["train/00.tar"]) // 10
    with use_policy(RequestPolicy(part_bytes=part_bytes)), ThreadPoolExecutor(1) as pool:
        whole = pool.submit(cache.fetch_ahead, remote, 0)
        part = cached_path(remote, 0, tmp_path / "cache").with_suffix(".tar.wdspart")
        try:
            content = store.files["train/00.tar"]
            blocks = range(0, len(content), part_bytes)
            for _ in pauses(time.monotonic() + 60):
                got = part.read_bytes() if part.exists() else b""
                if found := [at for at in blocks if got[at:][:part_bytes] == content[at:][:part_bytes]]:
                    break
            members = np.arange(2) + 2 * min(found[0] // SIZE + 1, SAMPLES - 1)
            with closing(cache.pin_parts(remote, {0: PartNeeds(lambda _: members)})[0]) as pinned:
                assert pinned.has(members)
            assert {one.start for one in store.requests if one.start is not None} <= set(blocks)
        finally:
            store.heal()
        assert whole.result() is None


@pytest.mark.parametrize("are_parts", [False, True])
def test_a_batch_does_not_wait_for_the_connections_of_what_is_fetched_ahead(
    are_parts: bool, remote: Manifest, store: MemoryStore, tmp_path: Path
) -> None:
    def labels(index: ShardIndex) -> Int64s:
        return np.arange(1, 2 * SAMPLES, 2)

    cache = ShardCache(tmp_path / "cache", timeout=20)
    store.plant(Fault("train/00.tar", "stall"))
    with use_policy(RequestPolicy(part_bytes=64 * KB)), ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(cache.fetch_ahead, remote, 0, labels if are_parts else None)
        try:
            for _ in pauses(time.monotonic() + 10):
                if store.paths("read").count("train/00.tar") == (32 if are_parts else 16):  # as many as there are
                    break
            if are_parts:
                cache.pin_parts(remote, {1: samples_of(5)})[1].close()
            else:
                cache.pin(remote, 1).close()
            assert not ahead.done()
        finally:
            store.heal()
        assert ahead.result() is None


def test_processes_that_need_one_index_fetch_it_once(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore
) -> None:
    datasets, slow = [open_dataset() for _ in range(4)], Fault("train/00.tar.wdsindex", "slow", seconds=0.2)
    assert all(is_right(dataset[50]) for dataset in datasets)  # of another shard: all are ready
    store.plant(slow)
    with ThreadPoolExecutor(4) as pool:
        assert all(map(is_right, pool.map(lambda dataset: dataset[5], datasets)))
    assert store.paths("read").count("train/00.tar.wdsindex") == 1


def test_a_sparse_copy_of_a_shard_that_was_replaced_is_not_used(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore, tmp_path: Path
) -> None:
    assert is_right(open_dataset()[5])
    folder = tmp_path / "again"
    folder.mkdir()
    (folder / "00.tar").write_bytes(plain_tar([(f"{number:04}.bin", member(number + 1)) for number in range(SAMPLES)]))
    wdsdist.index(folder)
    store.files.update({f"train/{path.name}": path.read_bytes() for path in folder.iterdir()})
    again = wdsdist.StreamingDataset(f"{store.url}/train", cache_dir=tmp_path / "cache")
    assert bytes(again[5]["bin"]) == member(6)
    assert folders.copies(tmp_path / "cache") == []


def test_where_no_digest_would_tell_a_whole_fetch_takes_nothing_of_a_shard_that_was_replaced(
    store: MemoryStore, tmp_path: Path
) -> None:
    """Half of a shard would be old, and half new."""
    listed = json.loads(store.files["train/index.json"])
    for shard in listed["shardlist"]:
        shard.pop("sha256")
    files = {"train/index.json": json.dumps(listed).encode()}
    for name, content in store.files.items():
        if name.endswith(".wdsindex"):
            index = shard_index.loads(content, name)
            files[name] = shard_index.dumps(dataclasses.replace(index, sha256="", checksums=None))
    with MemoryStore({**store.files, **files}) as unlisted:
        remote, cache = wdsdist.open(f"{unlisted.url}/train"), ShardCache(tmp_path / "cache")
        cache.pin_parts(remote, {0: samples_of(5)})[0].close()
        new = plain_tar([(f"{n:04}.{kind}", b"%02d" % n if kind == "cls" else member(n + 1)) for n in range(SAMPLES)
                         for kind in ("bin", "cls")])  # fmt: skip
        unlisted.files["train/00.tar"] = new
        with cache.pin(remote, 0) as pinned:
            assert pinned.path.read_bytes() == new


@pytest.fixture
def dotted(tmp_path: Path) -> Path:
    """A folder with one shard whose names have two dots, indexed so that the first one ends the key."""
    folder = tmp_path / "packed"
    folder.mkdir()
    (folder / "00.tar").write_bytes(plain_tar([(f"a.v2.{number}.bin", member(number)) for number in range(SAMPLES)]))
    wdsdist.index(folder, key="first-dot")
    return folder


@pytest.mark.parametrize("is_whole", [False, True])
def test_the_index_of_a_data_set_that_was_indexed_anew_replaces_that_in_the_cache(
    dotted: Path, tmp_path: Path, is_whole: bool
) -> None:
    with MemoryStore(files_in(dotted)) as store:
        cache = ShardCache(tmp_path / "cache", limit=3 << 20)
        before = wdsdist.open(store.url)
        if is_whole:
            cache.pin(before, 0).close()
        else:
            cache.pin_parts(before, {0: PartNeeds(lambda _: np.arange(3))})[0].close()
        wdsdist.index(dotted, key="last-dot")
        store.files.update(files_in(dotted))
        dataset = wdsdist.StreamingDataset(store.url, cache_dir=tmp_path / "cache", cache_limit=3 << 20)
        assert [(dataset[n]["__key__"], bytes(dataset[n]["bin"])) for n in (0, 7)] == [
            ("a.v2.0", member(0)), ("a.v2.7", member(7)),
        ]  # fmt: skip
        store.requests.clear()
        again = wdsdist.StreamingDataset(store.url, cache_dir=tmp_path / "cache", cache_limit=3 << 20)
        assert bytes(again[7]["bin"]) == member(7)
        assert store.paths("read") == ["index.json"]
        assert not is_whole or sparse_copies(tmp_path) == []
        with cache._space.alone(storage.Deadline(1)) as ledger:
            assert ledger.read() == sum(one.size for one in all_held(tmp_path / "cache"))


def test_an_index_is_replaced_also_for_who_has_not_said_what_it_needs(dotted: Path, tmp_path: Path) -> None:
    """As ``dataset[i]`` beside a job: without its index a copy would be scanned whenever it is opened."""
    with MemoryStore(files_in(dotted)) as store:
        job, cache = (ShardCache(tmp_path / "cache", limit=3 << 20) for _ in range(2))
        cache.pin(wdsdist.open(store.url), 0).close()
        job.expect([Need("another", 0)])
        wdsdist.index(dotted, key="last-dot")
        store.files.update(files_in(dotted))
        with cache.pin(wdsdist.open(store.url), 0) as pinned:
            assert pinned.path.with_name("00.tar.wdsindex").read_bytes() == store.files["00.tar.wdsindex"]


def test_an_index_without_a_digest_replaces_that_of_a_copy_too(dotted: Path, tmp_path: Path) -> None:
    """As of remote shards, of which `wdsdist.index` reads headers alone."""
    with MemoryStore(files_in(dotted)) as store:
        cache = ShardCache(tmp_path / "cache")
        cache.pin(wdsdist.open(store.url), 0).close()
        wdsdist.index(dotted, key="last-dot")
        listed = json.loads((dotted / "index.json").read_bytes())
        listed["shardlist"][0].pop("sha256")
        index = shard_index.loads((dotted / "00.tar.wdsindex").read_bytes(), "")
        index = dataclasses.replace(index, sha256="", checksums=None)
        store.files |= {"index.json": json.dumps(listed).encode(), "00.tar.wdsindex": shard_index.dumps(index)}
        with cache.pin(wdsdist.open(store.url), 0) as pinned:
            assert pinned.index.num_samples == SAMPLES
        assert store.paths("read").count("00.tar") == 1


def test_an_error_leaves_no_sparse_copy_locked(store: MemoryStore, tmp_path: Path, remote: Manifest) -> None:
    cache = ShardCache(tmp_path / "cache", timeout=60)
    store.plant(Fault("train/01.tar", "not-found"))
    with pytest.raises(NotFoundError) as error:
        cache.pin_parts(remote, {number: PartNeeds(lambda _: np.array([1])) for number in (0, 1)})
    for copy in sparse_copies(tmp_path):
        with LockableFile(copy) as file:
            assert file.lock(alone=True)
    assert error.value.__traceback__ is not None  # which keeps all that its frames refer to


def test_a_claim_of_no_bytes_claims_nothing(tmp_path: Path) -> None:
    with (
        LockableFile(tmp_path / "a", writable=True, create=True) as one,
        LockableFile(tmp_path / "a", writable=True) as other,
    ):
        assert one.claim(5, 5)
        assert other.claim(10, 20)
        assert not one.claim(10, 11)


def test_a_whole_copy_takes_the_place_of_a_sparse_one(
    open_dataset: Callable[..., wdsdist.StreamingDataset], remote: Manifest, tmp_path: Path
) -> None:
    dataset = open_dataset()
    assert is_right(dataset[0])
    assert len(sparse_copies(tmp_path)) == 1
    ShardCache(tmp_path / "cache").pin(remote, 0).close()
    assert folders.copies(tmp_path) == ["00.tar"]
    assert sparse_copies(tmp_path) == []
    assert is_right(dataset[0])
    assert is_right(dataset[1])


def test_a_sparse_copy_that_was_read_when_the_whole_one_came_goes_later(
    open_dataset: Callable[..., wdsdist.StreamingDataset], remote: Manifest, tmp_path: Path
) -> None:
    reader = open_dataset().sample_reader
    place = np.array([0])
    held = reader.batch(place, place, place, None, None, deferred=True)["bin"]
    ShardCache(tmp_path / "cache").pin(remote, 0).close()
    assert len(sparse_copies(tmp_path)) == 1
    assert bytes(held[0]) == member(0)
    reader.shard_reader.release()
    del held
    ShardCache(tmp_path / "cache").pin(remote, 0).close()
    assert sparse_copies(tmp_path) == []


def test_samples_at_random_end_in_a_whole_copy_where_they_are_half_of_a_shard(
    open_dataset: Callable[..., wdsdist.StreamingDataset], tmp_path: Path
) -> None:
    dataset = open_dataset()
    assert all(is_right(dataset[number]) for number in range(SAMPLES // 2))
    assert folders.copies(tmp_path) == []
    assert all(is_right(dataset[number]) for number in range(SAMPLES))
    assert folders.copies(tmp_path) == ["00.tar"]


@pytest.mark.parametrize("are_written", [False, True])
def test_a_writer_that_is_killed_leaves_no_extent_without_its_bytes(
    are_written: bool, open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore, tmp_path: Path
) -> None:
    def fetch_and_die() -> None:
        dataset, asked = open_dataset(), Fault("train/00.tar", "stall")
        if are_written:  # they are counted before they are checked
            dataset.cache.tell(lambda _: os.kill(os.getpid(), 9))
        else:
            store.plant(asked)
        threading.Thread(target=dataset.__getitem__, args=(5,), daemon=True).start()
        assert asked.reached.wait(60)
        os.kill(os.getpid(), 9)

    assert folders.status(folders.forked(fetch_and_die)) == -9
    (copy,) = sparse_copies(tmp_path)
    assert len(ExtentMap(copy.with_suffix(".wdsextents")).extents()) == 0
    assert is_right(open_dataset()[5])


def test_a_full_disk_is_an_error_before_anything_is_fetched(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    dataset = open_dataset()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(CacheError, match=r"has no room for parts of 1 shard .* free some"):
            dataset[5]
    assert "train/00.tar" not in store.paths("read")
    assert is_right(dataset[5])


def test_wrong_bytes_are_fetched_once_more(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore, tmp_path: Path
) -> None:
    dataset = open_dataset()
    store.plant(Fault("train/00.tar", "wrong-bytes", times=1))
    assert is_right(dataset[5])
    assert folders.copies(tmp_path) == []


def test_bytes_that_stay_wrong_are_an_error_that_names_the_shard(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore, tmp_path: Path
) -> None:
    dataset = open_dataset()
    store.plant(Fault("train/00.tar", "wrong-bytes"))
    with pytest.raises(ShardDamagedError, match=r"00\.tar does not have the digest"):
        dataset[5]
    assert sparse_copies(tmp_path) == folders.leftovers(tmp_path / "cache") == []
    store.heal()
    assert is_right(dataset[5])


def test_wrong_bytes_in_a_part_are_found_and_repaired(
    open_dataset: Callable[..., wdsdist.StreamingDataset], remote: Manifest, tmp_path: Path
) -> None:
    where = {"cached": True, "cache_dir": tmp_path / "cache"}
    assert is_right(open_dataset()[5])
    assert wdsdist.verify(remote, **where) == []
    (copy,) = sparse_copies(tmp_path)
    with copy.open("r+b") as file:
        file.seek(int(ExtentMap(copy.with_suffix(".wdsextents")).extents()[0, 0]) + 2000)
        file.write(b"?")
    (damage,) = wdsdist.verify(remote, **where)
    assert damage.shard == "00.tar"
    assert "wrong bytes in 1 of the 2 members that the cache holds of it, such as 0005.bin" in damage.problem
    (repaired,) = wdsdist.repair(remote, [damage], **where)
    assert repaired.done, repaired
    assert folders.copies(tmp_path) == ["00.tar"]
    assert wdsdist.verify(remote, **where) == []


def test_to_verify_a_cache_opens_nothing_there_for_writing(
    open_dataset: Callable[..., wdsdist.StreamingDataset], remote: Manifest, tmp_path: Path
) -> None:
    assert is_right(open_dataset()[5])
    with watched() as seen:
        assert wdsdist.verify(remote, cached=True, cache_dir=tmp_path / "cache") == []
    assert not [path for path in seen.written if path.is_relative_to(tmp_path / "cache")]


def test_a_shard_that_changes_between_parts_is_an_error(
    packed: Path, tmp_path: Path, open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore
) -> None:
    dataset = open_dataset()
    assert is_right(dataset[5])
    changed = (packed / "00.tar").read_bytes()[::-1]
    store.files["train/00.tar"] = changed
    with pytest.raises(ShardDamagedError, match=r"00\.tar"):
        dataset[6]


def test_checked_bytes_are_not_written_again_with_those_around_them(
    remote: Manifest, store: MemoryStore, tmp_path: Path
) -> None:
    """Somebody may be reading them; what comes with its neighbours in one request is not checked."""
    cache = ShardCache(tmp_path / "cache")

    def pinned(*members: int) -> PinnedPart:
        return cache.pin_parts(remote, {0: PartNeeds(lambda _: np.array(members))})[0]

    with closing(pinned(1)) as part:
        place = slice(*part.places(np.array([1]))[0].tolist())
        checked = part.path.read_bytes()[place]
        store.files["train/00.tar"] = (
            store.files["train/00.tar"][: place.start] + b"?" * len(checked) + store.files["train/00.tar"][place.stop :]
        )
        with closing(pinned(0, 2)) as around:
            assert around.has(np.array([0, 1, 2]))
            assert around.path.read_bytes()[place] == checked


def test_a_shard_that_is_gone_is_an_error(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore
) -> None:
    store.plant(Fault("train/00.tar", "not-found"))
    with pytest.raises(NotFoundError, match=r"00\.tar does not exist"):
        open_dataset()[5]


def test_jobs_share_what_each_of_them_fetches(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore
) -> None:
    datasets = [open_dataset() for _ in range(4)]
    store.requests.clear()
    with ThreadPoolExecutor(4) as pool:
        for dataset, first in zip(datasets, range(0, 16, 4), strict=True):
            pool.submit(lambda dataset=dataset, first=first: [dataset[first + n] for n in range(4)]).result()
    assert all(is_right(datasets[0][number]) for number in range(16))
    assert store.paths("read").count("train/00.tar") == 16


def test_what_one_job_is_fetching_another_waits_for(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore
) -> None:
    ours, theirs = multiprocessing.Pipe()

    def wait_for_it() -> None:
        ours.close()
        theirs.recv()
        with use_policy(RequestPolicy(first_warning=0.02)), heard(theirs.send):
            assert is_right(open_dataset()[5])
        assert "train/00.tar" not in store.paths("read")

    another, stall = folders.forked(wait_for_it), Fault("train/00.tar", "stall")
    store.plant(stall)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(open_dataset().__getitem__, 5)
        assert stall.reached.wait(60)
        ours.send("begin")
        assert ours.recv().endswith("another process is fetching it)")
        store.heal()
        assert is_right(running.result())
    assert folders.status(another) == 0
    assert store.paths("read").count("train/00.tar") == 1


def samples_of(*numbers: int) -> PartNeeds:
    """What a reader needs that needs some samples of a shard, of two members each."""
    return PartNeeds(lambda _: np.array([member for number in numbers for member in (2 * number, 2 * number + 1)]))


def test_what_was_claimed_is_free_for_others_afterwards(remote: Manifest, tmp_path: Path) -> None:
    one, other = (ShardCache(tmp_path / "cache").pin_parts(remote, {0: samples_of(5)})[0] for _ in range(2))
    with closing(one), closing(other):
        places = one.places(np.array([12, 13]))
        with one.claimed(places, gap=0) as mine, other.claimed(places, gap=0) as theirs:
            assert (len(mine), len(theirs)) == (2, 0)
        with other.claimed(places, gap=0) as theirs:
            assert len(theirs) == 2


def test_a_warning_says_that_another_process_fetches_what_is_waited_for(remote: Manifest, tmp_path: Path) -> None:
    caches = [ShardCache(tmp_path / "cache", timeout=20) for _ in range(2)]
    with contextlib.ExitStack() as theirs:
        held = theirs.enter_context(closing(caches[0].pin_parts(remote, {0: samples_of(5)})[0]))
        theirs.enter_context(held.claimed(held.places(np.array([12, 13])), gap=0))
        with use_policy(RequestPolicy(first_warning=0.02)), heard(lambda _: theirs.close()) as lines:
            caches[1].pin_parts(remote, {0: samples_of(6)})[0].close()
    assert lines[0].startswith("still waiting for ")
    assert lines[0].endswith("/train/00.tar (0 s, another process is fetching it)")


def test_who_waits_for_parts_in_vain_is_told_what_keeps_them_from_coming(
    remote: Manifest, store: MemoryStore, tmp_path: Path
) -> None:
    caches = [ShardCache(tmp_path / "cache", timeout=timeout) for timeout in (20, 0.2)]
    with closing(caches[0].pin_parts(remote, {0: samples_of(5)})[0]) as theirs:
        store.plant(Fault("train/00.tar", "error", error=PermissionError("the store has gone")))
        with theirs.claimed(theirs.places(np.array([12, 13])), gap=0), pytest.raises(StorageError, match="has gone"):
            caches[1].pin_parts(remote, {0: samples_of(6)})


def test_samples_that_come_between_those_that_are_needed_are_there_too(
    remote: Manifest, store: MemoryStore, tmp_path: Path
) -> None:
    with closing(ShardCache(tmp_path / "cache").pin_parts(remote, {0: samples_of(0, 1, 2, 3, 5, 6, 7, 8)})[0]) as part:
        assert store.paths("read").count("train/00.tar") == 1
        assert part.has(np.arange(18))
        assert not part.has(np.arange(18, 20))


def test_headers_that_came_with_samples_are_not_asked_for_again(
    remote: Manifest, store: MemoryStore, tmp_path: Path
) -> None:
    cache = ShardCache(tmp_path / "cache")
    with closing(cache.pin_parts(remote, {0: samples_of(*range(3, 13))})[0]) as part:
        assert len(part.map.extents()) == 1
    cache.pin(remote, 0).close()
    assert cache.counters().bytes_fetched == remote.read_sizes[0]
    assert store.paths("read").count("train/00.tar") == 3  # what is needed, and what lies before and behind


def test_wrong_bytes_between_samples_are_not_there(remote: Manifest, store: MemoryStore, tmp_path: Path) -> None:
    cache, content = ShardCache(tmp_path / "cache"), bytearray(store.files["train/00.tar"])
    with closing(cache.pin_parts(remote, {0: samples_of(20)})[0]) as part:
        place = part.places(np.array([2 * 5]))[0]
    content[place[0] + 1000] ^= 1
    store.files["train/00.tar"] = bytes(content)
    with closing(cache.pin_parts(remote, {0: samples_of(1, 2, 3, 4, 6, 7, 8, 9)})[0]) as part:
        assert part.has(np.setdiff1d(np.arange(2, 20), [2 * 5]))
        assert not part.has(np.array([2 * 5]))
        extents = part.map.extents()
        assert not ((extents[:, 0] < place[1]) & (extents[:, 1] > place[0])).any()


def store_with_empty_members(source: Path) -> MemoryStore:
    """Return a store with one shard, whose samples have a text without a byte each."""
    source.mkdir()
    members = [(f"{n:04}.{kind}", member(n) * (kind == "bin")) for n in range(SAMPLES) for kind in ("bin", "txt")]
    (source / "00.tar").write_bytes(plain_tar(members))
    wdsdist.index(source)
    return MemoryStore({f"train/{path.name}": path.read_bytes() for path in source.iterdir()})


def test_members_without_a_byte_are_not_recorded_with_each_range_that_comes(tmp_path: Path) -> None:
    with store_with_empty_members(tmp_path / "train") as store:
        remote, cache = wdsdist.open(f"{store.url}/train"), ShardCache(tmp_path / "cache")
        for ranges, number in enumerate((5, 20), 1):
            with closing(cache.pin_parts(remote, {0: samples_of(number)})[0]) as part:
                assert len(part.map.extents()) == ranges


@pytest.mark.parametrize("has_checksums", [True, False])
def test_members_without_a_byte_come_with_their_headers_and_keep_nothing_waiting(
    has_checksums: bool, tmp_path: Path
) -> None:
    with store_with_empty_members(tmp_path / "train") as store:
        if not has_checksums:
            index = shard_index.loads(store.files["train/00.tar.wdsindex"], "00.tar.wdsindex")
            store.files["train/00.tar.wdsindex"] = shard_index.dumps(dataclasses.replace(index, checksums=None))
        remote, cache = wdsdist.open(f"{store.url}/train"), ShardCache(tmp_path / "cache", timeout=5)
        with closing(cache.pin_parts(remote, {0: samples_of(*range(3, 13))})[0]) as part:
            assert part.has(np.arange(6, 26))
        cache.pin(remote, 0).close()
        assert store.paths("read").count("train/00.tar") == 3  # what is needed, and what lies before and behind
        assert cache.counters().bytes_fetched == remote.read_sizes[0]


@pytest.mark.parametrize(("rate", "requests"), [(1e6, 4), (90e6, 1)])
def test_a_whole_fetch_takes_what_is_there_unless_to_fetch_it_again_is_faster_than_more_requests(
    store: MemoryStore, tmp_path: Path, rate: float, requests: int
) -> None:
    with MemoryStore(store.files) as far:
        note_speed(far.url, delay=0.02, size=1 << 20, seconds=(1 << 20) / rate)
        remote, cache = wdsdist.open(f"{far.url}/train"), ShardCache(tmp_path / "cache")
        cache.pin_parts(remote, {0: samples_of(5, 20, 30)})[0].close()
        far.requests.clear()
        cache.pin(remote, 0).close()
        assert far.paths("read").count("train/00.tar") == requests


def test_a_whole_fetch_asks_for_no_headers_between_members_that_are_there(
    remote: Manifest, store: MemoryStore, tmp_path: Path
) -> None:
    cache = ShardCache(tmp_path / "cache")
    for first, stop in ((10, 14), (14, 18), (6, 10)):  # by requests of their own, side by side
        cache.pin_parts(remote, {0: PartNeeds(lambda _, near=(first, stop): np.arange(*near))})[0].close()
    store.requests.clear()
    cache.pin(remote, 0).close()
    asked = [(one.start, one.stop) for one in store.requests if one.path == "train/00.tar"]
    assert len(asked) == 2  # what lies before, and what lies behind


def test_samples_that_nobody_fetches_do_not_wait_for_others_in_the_same_range(
    remote: Manifest, store: MemoryStore, tmp_path: Path
) -> None:
    caches = [ShardCache(tmp_path / "cache") for _ in range(2)]
    theirs, ours = Fault("train/00.tar", "stall", times=1), Fault("train/00.tar", "stall")
    store.plant(theirs, ours)
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(caches[0].pin_parts, remote, {0: samples_of(0, 1, 2, 3)})]
        try:
            assert theirs.reached.wait(60)
            running.append(pool.submit(caches[1].pin_parts, remote, {0: samples_of(3, 5, 6, 7, 8)}))
            assert ours.reached.wait(10)
        finally:
            store.heal()
        for one in running:
            one.result()[0].close()
    assert store.paths("read").count("train/00.tar") == 2


def test_what_another_process_fetches_keeps_nothing_around_it_waiting(
    remote: Manifest, store: MemoryStore, tmp_path: Path
) -> None:
    caches = [ShardCache(tmp_path / "cache", timeout=20) for _ in range(2)]
    with closing(caches[0].pin_parts(remote, {0: samples_of(20)})[0]) as theirs, ThreadPoolExecutor(1) as pool:
        with theirs.claimed(theirs.places(np.array([2 * 5])), gap=0):
            running = pool.submit(caches[1].pin_parts, remote, {0: samples_of(4, 5, 6)})
            for _ in pauses(time.monotonic() + 10):
                if is_there := theirs.has(np.array([8, 9, 11, 12, 13])):
                    break
        assert is_there
        running.result()[0].close()


def test_parts_of_before_the_last_boot_are_fetched_again(
    open_dataset: Callable[..., wdsdist.StreamingDataset], store: MemoryStore, tmp_path: Path
) -> None:
    assert is_right(open_dataset()[5])
    folders.reboot(tmp_path)
    store.requests.clear()
    assert is_right(open_dataset()[5])
    assert "train/00.tar" in store.paths("read")


def test_parts_are_evicted_for_others_but_not_while_they_are_read(
    open_dataset: Callable[..., wdsdist.StreamingDataset], tmp_path: Path, remote: Manifest
) -> None:
    limit = 400 * KB
    dataset = open_dataset(cache_limit=limit)
    held = dataset.sample_reader.batch(np.array([0]), np.array([0]), np.array([0]), None, None, deferred=True)["bin"]
    for number in [*range(1, 5), *range(SAMPLES, SAMPLES + 3), *range(2 * SAMPLES, 2 * SAMPLES + 3)]:
        assert is_right(dataset[number])
        assert (
            sum(path.stat().st_blocks * 512 for path in (tmp_path / "cache").glob("?" * 24 + "/*")) <= limit + 64 * KB
        )
    assert bytes(held[0]) == member(0)
    assert cached_path(remote, 0, tmp_path / "cache").with_suffix(".tar.wdssparse").exists()


def test_a_substitute_is_fetched_by_itself(
    open_dataset: Callable[..., wdsdist.StreamingDataset], tmp_path: Path
) -> None:
    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["__key__"] == "0005":
            raise wdsdist.BadSample("on purpose")
        return sample

    dataset = open_dataset(transform=transform, on_error="replace", shuffle=False)
    loader = wdsdist.StreamingDataLoader(dataset, 4, num_workers=0)
    batches = iter(loader)
    taken = [next(batches) for _ in range(2)]
    assert all(is_right({"__key__": key, "bin": data}) for batch in taken for key, data in
               zip(batch["__key__"], batch["bin"], strict=True))  # fmt: skip


def test_a_server_without_ranges_gives_the_whole_shard(packed: Path, tmp_path: Path) -> None:
    with served(packed, ranges=False) as server:
        dataset = wdsdist.StreamingDataset(server.url, cache_dir=tmp_path / "cache")
        assert is_right(dataset[5])
        assert server.asked.count("/00.tar") == 2
    assert folders.copies(tmp_path) == ["00.tar"]
