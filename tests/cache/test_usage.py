"""The sum that a cache keeps of its bytes: right or known to be unknown, and it saves looking through the folder."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import folders
from tests.support.damage import flip
from tests.support.memory_store import MemoryStore
from wdsdist.cache import Need, ShardCache, copy_key
from wdsdist.cache.contents import usage
from wdsdist.cache.usage import all_held
from wdsdist.errors import NotFoundError
from wdsdist.shards.manifest import Manifest
from wdsdist.storage import Deadline

SHARDS = 8


ACTIONS: dict[str, Callable[[ShardCache, Manifest, int], object]] = {
    "pin": lambda cache, remote, number: cache.pin(remote, number).close(),
    "fetch ahead": lambda cache, remote, number: cache.fetch_ahead(remote, number),
    "fetch anew": lambda cache, remote, number: cache.pin(remote, number, anew=True).close(),
    "expect": lambda cache, remote, number: cache.expect([Need(copy_key(remote, number), 0)]),
    "flip": lambda cache, remote, number: flip(cache.path(remote, number)),
}


def counted(cache: ShardCache) -> tuple[int | None, int]:
    """Return what the ledger says, and what there is."""
    with cache._space.alone(Deadline(1)) as ledger:
        return ledger.read(), sum(one.size for one in all_held(cache._space.root))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(list(ACTIONS)), st.integers(0, SHARDS - 1)), max_size=25))
def test_the_sum_is_that_of_all_that_is_there(
    remote: Manifest, tmp_path: Path, room: int, steps: list[tuple[int, str, int]]
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    caches = [ShardCache(folder, limit=int(3.5 * room), timeout=60) for _ in range(2)]
    for which, action, number in steps:
        with contextlib.suppress(FileNotFoundError):
            ACTIONS[action](caches[which], remote, number)
        used, there = counted(caches[which])
        assert used == there <= 3.5 * room


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Each time that a cache folder, here that of the test, is looked through."""
    seen: list[Path] = []
    scandir = os.scandir

    def watched(path: Path) -> Any:
        if path == tmp_path:
            seen.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", watched)
    return seen


def test_a_cache_with_room_is_not_looked_through(
    remote: Manifest, tmp_path: Path, room: int, looks: list[Path]
) -> None:
    cache = ShardCache(tmp_path, limit=30 * room)
    for number in range(30):
        assert cache.fetch_ahead(remote, number) is None
    assert looks == [tmp_path]  # by a process that comes to it, which sweeps it


def test_a_full_cache_is_looked_through_for_several_copies_at_once(
    remote: Manifest, tmp_path: Path, room: int, looks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wdsdist.cache.space._SLACK", 4)
    cache = ShardCache(tmp_path, limit=12 * room)
    least = 12
    for number in range(30):
        cache.pin(remote, number).close()
        copies = list(cache.path(remote, 0).parent.glob("*.tar"))
        least = min(least, len(copies)) if number >= 12 else least
    assert least == 9  # as one came in, 4 had gone
    assert len(looks) == 1 + 5  # 18 came to a cache that was full, in fours


@pytest.mark.parametrize("moment", ["reserve", "evict", "install"])
def test_who_dies_at_it_leaves_no_sum(remote: Manifest, tmp_path: Path, room: int, moment: str) -> None:
    cache = ShardCache(tmp_path, limit=2 * room)
    for number in (0, 1):
        cache.pin(remote, number).close()

    def fetch() -> None:
        steps = {"reserve": (os, "posix_fallocate"), "evict": (os, "truncate"), "install": (Path, "replace")}
        owner, name = steps[moment]
        replace = Path.replace

        def die(*arguments: Any) -> Any:
            if owner is Path and arguments[1].suffix != ".tar":
                return replace(*arguments)
            return os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, name, die)
        cache.pin(remote, 2)

    assert folders.status(folders.forked(fetch)) == -signal.SIGKILL
    assert counted(cache)[0] is None
    ShardCache(tmp_path, limit=2 * room).pin(remote, 3).close()
    used, there = counted(cache)
    assert used == there <= 2 * room


def test_what_a_killed_fetch_had_reserved_beside_a_copy_counts_no_more(
    remote: Manifest, tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ShardCache(tmp_path).pin(remote, 0).close()

    def fetch_anew() -> None:
        monkeypatch.setattr(os, "posix_fallocate", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        ShardCache(tmp_path).pin(remote, 0, anew=True)

    assert folders.status(folders.forked(fetch_anew)) == -signal.SIGKILL
    cache = ShardCache(tmp_path, limit=3 * room)
    cache.pin(remote, 0, anew=True).close()
    used, there = counted(cache)
    assert used == there > room / 2


def test_what_was_put_there_counts_once_it_is_the_caches_own(
    remote: Manifest, packed: Path, tmp_path: Path, room: int
) -> None:
    cache = ShardCache(tmp_path, limit=3 * room)
    cache.pin(remote, 0).close()
    (cache.path(remote, 1)).write_bytes((packed / "01.tar").read_bytes())
    cache.pin(remote, 1).close()
    used, there = counted(cache)
    assert used == there > 1.5 * room


def test_the_sum_of_an_earlier_start_of_the_system_is_not_believed(remote: Manifest, tmp_path: Path, room: int) -> None:
    cache = ShardCache(tmp_path, limit=3 * room)
    cache.pin(remote, 0).close()
    assert counted(cache)[0]
    folders.reboot(tmp_path)
    assert counted(cache)[0] is None


def test_one_without_a_limit_keeps_no_sum_and_leaves_none(remote: Manifest, tmp_path: Path, room: int) -> None:
    limited = ShardCache(tmp_path, limit=9 * room)
    limited.pin(remote, 0).close()
    ShardCache(tmp_path).pin(remote, 1).close()
    assert counted(limited)[0] is None
    limited.pin(remote, 2).close()
    used, there = counted(limited)
    assert used == there


def test_what_is_discarded_or_given_up_counts_no_more(
    store: MemoryStore, remote: Manifest, tmp_path: Path, room: int
) -> None:
    cache = ShardCache(tmp_path, limit=3 * room, timeout=60)
    cache.pin(remote, 0).close()
    cache.pin(remote, 1).close()
    flip(cache.path(remote, 1))
    del store.files["train/01.tar"]
    with pytest.raises(NotFoundError):
        cache.pin(remote, 1)
    used, there = counted(cache)
    assert used == there < 1.5 * room


def test_a_copy_that_is_replaced_counts_beside_the_new_one(
    remote: Manifest, tmp_path: Path, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ShardCache(tmp_path, limit=3 * room)
    for number in (0, 1, 2):
        cache.pin(remote, number).close()
    most: list[int] = []
    cache.tell(lambda _: most.append(folders.use(tmp_path)))  # once it is fetched, and before it has its name
    cache.pin(remote, 0, anew=True).close()
    assert 2 * room < most[-1] <= 3 * room


def test_a_copy_that_cannot_be_opened_does_not_keep_the_others_from_being_listed(
    remote: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, opened = ShardCache(tmp_path), os.open
    for number in range(2):
        cache.pin(remote, number).close()

    def refuse(path: Path, *more: Any) -> int:
        if path == cache.path(remote, 1):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *more)

    monkeypatch.setattr(os, "open", refuse)
    assert [one.shards for one in usage(tmp_path)] == [2]
