"""Faults that stay: a loud end on the rank that needs what cannot be had, in time, and the same for any workers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import wdsdist
from tests.support import faults
from tests.support.faults import Rule
from tests.support.ranks import Outcome, Ranks
from tests.support.stores import COPY, Store, expected
from wdsdist.errors import CacheError, NotFoundError, ShardDamagedError, StorageError, WdsdistError

# Real ranks against deadlines of seconds: beside other tests on two cores they would be measured, not tested.
pytestmark = pytest.mark.slow

WORKERS = (0, 2)
TIMEOUT = 10.0
"""Seconds for a shard that is waited for in vain: many for one of a sound store on a busy machine, as each worker makes
a client first."""
AMPLE = 100.0
"""Seconds for a shard whose fault is an error at once, and for an error to come from where it happened."""
WAITED = rf"for {TIMEOUT:g} seconds \(download_timeout\)"
"""What a worker says that waited all the time for another one, which was fetching the shard."""


def last_words(
    store: Store, folder: Path, spoil: Callable[[], object], *, batches: int, timeout: float = TIMEOUT
) -> list[Outcome]:
    """Let ranks with any number of workers read some batches, spoil the store, and let them read on."""
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(
                Ranks(
                    store, folder / str(workers), world_size=1, workers=workers,
                    cache_limit=8 * COPY, download_timeout=timeout,
                )
            )
            for workers in WORKERS
        ]  # fmt: skip
        for job in jobs:  # one by one: all at once are too many for a small machine in the time that a shard has
            (sound,) = job.all("take", batches)
            assert (sound.error, len(sound.batches)) == (None, batches)
        spoil()
        for job in jobs:
            job.tell("take")
        return [job.outcome(0) for job in jobs]


def check(
    outcomes: list[Outcome], store: Store, error: type[Exception] | tuple[type[Exception], ...], message: str
) -> None:
    for workers, outcome in zip(WORKERS, outcomes, strict=True):
        assert not outcome.is_over, f"a short epoch with {workers} workers"
        assert isinstance(outcome.error, error)
        assert re.search(rf"{re.escape(store.url)}/\d{{3}}\.tar\S* {message}", str(outcome.error)), str(outcome.error)
        assert outcome.seconds < TIMEOUT + AMPLE
        assert ("in data loading worker" in str(outcome.error)) == (workers > 0)
        assert "\n" not in str(outcome.error)


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (Rule("wrong", 1000, path="*.tar"), ShardDamagedError, "does not hold what its index says: the data of member"),
        (Rule("short", 512, path="*.tar"), ShardDamagedError, r"cannot be read: [\d,]+ bytes .* \(\d attempts? in \d"),
        (Rule("status", 404, path="*.tar", method="*"), NotFoundError, "does not exist"),
        (Rule("status", 403, path="*.tar", method="*"), StorageError, "cannot be read: .*access is refused"),
        (
            Rule("status", 503, path="*.tar"),
            (StorageError, CacheError),
            rf"(cannot be read: .* \(\d+ attempts? in \d|{WAITED})",
        ),
    ],
    ids=lambda value: f"{value.fault} {value.value:g}" if isinstance(value, Rule) else "",
)
def test_what_cannot_be_had_is_an_error_in_the_training_loop(
    web: Store, tmp_path: Path, rule: Rule, error: type[WdsdistError] | tuple[type[WdsdistError], ...], message: str
) -> None:
    timeout = TIMEOUT if rule.value == 503 else AMPLE  # a busy store is asked until the time is over
    check(last_words(web, tmp_path, lambda: web.proxy.rules(rule), batches=5, timeout=timeout), web, error, message)


def test_a_store_that_hangs_is_an_error_in_the_training_loop(web: Store, tmp_path: Path) -> None:
    hang = Rule("stall", 1000, path="*.tar")
    message = rf"(cannot be read: .*timed out .*attempt|{WAITED})"
    check(last_words(web, tmp_path, lambda: web.proxy.rules(hang), batches=5), web, WdsdistError, message)


@pytest.mark.parametrize("batches", [0, 5])
def test_a_store_that_has_gone_is_an_error_in_the_training_loop(store: Store, tmp_path: Path, batches: int) -> None:
    with ExitStack() as server:
        mortal = store.through(server.enter_context(faults.planted(store.proxy.url)))
        outcomes = last_words(mortal, tmp_path, server.close, batches=batches)
    check(outcomes, mortal, StorageError, r"cannot be read: .*[Cc]onnect.* \(\d+ attempts? in \d")


@pytest.mark.parametrize("fault", ["refuse", "stall"])
@pytest.mark.parametrize(
    "read", [wdsdist.StreamingDataset, lambda url, **options: wdsdist.mix({url: 1}, **options)], ids=["one", "mix"]
)
def test_an_index_that_cannot_be_had_is_an_error_in_the_time_that_was_given(
    store: Store, fault: str, read: Callable[..., object]
) -> None:
    store.proxy.rules(Rule(fault, 10, method="*"))
    message = (
        rf"{re.escape(store.url)}/index\.json cannot be read: .* \(\d+ attempts? in \d.* s; download_timeout=0\.5 is"
    )
    began = time.monotonic()
    with pytest.raises(StorageError, match=message):
        read(store.url, storage_options=store.options, download_timeout=0.5)
    assert time.monotonic() - began < AMPLE
    assert {path.rpartition("/")[2] for path in store.proxy.counts()} == {"index.json"}, "the folder is no view"


def test_only_the_rank_that_needs_a_shard_fails_for_it(store: Store, stored: Path, tmp_path: Path) -> None:
    with Ranks(store, tmp_path / "a") as ranks:
        needed = [outcome.shards for outcome in ranks.all()]
    missing = sorted(needed[1] - needed[0])[-1]
    store.proxy.rules(Rule("status", 404, path=f"*/{missing}", method="*"))
    with Ranks(store, tmp_path / "b") as ranks:
        sound, failed = ranks.all()
    assert (sound.error, sound.batches) == (None, expected(stored, 0, 2))
    assert isinstance(failed.error, NotFoundError)
    assert f"{store.url}/{missing} does not exist" in str(failed.error)
    assert failed.batches == expected(stored, 1, 2)[: len(failed.batches)]
