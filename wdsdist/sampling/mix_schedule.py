"""The schedule of a mix: the weights of its data sets, epoch by epoch, as a pure function."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from wdsdist.sampling.weighted_interleave import taken_before


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
