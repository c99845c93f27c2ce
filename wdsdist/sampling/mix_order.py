"""The order of a mix: several data sets interleaved by weight, each repeated epoch after epoch in its own order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import check_integer
from wdsdist.sampling.order import OrderSettings, VirtualOrder
from wdsdist.sampling.permutation import mix_key
from wdsdist.sampling.weighted_interleave import Deal


class MixOrder:
    """One epoch of a mix. A data set goes on from its position at the end of the epoch before.

    Memory grows with the shards of the data sets and with the lanes; time grows, besides, with the number of epochs of
    the data sets among the positions that are asked for.

    Args:
        counts: int64 [shards] for each data set, whose shards lie one after another on one line: samples in each shard.
        windows: the most samples that a lane of each data set shuffles together.
        weights: the share of each data set; they need not sum to 1.
        settings: of the mix; its window is the largest of all windows.
        epoch: which epoch.
        num_samples: samples in an epoch of the mix.
        stratified: whether each batch has its share of each data set, or as random draws do.
    """

    def __init__(
        self,
        counts: Sequence[Int64s],
        windows: Sequence[int],
        weights: Sequence[Fraction],
        settings: OrderSettings,
        epoch: int,
        *,
        num_samples: int,
        stratified: bool = True,
    ) -> None:
        self.num_samples = num_samples
        self._deal = deal = Deal(
            weights,
            num_samples=num_samples,
            lanes=settings.num_canonical_replicas,
            seed=settings.seed,
            epoch=check_integer("epoch", epoch, 0, 2**63 - 1),
            stratified=stratified,
        )
        each = zip(counts, settings_of_each(settings, windows), deal.starts, deal.counts, strict=True)
        self._parts = [VirtualOrder(*part) for part in each]
        self._first_shards = np.cumsum([0, *map(len, counts)])

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        shards, samples = np.empty_like(positions), np.empty_like(positions)
        for part, chosen, numbers in self._dealt(positions):
            own, samples[chosen] = self._parts[part].locate(numbers)
            shards[chosen] = self._first_shards[part] + own
        return shards, samples

    def epochs(self, positions: Int64s) -> Int64s:
        epochs = np.empty_like(positions)
        for part, chosen, numbers in self._dealt(positions):
            epochs[chosen] = self._parts[part].epochs(numbers)
        return epochs

    def _dealt(self, positions: Int64s) -> Iterator[tuple[int, Int64s, Int64s]]:
        """Yield the number of each data set, the indices of the positions that it takes, and their numbers in it."""
        parts, numbers = self._deal.locate(positions)
        for part in np.unique(parts).tolist():
            chosen = np.flatnonzero(parts == part)
            yield part, chosen, numbers[chosen]


def settings_of_each(settings: OrderSettings, windows: Sequence[int]) -> list[OrderSettings]:
    """Return the settings of the own order of each data set of a mix, in which each has a window."""
    return [
        replace(settings, seed=mix_key(settings.seed, number), window=min(window, settings.window))
        for number, window in enumerate(windows)
    ]
