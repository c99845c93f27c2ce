"""Chunks of remote shards: what is fetched, verified, evicted and shared, whoever is killed meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import wdsdist
from tests.cache.conftest import SAMPLES, SHARDS, SIZE, member
from tests.support.damage import flip
from tests.support.heard import heard
from tests.support.policies import use_policy
from tests.support.programs import command
from tests.support.sources import Shards
from tests.support.stores import used, watched
from tests.support.tars import plain_tar
from tests.support.web import Answer, Asked, Web, answering, served
from wdsdist._util.array_types import Int64s
from wdsdist.cache import chunk_cache
from wdsdist.cache.chunk_file import CHUNK, OpenCopy, room_of
from wdsdist.cache.copied_shard import CopiedShard
from wdsdist.cache.folder import LOCKS
from wdsdist.cache.locks import LockableFile
from wdsdist.errors import CacheError, ShardDamagedError
from wdsdist.shards.index import ShardIndex, beside
from wdsdist.shards.manifest import Manifest, Shard


def of(*samples: int, labels: bool = False) -> Callable[[ShardIndex], Int64s]:
    """Return the needs of some samples, which have a member ``bin`` and then ``cls``."""
    return lambda index: np.array([2 * sample + labels for sample in samples], np.int64)


def tar_bytes(web: Web) -> int:
    return sum(sent for name, sent in web.bytes_of.items() if name.endswith(".tar"))


def opened(shards: Shards) -> OpenCopy:
    return shards.cache.open(CopiedShard(shards.manifest, 0), shards.cache.deadline())


def is_right(shards: Shards, number: int) -> bool:
    shard = shards.shard(number)
    return all(bytes(shard.member(s, 0)) == member(number * SAMPLES + s) for s in range(SAMPLES))


@pytest.fixture
def shards(remote: Manifest, tmp_path: Path) -> Shards:
    return Shards(remote, tmp_path / "cache")


def test_a_sample_takes_its_index_and_one_range(web: Web, remote: Manifest, tmp_path: Path) -> None:
    dataset = wdsdist.StreamingDataset(remote, cache_dir=tmp_path / "cache", fields=("bin",))
    web.asked.clear()
    assert bytes(dataset[25]["bin"]) == member(25)
    assert sorted(Path(path).suffix for path in web.asked) == [".tar", ".wdsindex"]
    assert tar_bytes(web) <= SIZE + 2 * CHUNK
    dataset[25]
    assert len(web.asked) == 2


@pytest.mark.parametrize("needs", ["bin", "cls", "all"])
def test_what_an_epoch_needs_anyway_comes_with_a_batch(web: Web, shards: Shards, needs: str) -> None:
    epoch = None if needs == "all" else of(*range(SAMPLES), labels=needs == "cls")
    shards.source.coming = {0: epoch}  # type: ignore[attr-defined]
    shards.source.open({1: of(0)})  # the first batch has its chunks
    shards.source.open({0: of(0, labels=needs == "cls")})
    size = (web.folder / "00.tar").stat().st_size
    assert (web.bytes_of["00.tar"] > size / 2) == (needs != "cls")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_fetches_each_byte_about_once(web: Web, remote: Manifest, tmp_path: Path, workers: int) -> None:
    dataset = wdsdist.StreamingDataset(remote, cache_dir=tmp_path / "cache")
    loader = wdsdist.StreamingDataLoader(dataset, 8, num_workers=workers)
    seen = {key: bytes(part) for batch in loader for key, part in zip(batch["__key__"], batch["bin"], strict=True)}
    assert seen == {f"{number:04}": member(number) for number in range(SHARDS * SAMPLES)}
    size = sum(path.stat().st_size for path in web.folder.glob("*.tar"))
    stats = loader.stats()
    assert size <= stats.bytes_fetched == tar_bytes(web) <= 1.2 * size
    assert (stats.shards_fetched, stats.bytes_cached) == (SHARDS, 0)
    again = wdsdist.StreamingDataset(remote, cache_dir=tmp_path / "cache")
    loader = wdsdist.StreamingDataLoader(again, 8, num_workers=workers)
    assert sum(len(batch["bin"]) for batch in loader) == SHARDS * SAMPLES
    stats = loader.stats()
    assert (stats.shards_fetched, stats.bytes_fetched) == (0, 0)
    assert stats.bytes_cached == SHARDS * SAMPLES * SIZE + sum(len(str(n)) for n in range(SHARDS * SAMPLES))


def test_labels_and_thin_views_take_little_more_than_their_bytes(web: Web, remote: Manifest, tmp_path: Path) -> None:
    dataset = wdsdist.StreamingDataset(remote, fields=("cls",), cache_dir=tmp_path / "labels")
    assert sum(len(b["cls"]) for b in wdsdist.StreamingDataLoader(dataset, 8, num_workers=0)) == SHARDS * SAMPLES
    assert tar_bytes(web) <= SHARDS * SAMPLES * 2 * CHUNK
    web.bytes_of.clear()
    view = remote.select(keys=[f"{number:04}" for number in range(0, SHARDS * SAMPLES, 10)])
    dataset = wdsdist.StreamingDataset(view, cache_dir=tmp_path / "view")
    assert sum(len(b["cls"]) for b in wdsdist.StreamingDataLoader(dataset, 4, num_workers=0)) == 8
    assert tar_bytes(web) <= 8 * (SIZE + 3 * CHUNK)


def test_a_bit_that_flips_in_a_copy_is_found_at_the_next_read(web: Web, shards: Shards, remote: Manifest) -> None:
    assert is_right(shards, 1)
    web.bytes_of.clear()
    flip(shards.path(1), 5000)
    again = Shards(remote, shards.options.folder)
    assert is_right(again, 1)
    assert again.source.counters().retries == 1
    assert 0 < tar_bytes(web) <= SAMPLES * (SIZE + 2 * CHUNK)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, 5000),
    "longer": lambda path: os.truncate(path, path.stat().st_size + 1),
    "empty": lambda path: os.truncate(path, 0),
    "header": lambda path: flip(path, path.stat().st_size // CHUNK * CHUNK),
    "removed": Path.unlink,
    "index": lambda path: beside(path).write_bytes(beside(path).read_bytes()[:-40] + bytes(40)),
    "no index": lambda path: beside(path).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_copy_is_fetched_again(shards: Shards, remote: Manifest, damage: str) -> None:
    assert is_right(shards, 0)
    shards.source.release()
    DAMAGES[damage](shards.path(0))
    assert is_right(shards, 0)
    assert is_right(Shards(remote, shards.options.folder), 0)


def ranged(folder: Path, request: Asked, *, is_wrong: bool) -> Answer:
    """Answer a request for a range of a file, or with as many zeros."""
    content = (folder / request.path.rpartition("/")[2]).read_bytes()
    first, last = 0, len(content) - 1
    if "range" in request.headers:
        first, last = map(int, request.headers["range"].removeprefix("bytes=").split("-"))
    body = content[first : last + 1]
    return 206, {"Content-Range": f"bytes {first}-{last}/{len(content)}"}, bytes(len(body)) if is_wrong else body


@pytest.mark.parametrize(("times", "is_error"), [(1, False), (2, False), (100, True)])
def test_wrong_bytes_are_fetched_again_and_then_an_error_names_shard_and_member(
    packed: Path, tmp_path: Path, times: int, is_error: bool
) -> None:
    left = times

    def answer(request: Asked) -> Answer:
        nonlocal left
        is_wrong = request.path.endswith(".tar") and left > 0
        left -= is_wrong
        return ranged(packed, request, is_wrong=is_wrong)

    with answering(answer) as (url, _):
        remote = wdsdist.open(packed)
        shards = Shards(Manifest.of(url, remote.shards), tmp_path / "cache")
        left = 0
        kept = shards.source.open({2: of(1)})[2].member(1, 0)
        left = times
        if is_error:
            words = r"02\.tar does not hold .*member 'bin' of sample '0043' .* \(3 attempts in \d.*; training can "
            with pytest.raises(ShardDamagedError, match=words):
                shards.source.open({2: of(3)})[2].member(3, 0)
        else:
            assert bytes(shards.source.open({2: of(3)})[2].member(3, 0)) == member(43)
            assert shards.source.counters().retries == times
        assert bytes(kept) == member(41)  # a view of a copy that was cut would kill the process


def test_a_member_that_is_fetched_again_leaves_its_neighbour_as_it_was_verified(tmp_path: Path) -> None:
    tar = plain_tar([("0.bin", b"Y" * 6000), ("1.bin", b"X" * 300_000)])
    (tmp_path / "0.tar").write_bytes(tar)
    wdsdist.index(tmp_path)
    wrong = list[int]()  # bytes of the shard that the next answers change, and then one that both members share

    def answer(request: Asked) -> Answer:
        status, headers, body = ranged(tmp_path, request, is_wrong=False)
        first = int(headers["Content-Range"][6:].partition("-")[0])
        changed = bytearray(body)
        if request.path.endswith(".tar") and wrong:
            changed[wrong.pop(0) - first] ^= 1
        return status, headers, bytes(changed)

    with answering(answer) as (url, _):
        shards = Shards(Manifest.of(url, wdsdist.open(tmp_path).shards), tmp_path / "cache")
        read = lambda number: shards.source.open({0: lambda _: np.array([number])})[0].member(number, 0)  # noqa: E731
        kept = read(0)
        wrong += [200_000, 5000]
        assert bytes(read(1)) == b"X" * 300_000
        assert bytes(read(0)) == bytes(kept) == b"Y" * 6000


def test_never_more_shards_are_counted_than_there_are(packed: Path, tmp_path: Path) -> None:
    asked: Counter[str] = Counter()

    def answer(request: Asked) -> Answer:
        asked[request.path] += 1
        # Twice, so that the copy is made once more.
        return ranged(packed, request, is_wrong=request.path.endswith(".tar") and asked[request.path] < 3)

    with answering(answer) as (url, _):
        dataset = wdsdist.StreamingDataset(Manifest.of(url, wdsdist.open(packed).shards), cache_dir=tmp_path / "cache")
        loader = wdsdist.StreamingDataLoader(dataset, 8, num_workers=0)
        assert sum(len(batch["bin"]) for batch in loader) == SHARDS * SAMPLES
    assert loader.stats().retries >= 2
    assert loader.stats().shards_fetched == SHARDS


def test_views_keep_their_copy_and_what_is_released_may_be_evicted(remote: Manifest, tmp_path: Path) -> None:
    shards = Shards(remote, tmp_path / "cache")
    kept = shards.shard(0).member(3, 0)
    shards.source.release()
    assert not shards.cache.evict(shards.key(0))
    assert bytes(kept) == member(3)
    del kept
    assert shards.cache.evict(shards.key(0))
    assert not shards.path(0).exists()
    assert not beside(shards.path(0)).exists()
    assert is_right(shards, 0)


def test_a_view_that_goes_while_its_shard_is_opened_again_leaves_the_lock(
    remote: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Shards(remote, tmp_path / "cache")
    kept = [shards.shard(0).member(3, 0)]
    shards.source.release()
    hold = OpenCopy.hold
    monkeypatch.setattr(OpenCopy, "hold", lambda copy: (hold(copy), kept.clear())[0])  # as another thread may
    again = shards.shard(0).member(4, 0)
    shards.source.release()
    assert not shards.cache.evict(shards.key(0))
    assert bytes(again) == member(4)
    del again
    assert shards.cache.evict(shards.key(0))


def test_the_copy_of_a_shard_with_a_long_name_has_a_name_of_its_own_that_fits() -> None:
    shards = [Shard(f"{'ä' * 125}{end}.tar", 1, 10_240, "") for end in "xy"]
    manifest = Manifest.of("s3://bucket/data", shards)
    first, second = (beside(Path(CopiedShard(manifest, number).key)).name for number in range(2))
    assert first != second
    assert max(len(name.encode()) for name in (first, second)) <= 255


@pytest.mark.parametrize("copies", [0, 1, 2, 3])
def test_with_any_limit_an_epoch_is_complete_and_the_limit_holds(
    web: Web, remote: Manifest, tmp_path: Path, copies: int
) -> None:
    """A batch for which there is no room reads past the cache."""
    limit = copies * room_of(int(remote.sizes[0]), 8000) + 1000
    with watched(lambda: used(tmp_path / "cache")) as use:
        shards = Shards(remote, tmp_path / "cache", limit=limit)
        for start in (0, 1, 2):
            opened = shards.source.open(dict.fromkeys((start, start + 1)))
            for number, shard in opened.items():
                assert bytes(shard.member(7, 0)) == member(number * SAMPLES + 7)
            shards.source.release()
    assert max(use, default=0) <= limit
    assert max(use, default=0) >= (limit // 2 if copies else 0)


def test_a_data_set_that_was_uploaded_again_gets_new_copies(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    for content in (b"old", b"new"):
        folder.mkdir(exist_ok=True)
        (folder / "0.tar").write_bytes(plain_tar([("a.txt", content)]))
        wdsdist.index(folder)
        with served(folder) as web:
            shards = Shards(wdsdist.open(web.url), tmp_path / "cache")
            assert bytes(shards.shard(0).member(0, 0)) == content


def test_a_tar_of_which_headers_alone_were_indexed_gets_a_new_copy_if_its_store_has_another(tmp_path: Path) -> None:
    def answer(request: Asked) -> Answer:
        status, headers, body = ranged(tmp_path, request, is_wrong=False)
        return status, headers | {"ETag": str(hash(large))}, body

    with answering(answer) as (url, _):
        for large in (b"old!" * (3 << 20), b"new!" * (3 << 20)):
            (tmp_path / "0.tar").write_bytes(plain_tar([("a.bin", large)]))
            data = wdsdist.index(f"{url}/0.tar", output=tmp_path / "index")
            assert data.shard(0).sha256 == ""
            shards = Shards(data, tmp_path / "cache")
            assert bytes(shards.shard(0).member(0, 0)) == large


@pytest.mark.parametrize("what", ["index", "chunks"])
def test_a_claim_that_is_never_given_up_is_warned_about_and_an_error_in_time(
    remote: Manifest, tmp_path: Path, what: str
) -> None:
    shards = Shards(remote, tmp_path / "cache", timeout=0.3)
    shards.source.open({(0 if what == "chunks" else 1): of(0)})
    with contextlib.ExitStack() as stack:
        if what == "index":
            locks = stack.enter_context(LockableFile(tmp_path / "cache" / LOCKS, writable=True))
            assert locks.claim(1 << 40, 1 << 41)
        else:
            copy = shards.cache._existing(shards.source.shard(0))  # type: ignore[attr-defined]
            assert copy is not None
            stack.enter_context(copy.claimed(np.arange(copy.num_chunks)))
        stack.enter_context(use_policy(first_warning=0.05, next_warning=0.05))
        lines = stack.enter_context(heard(lambda _: None))
        with pytest.raises(CacheError, match=r"another process has been fetching .*/00\.tar for 0\.3 seconds"):
            shards.source.open({0: of(9)})
    assert lines[0].startswith("still waiting for http://")
    assert lines[0].endswith("/00.tar (0 s, another thread or process fetches it)")


def test_two_jobs_with_different_views_of_a_shard_keep_the_limit(remote: Manifest, tmp_path: Path) -> None:
    size = int(remote.sizes[0])
    limit = room_of(size, 8000) - size // 3
    first, second = (Shards(remote, tmp_path / "cache", limit=limit) for _ in range(2))
    for shards, samples in ((first, range(8)), (second, range(10, 18))):
        shards.cache.fetch_ahead(opened(shards), of(*samples), lambda: True)
    assert used(tmp_path / "cache") <= limit


def test_what_is_fetched_ahead_ends_between_requests_once_nobody_goes_on(web: Web, shards: Shards) -> None:
    web.bytes_of.clear()
    assert shards.cache.fetch_ahead(opened(shards), None, lambda: False)
    assert tar_bytes(web) == 0


def test_a_server_without_ranges_sends_a_whole_shard_once(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_cache, "REQUEST", 8 * CHUNK)
    with answering(lambda asked: (200, {}, (packed / Path(asked.path).name).read_bytes())) as (url, asked):
        shards = Shards(Manifest.of(url, wdsdist.open(packed).shards), tmp_path / "cache")
        assert shards.cache.fetch_ahead(opened(shards), None, lambda: True)
        assert sum(request.path.endswith(".tar") for request in asked) <= 3  # the first parts, and all of it
        assert is_right(shards, 0)


class Job:
    """A process that reads all shards in batches of some, in an order of its own."""

    def __init__(self, url: str, folder: Path, limit: int, seed: int) -> None:
        program = command("reading_job", url, folder, limit, seed, 2)
        self.process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)

    def cost(self) -> dict[str, int]:
        with self.process as running:  # which closes its end of the pipe
            assert running.stdout is not None
            cost: dict[str, int] = json.loads(running.stdout.read())
        assert self.process.returncode == 0
        return cost

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def limit(remote: Manifest) -> int:
    return 3 * room_of(int(remote.sizes[0]), 8000)


@pytest.mark.slow
@pytest.mark.parametrize("is_limited", [False, True])
def test_jobs_share_a_cache_and_killed_ones_leave_nothing_that_hurts(
    web: Web, tmp_path: Path, limit: int, is_limited: bool
) -> None:
    folder, chance = tmp_path / "cache", random.Random(0)
    with watched(lambda: used(folder)) as use:
        for _ in range(2):
            jobs = [Job(web.url, folder, limit if is_limited else 0, seed) for seed in range(3)]
            for job in jobs:
                assert job.process.stdout is not None
                assert job.process.stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0, 0.15))  # at any moment: no event marks it
            jobs.pop(0).kill()
            for job in jobs:
                job.cost()
    if is_limited:
        assert max(use) <= limit
    else:
        assert tar_bytes(web) <= 2 * sum(path.stat().st_size for path in web.folder.glob("*.tar"))
