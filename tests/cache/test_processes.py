"""The cache as several processes share it, some of which are killed."""

from __future__ import annotations

import json
import os
import random
import resource
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import folders, forked
from tests.support.folders import SHARDS
from tests.support.programs import command
from tests.support.web import Web
from wdsdist import storage
from wdsdist.cache import Need, ShardCache, cached_path, space
from wdsdist.cache.copies import Stamp
from wdsdist.cache.shard_cache import BUSY
from wdsdist.errors import CacheError
from wdsdist.samples.shard_reader import ShardReader
from wdsdist.shards.manifest import Manifest


class Job:
    """Reader process of a cache: it opens all shards, says when it is ready, and at its end what it cost."""

    def __init__(self, web: Web, folder: Path, *arguments: int) -> None:
        pipe, self._errors = (folder.parent / f"{secrets.token_hex(4)}-{name}" for name in ("output", "errors"))
        os.mkfifo(pipe)
        job = command("reading_job", web.url, folder, *arguments)[1:]
        self.process = forked.start(*job, stdout=str(pipe), stderr=str(self._errors))
        self._output = pipe.open()

    def is_ready(self) -> bool:
        return self._output.readline() == "ready\n"

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def finish(self) -> dict[str, int]:
        output = self._end()
        assert self.process.exitcode == 0, self._errors.read_text()
        counts: dict[str, int] = json.loads(output.splitlines()[-1])
        return counts

    def _end(self) -> str:
        with self._output:
            output = self._output.read()
        self.process.join()
        return output


def greatest_use(folder: Path, jobs: list[Job]) -> int:
    """Watch a folder until all jobs have ended, and return the most that was ever in it."""
    most = 0
    while any(job.process.exitcode is None for job in jobs):
        if (folder / ".lock").exists():
            most = max(most, folders.use_now(folder))
        threading.Event().wait(0.002)  # the processes need the lock too
    return most


def test_without_a_limit_each_shard_is_fetched_once(web: Web, packed: Path, tmp_path: Path) -> None:
    jobs = [Job(web, tmp_path / "cache", 0, seed, 2) for seed in range(4)]
    counts = [job.finish() for job in jobs]
    assert sum(count["fetches"] for count in counts) == SHARDS
    assert len(folders.copies(tmp_path)) == SHARDS
    assert list((tmp_path / "cache" / "readers").iterdir()) == []


@pytest.mark.parametrize(("processes", "together"), [pytest.param(4, 1, marks=pytest.mark.slow), (2, 3)])
def test_processes_share_room_for_three_shards(
    web: Web, tmp_path: Path, room: int, processes: int, together: int
) -> None:
    folder = tmp_path / "cache"
    jobs = [Job(web, folder, 3 * room, seed, together) for seed in range(processes)]
    assert 2 * room < greatest_use(folder, jobs) <= 3 * room
    counts = [job.finish() for job in jobs]
    assert folders.leftovers(folder) == []
    fetches = sum(count["fetches"] for count in counts)
    # Of a batch of several, some may be evicted for an elder one before the others are there.
    assert SHARDS <= fetches <= (1 if together == 1 else 2) * len(jobs) * SHARDS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_any_moment_they_leave_nothing_that_hurts(web: Web, tmp_path: Path, room: int, rounds: int) -> None:
    folder = tmp_path / "cache"
    moments = random.Random(0)
    survivor = Job(web, folder, 3 * room, 99, 2)
    for seed in range(rounds):
        jobs = [Job(web, folder, 3 * room, seed, 2) for _ in range(2)]
        assert all(job.is_ready() for job in jobs)
        threading.Event().wait(moments.uniform(0, 0.25))
        for job in jobs:
            job.kill()
    survivor.finish()
    last = Job(web, folder, 3 * room, 1000, 3)
    assert greatest_use(folder, [last]) <= 3 * room
    last.finish()
    assert folders.leftovers(folder) == []
    assert len(folders.copies(folder)) == 3


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(function: Callable[..., Any]) -> Callable[..., Any]:
    def do_and_die(*arguments: Any, **more: Any) -> None:
        function(*arguments, **more)
        die()

    return do_and_die


DEATHS: dict[str, list[tuple[object, str, Callable[..., Any]]]] = {
    "before the first byte": [(storage, "begin_fetch", die)],
    "with all bytes": [(storage.Fetching, "result", after(storage.Fetching.result))],
    "before the copy has its name": [(Path, "replace", die)],
    "between name and stamp": [(space, "stamp", die)],
    "with the reservation half written": [(Stamp, "write", lambda _, path: (path.write_text("{"), die()))],
    "before a copy is emptied": [(os, "truncate", die)],
    "with a copy emptied": [(os, "truncate", after(os.truncate))],
    "with a copy removed": [(Path, "unlink", after(Path.unlink))],
}


@pytest.mark.parametrize("moment", DEATHS)
def test_killed_at_each_step_they_leave_nothing_that_hurts(
    moment: str, remote: Manifest, tmp_path: Path, room: int, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ShardCache(tmp_path / "cache", limit=2 * room, timeout=60)
    for number in (0, 1):
        cache.pin(remote, number).close()

    def fetch() -> None:
        for owner, name, replacement in DEATHS[moment]:
            setattr(owner, name, replacement)
        ShardCache(tmp_path / "cache", limit=2 * room, timeout=60).pin(remote, 2)

    assert folders.status(folders.forked(fetch)) == -signal.SIGKILL
    assert folders.use(tmp_path / "cache") <= 2 * room
    for number in (3, 0, 1, 2):
        with cache.pin(remote, number) as pinned:
            assert pinned.path.read_bytes() == (packed / f"{number:02}.tar").read_bytes()
        assert folders.use(tmp_path / "cache") <= 2 * room
        if number == 1:  # what was killed is not needed, and goes all the same
            assert folders.lonely(tmp_path / "cache") == []


@pytest.mark.parametrize("shards", [None, 3])
def test_every_start_sweeps_the_lists_of_the_dead(
    remote: Manifest, tmp_path: Path, room: int, shards: int | None
) -> None:
    folder = tmp_path / "cache"

    def read_and_die() -> None:
        cache = ShardCache(folder)
        cache.expect([Need("a", 0)])
        cache.pin(remote, 0)
        die()

    living = ShardCache(folder)
    living.expect([Need("b", 0)])
    mine = sorted((folder / "readers").iterdir())
    for _ in range(2):
        assert folders.status(folders.forked(read_and_die)) == -signal.SIGKILL
    assert len(list((folder / "readers").iterdir())) >= len(mine) + 2 == 4
    later = ShardCache(folder, limit=None if shards is None else shards * room)
    later.expect([Need("c", 0)])
    left = set((folder / "readers").iterdir())
    assert left > set(mine)
    assert len(left) == len(mine) + 2


def test_a_lock_ends_with_its_process_though_a_fork_of_it_lives_on(remote: Manifest, tmp_path: Path) -> None:
    """The fork has inherited the map and with it another descriptor; neither may keep the lock."""
    arrived, alive = os.pipe(), os.pipe()

    def pin_and_die() -> None:
        reader = ShardReader(remote, ShardCache(tmp_path / "cache"))
        reader.shard(0)
        folders.forked(live_on)
        os.read(arrived[0], 1)
        die()

    def live_on() -> None:
        os.close(alive[1])
        os.write(arrived[1], b"x")
        os.read(alive[0], 1)

    assert folders.status(folders.forked(pin_and_die)) == -signal.SIGKILL
    try:
        assert folders.is_free(cached_path(remote, 0, tmp_path / "cache"))
    finally:
        for end in (*arrived, *alive):
            os.close(end)


def test_a_program_ends_though_a_thread_that_is_fetching_ends_with_it(tmp_path: Path) -> None:
    """It is stopped wherever it is, also while it opens or closes a file."""
    assert subprocess.run(command("ending_while_locked", tmp_path / "file"), timeout=580).returncode == 0


def test_a_fork_holds_nothing_and_takes_nothing_from_its_parent(remote: Manifest, tmp_path: Path) -> None:
    reader = ShardReader(remote, ShardCache(tmp_path / "cache"))
    shard = reader.shard(0)
    first = bytes(shard.member(0, 0))
    copy = cached_path(remote, 0, tmp_path / "cache")

    def look() -> None:
        reader.release()
        assert not folders.is_free(copy), "the child unlocked what its parent holds"
        again = reader.shard(0)
        assert again is not shard
        assert bytes(again.member(0, 0)) == first

    assert folders.status(folders.forked(look)) == 0
    assert not folders.is_free(copy)
    assert bytes(shard.member(0, 0)) == first
    reader.release()
    assert folders.is_free(copy)


@pytest.fixture
def small_disk(tmp_path: Path, room: int) -> Iterator[Path]:
    """A disk with room for two shards."""
    disk = tmp_path / "disk"
    disk.mkdir()
    size = 2 * room // 4096 * 4096 + 10 * 4096
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)  # a frame that is kept may keep a file open


def test_a_full_disk_is_an_error_and_the_next_run_goes_on(
    remote: Manifest, small_disk: Path, room: int, packed: Path
) -> None:
    cache = ShardCache(small_disk / "cache")
    pins = [cache.pin(remote, number) for number in (0, 1)]
    with pytest.raises(CacheError, match=r"has no room for faulty://bucket/train/02\.tar of 30,720 bytes .* are free"):
        cache.pin(remote, 2)
    assert cache.fetch_ahead(remote, 2) not in (None, BUSY)
    assert [pinned.lock() for pinned in pins] == [True, True]
    for pinned in pins:
        pinned.close()
    del cache
    assert folders.leftovers(small_disk / "cache") == []
    limited = ShardCache(small_disk / "cache", limit=2 * room)
    for number in range(5):
        with limited.pin(remote, number) as pinned:
            assert pinned.path.read_bytes() == (packed / f"{number:02}.tar").read_bytes()


@pytest.mark.parametrize("limit", [0, 600, 4096, 30_000])
def test_files_that_may_not_grow_are_an_error_and_the_next_run_goes_on(
    limit: int, remote: Manifest, tmp_path: Path
) -> None:
    def fetch() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(CacheError, match=r"cache has no room for faulty://bucket/train/00\.tar"):
            ShardCache(tmp_path / "cache").pin(remote, 0)

    assert folders.status(folders.forked(fetch)) == 0
    assert folders.copies(tmp_path) == []
    with ShardCache(tmp_path / "cache").pin(remote, 0) as pinned:
        assert pinned.index.num_samples == 20


def test_a_folder_of_another_user_is_an_error(remote: Manifest, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    def fetch() -> None:
        os.setuid(65534)
        with pytest.raises(CacheError, match=r"cannot be used as a cache \(.*Permission denied"):
            ShardCache(tmp_path / "cache").pin(remote, 0)

    assert folders.status(folders.forked(fetch)) == 0
