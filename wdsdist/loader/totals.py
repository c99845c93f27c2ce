"""Totals of all loaders of this process, by data set and rank, for metrics: they only grow, whatever loader is gone."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from wdsdist.loader.stats import EpochMeter, LoaderStats

SUMMED = ("batches", "samples", "bad_samples", "bytes", "seconds_waiting", "cache_hits", "shards_fetched",
          "bytes_fetched", "retries")  # fmt: skip
"""The figures of `LoaderStats` that add up over epochs."""


class Label(NamedTuple):
    """Which figures belong together."""

    data: str
    """The data set, by its location."""
    rank: int


_changing = threading.RLock()  # the garbage collector may end a meter at any line
_ended: dict[Label, Counter[str]] = {}
_running: weakref.WeakKeyDictionary[EpochMeter, Label] = weakref.WeakKeyDictionary()
_latest: dict[Label, LoaderStats] = {}


def begin(meter: EpochMeter, label: Label) -> None:
    """Count an epoch that is under way."""
    with _changing:
        _running[meter] = label


def end(meter: EpochMeter, label: Label, stats: LoaderStats) -> None:
    """Keep the figures of an epoch that has ended, or was given up."""
    with _changing:
        _running.pop(meter, None)
        _ended.setdefault(label, Counter()).update(_figures(stats))
        _latest[label] = stats


def totals() -> dict[Label, tuple[Counter[str], LoaderStats]]:
    """Return the sums over all epochs, and the figures of the latest epoch, of each data set on this process's rank."""
    with _changing:
        sums = {label: Counter(figures) for label, figures in _ended.items()}
        latest = dict(_latest)
        running = list(_running.items())
    for meter, label in running:
        stats = meter.stats(until_now=True)
        sums.setdefault(label, Counter()).update(_figures(stats))
        latest[label] = stats
    return {label: (figures, latest[label]) for label, figures in sums.items()}


def _figures(stats: LoaderStats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in SUMMED}
