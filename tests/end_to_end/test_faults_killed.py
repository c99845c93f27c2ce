"""Workers, ranks and whole jobs that are killed at any moment: a restart completes, and nothing is left over."""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import random
import re
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.ranks import Outcome, Ranks
from tests.support.stores import COPY, NAMES, Store, expected, strange_copies, used, watched

# Real ranks against deadlines of seconds: beside other tests on two cores they would be measured, not tested.
pytestmark = pytest.mark.slow

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
    """Return what of the processes' memory has a name, and would outlive them."""
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
    multiprocessing.util.get_temp_dir()  # of this process, which is no leftover
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    cache, chance = tmp_path / "cache", random.Random(0)
    named: list[str] = []
    with watched(lambda: used(cache)) as use:
        for number in range(6):
            with Ranks(web, cache, cache_limit=LIMIT, download_timeout=500) as ranks:
                ranks.tell("take")
                time.sleep(chance.uniform(0, 1.5))  # at any moment: no event marks it
                named += shared_memory(ranks)
                dead = KILLS[number % len(KILLS)](ranks, chance)
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
