"""The order of a mix: several data sets interleaved by weight, each repeated epoch after epoch in its own order.

The weights follow a schedule, epoch by epoch.
"""

from __future__ import annotations

import dataclasses
import operator
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from wdsdist._util.array_types import Int64s
from wdsdist._util.validation import check_integer
from wdsdist.sampling.order import OrderSettings, Records, VirtualOrder
from wdsdist.sampling.permutation import mix_key
from wdsdist.sampling.weighted_interleave import Deal, taken_before


@dataclass(frozen=True, slots=True)
class Phase:
    """The weights of all data sets from one epoch on."""

    first_epoch: int
    weights: tuple[Fraction, ...]
    """Shares of an epoch, which sum to 1; 0 for a data set that gives nothing."""


Schedule = tuple[Phase, ...]
"""Phases in the order of their epochs, the first from epoch 0 on."""


def schedule(weights: Mapping[int, Iterable[Fraction]]) -> Schedule:
    """Return the schedule of weights by their first epochs; weights that say the same as those before are no phase.

    >>> half = Fraction(1, 2)
    >>> [phase.first_epoch for phase in schedule({0: (half, half), 3: (half * 2, half * 2), 5: (half, half * 3)})]
    [0, 5]
    """
    phases: list[Phase] = []
    for epoch in sorted(weights):
        listed = tuple(weights[epoch])
        shares = tuple(weight / sum(listed) for weight in listed)
        if not phases or phases[-1].weights != shares:
            phases.append(Phase(epoch, shares))
    return tuple(phases)


def divided(phases: Schedule, sizes: Iterable[Fraction]) -> Schedule:
    """Return the schedule of samples that gives shares of something that a sample of each data set has so much of.

    >>> tokens = schedule({0: (Fraction(1), Fraction(1))})
    >>> described(divided(tokens, (Fraction(300), Fraction(100))))
    '1/4 3/4'
    """
    listed = list(sizes)
    return schedule({one.first_epoch: map(operator.truediv, one.weights, listed) for one in phases})


def phase_number(phases: Schedule, epoch: int) -> int:
    """Return the number of the phase that an epoch lies in."""
    return bisect_right([phase.first_epoch for phase in phases], epoch) - 1


def given_before(phases: Schedule, number: int, num_samples: int, seed: int) -> list[int]:
    """Return the samples that each data set has given before a phase, in epochs of ``num_samples``."""
    given = [0] * len(phases[0].weights)
    for phase, following in pairwise(phases[: number + 1]):
        places = (following.first_epoch - phase.first_epoch) * num_samples
        given = [sum(both) for both in zip(given, taken_before(phase.weights, places, seed), strict=True)]
    return given


def changed(before: Schedule, after: Schedule, epoch: int) -> Schedule:
    """Return the schedule that is one up to an epoch, and another from there on.

    >>> first, second = (schedule({0: weights}) for weights in ((Fraction(1), Fraction(1)), (Fraction(1), Fraction(3))))
    >>> described(changed(first, second, 4))
    '0: 1/2 1/2; 4: 1/4 3/4'
    """
    weights = {phase.first_epoch: phase.weights for phase in before if phase.first_epoch < epoch}
    weights[epoch] = after[phase_number(after, epoch)].weights
    return schedule(weights | {phase.first_epoch: phase.weights for phase in after if phase.first_epoch > epoch})


def described(phases: Schedule) -> str:
    """Return a schedule as text for a state; of a single phase, its weights alone."""
    texts = [" ".join(map(str, phase.weights)) for phase in phases]
    if len(phases) == 1:
        return texts[0]
    return "; ".join(f"{phase.first_epoch}: {text}" for phase, text in zip(phases, texts, strict=True))


def parsed(text: str) -> Schedule:
    """Return the schedule that `described` gave. Raises ``ValueError`` for any other text."""
    weights = {}
    for part in text.split(";"):
        epoch, colon, listed = part.rpartition(":")
        weights[int(epoch) if colon else 0] = [Fraction(weight) for weight in listed.split()]
    phases = schedule(weights) if all(map(any, weights.values())) else ()
    if not phases or described(phases) != text or phases[0].first_epoch != 0:
        raise ValueError(f"{text!r} is no schedule of a mix")
    return phases


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

    @property
    def opening(self) -> list[int]:
        # Of each data set its own: what one with a small share has in a stratum is many windows of another.
        found = {
            min(position, count) * self.num_samples // count
            for part, count in zip(self._parts, self._deal.counts, strict=True)
            if count
            for position in part.opening
        }
        return sorted(found)

    def _dealt(self, positions: Int64s) -> Iterator[tuple[int, Int64s, Int64s]]:
        """Yield the number of each data set, the indices of the positions that it takes, and their places in it."""
        parts, places = self._deal.locate(positions)
        for part in np.unique(parts).tolist():
            chosen = np.flatnonzero(parts == part)
            yield part, chosen, places[chosen]
