"""Medians with their spread, and ratios paired by round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Rounds = Sequence[Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the least and greatest value."""

    median: float
    least: float
    greatest: float


def spread(values: Sequence[float]) -> Spread:
    """Return the median of values with minimum and maximum."""
    return Spread(statistics.median(values), min(values), max(values))


def values(rounds: Rounds, system: str, figure: str = "value") -> list[float]:
    """Return a system's figures, round by round, where it has them."""
    return [found[system][figure] for found in rounds if system in found and figure in found[system]]


def paired_ratio(rounds: Rounds, system: str, other: str) -> Spread | None:
    """Return ``system`` over ``other``: a ratio for each round that has both, then their median.

    Paired, what slows the machine for a while slows both.
    """
    both = [(found[system]["value"], found[other]["value"]) for found in rounds if system in found and other in found]
    ratios = [ours / theirs for ours, theirs in both if theirs > 0]
    return spread(ratios) if ratios else None
