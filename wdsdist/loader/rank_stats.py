"""Compare the throughput of all ranks: which one waits longest for data, and why."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from wdsdist._util.validation import check_seconds, decimal
from wdsdist.distributed.agreement import gather
from wdsdist.loader.stats import LoaderStats

_LITTLE = 0.05
"""The share of its time that a rank may wait and yet is not slow."""
_ALIKE = 1.25
"""How many times as long as others a rank waits that is slower than they are; the same for what it fetches."""
_FEW = 3
"""Retries, or bad samples, that explain nothing."""


@dataclass(frozen=True, slots=True)
class RankStats:
    """Throughput of one epoch on each rank; its text is one line that names the slowest rank, and why.

    >>> usual = LoaderStats(seconds=60, seconds_waiting=2)
    >>> print(RankStats((usual, LoaderStats(seconds=60, seconds_waiting=41, retries=37), usual)))
    rank 1 of 3 is the slowest: it waited 41.0 s (68 %) for data, the others 2.0 s; 37 requests of it were retried, of \
others 0
    """

    ranks: tuple[LoaderStats | None, ...]
    """Of each rank; ``None`` of one that did not answer."""

    @property
    def slowest(self) -> int:
        """The rank that waited longest for data: the others wait for it where ranks exchange gradients."""
        return max(range(len(self.ranks)), key=lambda rank: getattr(self.ranks[rank], "seconds_waiting", -1.0))

    def __str__(self) -> str:
        missing = [str(rank) for rank, one in enumerate(self.ranks) if one is None]
        tail = f"; no answer from rank{'s'[: len(missing) - 1]} {', '.join(missing)}" if missing else ""
        slow = self.ranks[self.slowest]
        others = [one for rank, one in enumerate(self.ranks) if one is not None and rank != self.slowest]
        if slow is None:
            return "no rank answered"
        which = f"rank {self.slowest} of {len(self.ranks)}"
        waited = f"waited {slow.seconds_waiting:.1f} s ({100 * slow.waiting_share:.0f} %) for data"
        if not others:
            return f"{which} {waited}{tail}"
        if slow.waiting_share < _LITTLE:
            return f"no rank is slowed down by data: {which} {waited}, the longest{tail}"
        usual = statistics.median(one.seconds_waiting for one in others)
        if slow.seconds_waiting < _ALIKE * usual:
            return f"all ranks wait for data alike: {which} {waited}, the longest, the others {usual:.1f} s{tail}"
        reasons = ", ".join(_reasons(slow, others))
        return f"{which} is the slowest: it {waited}, the others {usual:.1f} s; {reasons}{tail}"


def compare_ranks(stats: LoaderStats, *, timeout: float = 60.0) -> RankStats:
    """Gather the stats of all ranks, and name the slowest and why. Every rank calls it, as at the end of an epoch.

    It goes through the store of the process group, with no collective, and waits for the ranks that have not called it
    yet; one that does not within ``timeout`` seconds is named, and is no error. Without a process group there is this
    rank alone.

    >>> print(compare_ranks(LoaderStats(seconds=60, seconds_waiting=1)))
    rank 0 of 1 waited 1.0 s (2 %) for data
    """
    found = gather("stats", json.dumps(asdict(stats)), check_seconds("timeout", timeout))
    return RankStats(tuple(None if one is None else LoaderStats(**json.loads(one)) for one in found))


def _reasons(slow: LoaderStats, others: list[LoaderStats]) -> Iterator[str]:
    """Yield in which figures a rank differs from the others."""

    def usual(name: str) -> float:
        return float(statistics.median(getattr(one, name) for one in others))

    count = 0
    for name, text in (("retries", "requests of it were retried"), ("bad_samples", "bad samples of it were replaced")):
        if getattr(slow, name) > max(_FEW, 2 * usual(name)):
            count += 1
            yield f"{getattr(slow, name):,} {text}, of others {usual(name):,.0f}"
    if slow.bytes_fetched > _ALIKE * usual("bytes_fetched"):
        count += 1
        yield f"it fetched {decimal(slow.bytes_fetched)}, others {decimal(usual('bytes_fetched'))}"
    if not count:
        fetches = "fetches no more than others, so its network, " if slow.bytes_fetched else "fetches nothing, so its "
        yield f"it {fetches}disk or CPU is slow"
