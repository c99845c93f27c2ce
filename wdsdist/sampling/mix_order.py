"""The order of a mix: several data sets interleaved by weight, each repeated epoch after epoch in its own order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import check_integer
from wdsdist.sampling.mix_schedule import Schedule, given_before, phase_number
from wdsdist.sampling.order import Order, OrderSettings, Records, epoch_order
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
        self._mixture = mixture
        self._settings = mixture.settings_of_each(settings)
        epoch = check_integer("epoch", epoch, 0, 2**63 - 1)
        number = phase_number(mixture.phases, epoch)
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
        self._first_shards = np.cumsum([0, *map(len, mixture.counts)])
        self._orders: dict[tuple[int, int], Order] = {}

    @property
    def num_samples(self) -> int:
        return self._mixture.num_samples

    def locate(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        shards, samples = np.empty_like(positions), np.empty_like(positions)
        used: dict[tuple[int, int], Order] = {}
        for stream, chosen, first_epoch, epochs, places in self._visits(positions):
            for past in np.unique(epochs).tolist():
                key = stream, first_epoch + past
                order = used[key] = self._orders.get(key) or self._order(*key)
                now = epochs == past
                found, samples[chosen[now]] = order.locate(places[now])
                shards[chosen[now]] = self._first_shards[stream] + found
        self._orders = used  # what was used last is what neighbouring positions need
        return shards, samples

    def epochs(self, positions: Int64s) -> Int64s:
        found = np.empty_like(positions)
        for _, chosen, first_epoch, epochs, _ in self._visits(positions):
            found[chosen] = first_epoch + epochs
        return found

    def _visits(self, positions: Int64s) -> Iterator[tuple[int, Int64s, int, Int64s, Int64s]]:
        """Yield, for each data set, its number, the indices of the positions that it takes, and where they lead.

        That is its epoch when the mix's begins; then, for each position, how many epochs later, and the place there.
        """
        streams, numbers = self._deal.locate(positions)
        for stream in np.unique(streams).tolist():
            chosen = np.flatnonzero(streams == stream)
            size = int(self._mixture.counts[stream].sum())
            first_epoch, start = divmod(self._deal.starts[stream], size)
            yield stream, chosen, first_epoch, *np.divmod(start + numbers[chosen], size)

    def _order(self, stream: int, epoch: int) -> Order:
        records = self._mixture.records[stream] if self._mixture.records else None
        return epoch_order(self._mixture.counts[stream], self._settings[stream], epoch, records=records)
