"""Faults that pass, under two ranks with two workers each: the epoch is complete, and bit for bit what it should be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import wdsdist
from tests.support.faults import Rule
from tests.support.ranks import Ranks
from tests.support.sources import Shards
from tests.support.stores import Store, expected, strange_copies

TENTH = [
    Rule("status", 500, share=0.02, method="*", seed=1),
    Rule("status", 503, share=0.01, method="*", seed=2),
    Rule("refuse", share=0.02, method="*", seed=3),
    Rule("cut", 1000, share=0.03, method="*", seed=4),
    Rule("stall", 1000, share=0.02, method="*", seed=5),
]


def test_an_epoch_of_which_a_tenth_of_the_requests_fail_is_complete(store: Store, stored: Path, tmp_path: Path) -> None:
    with Ranks(store, tmp_path / "cache", stall=2, download_timeout=100) as ranks:
        store.proxy.rules(*TENTH)
        outcomes = ranks.all()
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert [outcome.batches for outcome in outcomes] == [expected(stored, rank, 2) for rank in range(2)]
    counts = store.proxy.counts().values()
    faults = sum(count.faults for count in counts)
    assert 0 < faults < 0.3 * sum(count.requests for count in counts)
    assert sum(outcome.stats.retries for outcome in outcomes) > 0.3 * faults


ONCE = {
    "0.tar": Rule("wrong", 1000),
    "1.tar": Rule("wrong", 10**9),
    "2.tar": Rule("short", 512),
    "3.tar": Rule("long", 512),
    "4.tar.wdsindex": Rule("wrong", 1000),
    "5.tar.wdsindex": Rule("short", 64),
}


def test_wrong_bytes_and_lengths_are_never_read(store: Store, stored: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with Ranks(store, cache, download_timeout=100) as ranks:
        store.proxy.rules(*[replace(rule, path=f"*{ending}", times=1) for ending, rule in ONCE.items()])
        outcomes = ranks.all()
    assert [outcome.batches for outcome in outcomes] == [expected(stored, rank, 2) for rank in range(2)]
    assert not strange_copies(cache, stored)
    hit = {path for path, count in store.proxy.counts().items() if count.faults}
    assert hit == {store.path(f"{tens:02}{ending}") for tens in range(3) for ending in ONCE}


def test_an_index_that_stalls_leaves_time_for_another_attempt(store: Store, stored: Path, tmp_path: Path) -> None:
    manifest = wdsdist.open(store.url, storage_options=store.options)
    store.proxy.rules(Rule("stall", 100, path="*.wdsindex", times=1))
    assert bytes(Shards(manifest, tmp_path / "cache", timeout=8).shard(0).content) == (stored / "000.tar").read_bytes()
