"""The slowest rank is named with the reason, on one line; ranks meet in the store of their group, or are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.gloo_ranks import Ranks
from wdsdist.errors import ArgumentError
from wdsdist.loader.stats import LoaderStats, RankStats, compare_ranks


def stats(waited: float, **more: Any) -> LoaderStats:
    return LoaderStats(seconds=60, seconds_waiting=waited, **more)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        (
            [stats(2), stats(30, bad_samples=40, retries=3), stats(4, bad_samples=1)],
            "rank 1 of 3 is the slowest: it waited 30.0 s (50 %) for data, the others 3.0 s; "
            "40 bad samples of it were replaced, of others 0",
        ),
        (
            [stats(2), stats(30, shards_fetched=9, bytes_fetched=9e9), stats(2, shards_fetched=1, bytes_fetched=2e9)],
            "rank 1 of 3 is the slowest: it waited 30.0 s (50 %) for data, the others 2.0 s; "
            "it fetched 9.0 GB, others 1.0 GB",
        ),
        (
            [stats(2), stats(30)],
            "rank 1 of 2 is the slowest: it waited 30.0 s (50 %) for data, the others 2.0 s; "
            "it fetches nothing, so its disk or CPU is slow",
        ),
        (
            [stats(2, bytes_fetched=2e9), stats(30, bytes_fetched=2e9)],  # parts of shards
            "rank 1 of 2 is the slowest: it waited 30.0 s (50 %) for data, the others 2.0 s; "
            "it fetches no more than others, so its network, disk or CPU is slow",
        ),
        (
            [stats(2, shards_fetched=1, bytes_fetched=9), stats(30, shards_fetched=1, bytes_fetched=9)],
            "rank 1 of 2 is the slowest: it waited 30.0 s (50 %) for data, the others 2.0 s; "
            "it fetches no more than others, so its network, disk or CPU is slow",
        ),
        (
            [stats(29), stats(30), stats(28)],
            "all ranks wait for data alike: rank 1 of 3 waited 30.0 s (50 %) for data, the longest, the others 28.5 s",
        ),
        (
            [stats(1), stats(2), None, None],
            "no rank is slowed down by data: rank 1 of 4 waited 2.0 s (3 %) for data, the longest; "
            "no answer from ranks 2, 3",
        ),
    ],
)
def test_the_text_names_the_slowest_rank_and_why(ranks: list[LoaderStats | None], text: str) -> None:
    assert str(RankStats(tuple(ranks))) == text


def compare(waited: float, timeout: float) -> str:
    return str(compare_ranks(stats(waited, fill=0.5), timeout=timeout))


def test_ranks_compare_what_they_say_and_name_who_says_nothing(tmp_path: Path) -> None:
    ranks = Ranks(2, tmp_path)
    try:
        for first, second in ((1, 30), (20, 2)):  # as at the end of two epochs
            ranks.tell(0, compare, first, 60)
            ranks.tell(1, compare, second, 60)
            found = [ranks.outcome(rank) for rank in range(2)]
            assert found[0] == found[1]
            slowest = f"rank {int(second > first)} of 2 is the slowest: it waited {max(first, second)}"
            assert found[0].startswith(slowest)
        ranks.tell(0, compare, 1, 0.1)
        assert ranks.outcome(0) == "rank 0 of 2 waited 1.0 s (2 %) for data; no answer from rank 1"
    finally:
        ranks.end()


def test_a_time_that_cannot_be_waited_is_refused() -> None:
    with pytest.raises(ArgumentError, match="timeout is 0"):
        compare_ranks(LoaderStats(), timeout=0)
