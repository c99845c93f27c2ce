"""The order of a mix: several data sets interleaved by weight, each repeated epoch after epoch in its own order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import check_integer
from wdsdist.sampling.order import OrderSettings, VirtualOrder
from wdsdist.sampling.permutation import mix_key
from wdsdist.sampling.weighted_interleave import Deal


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Data sets, whose shards lie one after another on one line, and their shares of a mix."""

    counts: tuple[Int64s, ...]
    """int64 [shards] for each data set: samples in each shard."""
    windows: tuple[int, ...]
    """The most samples that a lane of each data set shuffles together."""
    weights: tuple[Fraction, ...]
    """The share of each data set; they need not sum to 1."""
    num_samples: int
    """Samples in an epoch of the mix."""
    stratified: bool = True
    """Whether each batch has its share of each data set; otherwise the shares of batches vary as random draws do."""

    def settings_of_each(self, settings: OrderSettings) -> list[OrderSettings]:
        """Return the settings of each data set's own order. The window of the mix is the largest of all windows."""
        return [
            dataclasses.replace(settings, seed=mix_key(settings.seed, number), window=min(window, settings.window))
            for number, window in enumerate(self.windows)
        ]


class MixOrder:
    """One epoch of a mix. A data set goes on from its position at the end of the epoch before.

    Memory grows with the shards of the data sets and with the lanes; time grows, besides, with the number of epochs of
    the data sets among the positions that are asked for.
    """

    def __init__(self, mixture: Mixture, settings: OrderSettings, epoch: int) -> None:
        epoch = check_integer("epoch", epoch, 0, 2**63 - 1)
        self.num_samples = mixture.num_samples
        self._deal = Deal(
            mixture.weights,
            num_samples=mixture.num_samples,
            lanes=settings.num_canonical_replicas,
            seed=settings.seed,
            epoch=epoch,
            stratified=mixture.stratified,
        )
        each = mixture.counts, mixture.settings_of_each(settings), self._deal.starts, self._deal.counts
        self._parts = [VirtualOrder(*part) for part in zip(*each, strict=True)]
        self._first_shards = np.cumsum([0, *map(len, mixture.counts)])

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
