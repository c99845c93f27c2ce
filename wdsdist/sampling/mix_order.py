"""The order of a mix: several data sets interleaved by weight, each repeated epoch after epoch in its own order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import check_integer
from wdsdist.sampling.mix_schedule import Schedule, given_before, phase_number
from wdsdist.sampling.order import OrderSettings, Records, VirtualOrder
from wdsdist.sampling.permutation import mix_key
from wdsdist.sampling.weighted_interleave import Deal


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Data sets, whose shards lie one after another on one line, and their shares of a mix."""

    counts: tuple[Int64s, ...]
    """Of each data set, int64 [shards]: samples in each shard."""
    windows: tuple[int, ...]
    """Of each data set, the samples that a lane shuffles together at most."""
    records: tuple[Records | None, ...] = ()
    """For each data set of the mix, which parts of records stay together in the shuffle; by default none."""
    phases: Schedule
    """The weights of the data sets, from each epoch on at which they change."""
    num_samples: int
    """Samples in an epoch of the mix."""
    stratified: bool

    def settings_of_each(self, settings: OrderSettings) -> list[OrderSettings]:
        """Return the settings of each data set's own order. The window of the mix is the most that any has."""
        return [
            dataclasses.replace(settings, seed=mix_key(settings.seed, number), window=min(window, settings.window))
            for number, window in enumerate(self.windows)
        ]


class MixOrder:
    """One epoch of a mix. A data set goes on where it stood at the end of the epoch before.

    Memory grows with the shards of the data sets and with the lanes; time, besides, with how often data sets begin
    anew among the positions that are asked for.
    """

    def __init__(self, mixture: Mixture, settings: OrderSettings, epoch: int) -> None:
        epoch = check_integer("epoch", epoch, 0, 2**63 - 1)
        number = phase_number(mixture.phases, epoch)
        self.num_samples = mixture.num_samples
        self._deal = Deal(
            mixture.phases[number].weights,
            num_samples=mixture.num_samples,
            lanes=settings.num_canonical_replicas,
            seed=settings.seed,
            epoch=epoch,
            first_epoch=mixture.phases[number].first_epoch,
            given=given_before(mixture.phases, number, mixture.num_samples, settings.seed),
            stratified=mixture.stratified,
        )
        records = mixture.records or (None,) * len(mixture.counts)
        each = mixture.counts, mixture.settings_of_each(settings), self._deal.starts, self._deal.counts, records
        self._parts = [VirtualOrder(*one) for one in zip(*each, strict=True)]
        self._first_shards = np.cumsum([0, *map(len, mixture.counts)])

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        shards, samples = np.empty_like(positions), np.empty_like(positions)
        for part, chosen, places in self._dealt(positions):
            found, samples[chosen] = self._parts[part].locate(places)
            shards[chosen] = self._first_shards[part] + found
        return shards, samples

    def epochs(self, positions: Int64s) -> Int64s:
        found = np.empty_like(positions)
        for part, chosen, places in self._dealt(positions):
            found[chosen] = self._parts[part].epochs(places)
        return found

    def _dealt(self, positions: Int64s) -> Iterator[tuple[int, Int64s, Int64s]]:
        """Yield the number of each data set, the indices of the positions that it takes, and their places in it."""
        parts, places = self._deal.locate(positions)
        for part in np.unique(parts).tolist():
            chosen = np.flatnonzero(parts == part)
            yield part, chosen, places[chosen]
